"""Insertion and deletion beside other code, at equal steps: both sides in one run, on the same model, image and map.

    python benchmarks/curves.py --checkpoint deit_tiny.safetensors --images DIR [--checkouts DIR] [--steps 28]

The checkouts, made by whoever runs this, hold RISE (its evaluation, one image at a time) and
MDA-Metric-Driven-Attributions-for-ViT (MAS, which pushes 50 pictures at a time). Quantus' PixelFlipping is taken where
it is installed; it has no insertion, so its deletion is set against ours, and it changes one channel after the other,
hence three times as many steps, on both sides. The curves of RISE are compared first.
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from mda_authors import mda_code
from torch import Tensor, nn

import vitrail
from vitrail.metric import Case, parse
from vitrail.model import View


class Probabilities(nn.Module):
    """What the other code wants of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).softmax(1)


def ours(view: View, images: Tensor, maps: Tensor, step: int, names: tuple[str, ...]) -> list[np.ndarray]:
    case = Case(view, images, maps)
    return [parse(f"{name}(step={step})").curve(case).responses.cpu().numpy() for name in names]


def rise(folder: Path, view: View, images: Tensor, maps: Tensor, step: int) -> list[np.ndarray]:
    sys.path.insert(0, str(folder))
    code = importlib.import_module("evaluation")
    kernel = code.gkern(11, 5)
    fills = {"ins": lambda x: nn.functional.conv2d(x, kernel, padding=5), "del": torch.zeros_like}
    found = []
    with torch.no_grad():
        for mode, fill in fills.items():
            test = code.CausalMetric(Probabilities(view.model), mode, step, fill)
            rows = [test.single_run(x[None], heat.numpy()) for x, heat in zip(images, maps)]
            found.append(np.stack(rows))
    return found


def mas(checkouts: Path, view: View, images: Tensor, maps: Tensor, step: int) -> None:
    code = mda_code(checkouts)[1]
    kernel = code.gkern(11, 5)
    fills = {"ins": lambda x: nn.functional.conv2d(x, kernel, padding=5), "del": torch.zeros_like}
    with torch.no_grad():
        for mode, fill in fills.items():
            test = code.MASMetric(view.model, 224 * 224, mode, step, fill)
            for x, heat in zip(images, maps):
                test.single_run(x[None], heat.numpy(), "cpu")


def pixel_flipping(view: View, images: Tensor, maps: Tensor, step: int) -> None:
    import quantus

    test = quantus.PixelFlipping(
        features_in_step=step, perturb_baseline="black", return_auc_per_sample=False, disable_warnings=True
    )
    heat = maps[:, None].expand(-1, 3, -1, -1)
    with torch.no_grad():
        classes = view.model(images).argmax(1)
    test(view.model, images.numpy(), classes.numpy(), heat.numpy(), softmax=True, device="cpu")


def timed(theirs: Callable[[], object], own: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of both. They take turns, so that a busy moment of the machine hits both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, taken in zip((theirs, own), times):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--images", type=Path, required=True)
    options.add_argument("--checkouts", type=Path)
    options.add_argument("--steps", type=int, default=28)
    options.add_argument("--count", type=int, default=2)
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    view = vitrail.load("timm/deit_tiny_patch16_224", given.checkpoint, device="cpu")
    images = view.preprocess.batch(sorted(given.images.iterdir())[: given.count])
    maps = torch.rand(len(images), 224, 224, generator=torch.Generator().manual_seed(0))
    step = 224 * 224 // given.steps
    both = ("insertion", "deletion")
    print(f"DeiT-tiny, {len(images)} images, {given.steps} steps, {torch.get_num_threads()} CPU threads")
    print("| code | s an image | vitrail | ratio |\n|---|---|---|---|", flush=True)

    def row(name: str, theirs: Callable[[], object], own: Callable[[], object]) -> None:
        other, mine = (seconds / len(images) for seconds in timed(theirs, own, given.repeats))
        print(f"| {name} | {other:.2f} | {mine:.2f} | {other / mine:.2f} x |", flush=True)

    def mine() -> object:
        return ours(view, images, maps, step, both)

    if given.checkouts is not None:
        torch.Tensor.cuda = lambda self, *_, **__: self  # RISE's code asks for a GPU
        folder = given.checkouts / "RISE"
        found, expected = ours(view, images, maps, step, both), rise(folder, view, images, maps, step)
        worst = max(np.abs(a - b).max() for a, b in zip(found, expected))
        row(f"RISE evaluation, curves within {worst:.0e}", lambda: rise(folder, view, images, maps, step), mine)
        row("MAS, 50 pictures a pass", lambda: mas(given.checkouts, view, images, maps, step), mine)
    try:
        import quantus  # noqa: F401
    except ImportError:
        print("quantus is not installed: its row is left out")
        return
    row(
        f"Quantus PixelFlipping (deletion, {3 * given.steps} steps)",
        lambda: pixel_flipping(view, images, maps, step),
        lambda: ours(view, images, maps, -(-step // 3), ("deletion",)),
    )


if __name__ == "__main__":
    main()
