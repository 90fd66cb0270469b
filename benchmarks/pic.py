"""AIC and SIC beside the code of PAIR-code/saliency: the same maps, masks and model in one run, areas compared.

    python benchmarks/pic.py --checkpoint deit_tiny.safetensors --images DIR [--checkout DIR] [--count 5] [--device cpu]

The checkout is one of PAIR-code/saliency, made by whoever runs this; without it only our own two ways are compared.
DeiT-tiny, genatt's maps, the 13 thresholds of the authors' notebook. Their code makes the pictures anew for each of the
two metrics and asks the model about one at a time; ours makes them once for both, on as many threads as torch takes.
AIC alone (``brief``) makes only those that decide it. Images that SIC skips are left out: they cost little.
"""

import argparse
import contextlib
import importlib.util
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

import vitrail
from vitrail.metric.faithfulness import bokeh, pic
from vitrail.model import View

LEAST = 0.5
NAMES = ("sic", "aic")


def authors(checkout: Path) -> ModuleType:
    """Their module alone: the package around it wants libraries that this does not need."""
    vars(np).setdefault("trapz", getattr(np, "trapezoid", None))  # gone since NumPy 2.4; all that their code lacks
    spec = importlib.util.spec_from_file_location("pair_pic", checkout / "saliency/metrics/pic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(
    view: View, pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray, classes: torch.Tensor
) -> tuple[dict[str, np.ndarray], float]:
    """The areas, and the seconds that both metrics together took; one alone takes as long."""
    bokeh._SIZES.clear()  # what an earlier call compressed is compressed again
    start = time.perf_counter()
    curves = pic.information_curves(pictures, maps, masks, pic.asker(view, classes), least=LEAST)
    return {name: curves[name].areas() for name in NAMES}, time.perf_counter() - start


def briefly(
    view: View, pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray, classes: torch.Tensor
) -> tuple[np.ndarray, float]:
    """The areas of AIC alone, and the seconds that it took."""
    bokeh._SIZES.clear()
    start = time.perf_counter()
    areas = pic.brief_curves(pictures, maps, masks, pic.asker(view, classes), least=LEAST).areas()
    return areas, time.perf_counter() - start


def theirs(
    code: ModuleType, view: View, pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray, classes: torch.Tensor
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The areas, and the seconds that each of the metrics took."""
    areas = {name: np.full(len(pictures), np.nan) for name in NAMES}
    seconds = dict.fromkeys(NAMES, 0.0)
    ask = pic.asker(view, classes)
    for name in NAMES:
        for i in range(len(pictures)):

            def answer(shown: np.ndarray, name: str = name, i: int = i) -> np.ndarray:
                return np.asarray(ask(shown, np.full(len(shown), i))[name])

            start = time.perf_counter()
            with contextlib.suppress(code.ComputePicMetricError):
                areas[name][i] = code.compute_pic_metric(
                    pictures[i], maps[i], masks[i], answer, pic.THRESHOLDS, min_pred_value=LEAST
                ).auc
            seconds[name] += time.perf_counter() - start
    return areas, seconds


def chosen(view: View, folder: Path, count: int) -> list[Path]:
    """The first images of a folder whose softmax curve their rules keep."""
    found = []
    for number, path in enumerate(sorted(folder.iterdir())):
        with torch.no_grad():
            classes = view.logits(view.preprocess.batch([path]).to(view.device)).argmax(1).cpu()
        picture = np.asarray(view.preprocess.picture(path))
        blank = bokeh.blurred(picture, pic.random_mask(picture.shape[:2], (0, len(found))))
        low, high = pic.asker(view, classes)(np.stack([blank, picture]), np.zeros(2, np.int64))["sic"]
        if high >= LEAST and low < high and bokeh.entropy(blank) < bokeh.entropy(picture):
            found.append(path)
        if len(found) == count:
            print(f"the first {count} of {number + 1} images that SIC does not skip")
            return found
    raise SystemExit(f"{folder} holds only {len(found)} images that SIC does not skip")


def apart(some: np.ndarray, others: np.ndarray) -> str:
    """The largest difference of areas, and how many images have both."""
    errors = np.abs(some - others)
    return f"{np.nanmax(errors):.0e} ({np.isfinite(errors).sum()})"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--checkout", type=Path)
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--images", type=Path, required=True)
    options.add_argument("--count", type=int, default=5)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = options.parse_args()
    view = vitrail.load("timm/deit_tiny_patch16_224", given.checkpoint, device=given.device)
    paths = chosen(view, given.images, given.count)
    explained = vitrail.explain(view, paths, "genatt")
    assert explained.classes is not None
    maps, classes = explained.upsample().numpy(), explained.classes
    pictures = np.stack([np.asarray(view.preprocess.picture(path)) for path in paths])
    masks = np.stack([pic.random_mask(maps.shape[1:], (0, i)) for i in range(len(paths))])

    case = (pictures, maps, masks, classes)
    for warm_up in (ours, briefly):
        warm_up(view, *(x[:1] for x in case))
    found, before = ours(view, *case)
    short, before_brief = briefly(view, *case)
    expected, slow = theirs(authors(given.checkout), view, *case) if given.checkout else ({}, {})
    # Before and after, so that a busy moment hits both sides.
    brief = (before_brief + briefly(view, *case)[1]) / 2 / len(paths)
    fast = (before + ours(view, *case)[1]) / 2 / len(paths)
    slow = {name: seconds / len(paths) for name, seconds in slow.items()}
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-3, equal_nan=True)
    print(f"DeiT-tiny, {given.device}, {len(paths)} images, {torch.get_num_threads()} threads; seconds an image")
    if slow:
        print(f"{'':10}{'authors':>9}{'ours':>8}{'ratio':>8}   largest difference of areas (images)")
        for name in NAMES:
            told = apart(found[name], expected[name])
            print(f"{name:10}{slow[name]:9.2f}{fast:8.2f}{slow[name] / fast:7.1f}x   {told}")
        both = sum(slow.values())
        print(f"{'both':10}{both:9.2f}{fast:8.2f}{both / fast:7.1f}x")
        told = apart(short, expected["aic"])
        print(f"{'aic, brief':10}{slow['aic']:9.2f}{brief:8.2f}{slow['aic'] / brief:7.1f}x   {told}")
    print(f"{'':10}{'ours':>9}{'brief':>8}{'ratio':>8}   largest difference of areas (images)")
    print(f"{'aic':10}{fast:9.2f}{brief:8.2f}{fast / brief:7.1f}x   {apart(short, found['aic'])}")


if __name__ == "__main__":
    main()
