"""Runs the MDA, MAS and TIS authors' own code from checkouts: other benchmarks time it, this one compares MDA's maps.

    python benchmarks/mda_authors.py --checkouts DIR --checkpoint deit_tiny.safetensors --images DIR [--count 6]

Their code runs as it is, beside ours with the pixels of a patch in numpy's default order, which differs by machine.
With --stable both have them in a certain order, as ``mda(compat=authors)`` has.
"""

import argparse
import importlib
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import vitrail
from vitrail.method.mda import authors as mda_authors

MDA = "MDA-Metric-Driven-Attributions-for-ViT"
TIS = "Transformer_Input_Sampling"


class Theirs(NamedTuple):
    """What the authors' MDA gives for one image: the order, one value a segment, and how long it took."""

    order: np.ndarray
    sparse: np.ndarray
    dense: np.ndarray
    width: int
    seconds: float


def mda_code(checkouts: Path) -> tuple[ModuleType, ModuleType, ModuleType, ModuleType]:
    sys.path.insert(0, str(checkouts / MDA))
    lrp = "util.attribution_methods.VIT_LRP"
    names = ("util.attribution_methods.MDAFunctions", "util.test_methods.MASTestFunctions")
    names += (f"{lrp}.ViT_explanation_generator", f"{lrp}.ViT_new_timm")
    functions, metric, generator, network = (importlib.import_module(name) for name in names)
    return functions, metric, generator, network


def mda_model(network: ModuleType, checkpoint: Path, device: torch.device) -> nn.Module:
    """DeiT-tiny in their forked ViT."""
    from safetensors.torch import load_file

    model = network.VisionTransformer(
        patch_size=16,
        embed_dim=192,
        depth=12,
        num_heads=3,
        mlp_ratio=4,
        qkv_bias=True,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    model.load_state_dict({key: value.float() for key, value in load_file(checkpoint).items()}, strict=False)
    return model.eval().to(device)


def run_mda(
    code: tuple[ModuleType, ...], model: nn.Module, image: Tensor, patches: int = 196, stable: bool = False
) -> Theirs:
    """Their MDATest "Calibrate" on one (1, 3, 224, 224) input, timed without the search for a blur.

    ``stable`` sorts pixels stably in their metric, whose default routine leaves the order of equal pixels to chance.
    """
    functions, metric, generator, _ = code
    device = image.device.type if image.device.type == "cpu" else "cuda:0"
    with torch.no_grad():
        target = int(model(image).argmax())
    width, level = 29, 1.0
    while level > 0.01 and width <= 101:
        width += 2
        kernel = metric.gkern(width, width)
        blur = partial(_convolved, kernel)
        with torch.no_grad():
            level = float(model(blur(image.cpu()).to(image.device)).softmax(1)[0, target])
    whole_numpy_sort = np.argsort
    if stable:
        np.argsort = partial(whole_numpy_sort, kind="stable")
    start = time.perf_counter()
    try:
        heat, _ = generator.Baselines(model).bidirectional(image, target, device=device)
        side = int(patches**0.5)
        enlarged = nn.functional.interpolate(
            heat.detach().cpu().float().reshape(1, 1, 14, 14), (224, 224), mode="bilinear"
        )
        saliency = enlarged[0].repeat(3, 1, 1)
        resize = importlib.import_module("torchvision.transforms")
        small = resize.Resize(side)(saliency)
        seed = resize.Resize((224, 224), resize.InterpolationMode.NEAREST_EXACT)(small).permute(1, 2, 0)
        raw = image[0].cpu().permute(1, 2, 0).numpy()
        raw = (raw - raw.min()) / (raw.max() - raw.min())
        slic = functions.slic(functions.img_as_float(raw), n_segments=patches, compactness=10000, start_label=0)
        segments = torch.tensor(slic, dtype=int)
        common = {"model": model, "device": device, "img_hw": 224}
        _, _, first, response = functions.find_insertion_patches(
            image.cpu(), seed, segments, blur, patches, type=1, max_batch_size=25, **common
        )
        end = np.where(response >= 0.9)[0][0]
        sparse, _, _, _, dense, _, order = functions.find_deletion_patches(
            image.cpu(), segments, seed, first[: end + 1], blur, patches, max_batch_size=25, **common
        )
        if image.device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - start
    finally:
        np.argsort = whole_numpy_sort
    flat = segments.flatten().numpy()
    firsts = np.array([np.flatnonzero(flat == s)[0] for s in range(patches)])
    one = [m[:, :, 0].reshape(-1)[firsts] for m in (sparse, dense)]
    return Theirs(order.numpy().astype(np.int64), one[0], one[1], width, taken)


def _convolved(kernel: Tensor, x: Tensor) -> Tensor:
    return nn.functional.conv2d(x, kernel, padding=kernel.shape[-1] // 2)


def authors_mda(checkouts: Path, checkpoint: Path, images: Tensor) -> float:
    """Seconds an image, the median."""
    code = mda_code(checkouts)
    model = mda_model(code[3], checkpoint, images.device)
    runs = [run_mda(code, model, images[i : i + 1]) for i in range(len(images))]
    return statistics.median(run.seconds for run in runs)


def authors_mas(checkouts: Path, model: Any, images: Tensor) -> float:
    """Seconds an image of their insertion and deletion with MAS, 224 steps; the median after a warm-up."""
    metric = mda_code(checkouts)[1]
    blur, blank = partial(_convolved, metric.gkern(31, 31)), torch.zeros_like
    tests = [metric.MASMetric(model, 224 * 224, *how) for how in (("ins", 224, blur), ("del", 224, blank))]
    device = images.device.type if images.device.type == "cpu" else "cuda:0"
    times = []
    for i in range(6):
        heat = np.random.default_rng(i).random((224, 224))
        start = time.perf_counter()
        for test in tests:
            test.single_run(images[i % len(images) : i % len(images) + 1].cpu(), heat, device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def authors_tis(checkouts: Path, model: Any, images: Tensor) -> float:
    """Seconds an image, the median of five after a warm-up."""
    sys.path.insert(0, str(checkouts / TIS))
    tis = importlib.import_module("tis.tis").TIS(model, verbose=False)
    times = []
    for i in range(6):
        if images.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        tis(images[i % len(images)])
        if images.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--checkouts", "--checkpoint", "--images"):
        options.add_argument(name, type=Path, required=True)
    options.add_argument("--count", type=int, default=6)
    options.add_argument("--patches", type=int, default=196)
    options.add_argument("--stable", action="store_true")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = options.parse_args()
    code = mda_code(given.checkouts)
    model = mda_model(code[3], given.checkpoint, torch.device(given.device))
    view = vitrail.load("timm/deit_tiny_patch16_224", given.checkpoint, device=given.device)
    mda_authors.STABLE = given.stable
    print("Largest differences of the maps, over their largest values:")
    print("| image | order | sparse | dense |\n|---|---|---|---|")
    for path in sorted(given.images.iterdir())[: given.count]:
        image = view.preprocess.batch([path]).to(given.device)
        try:
            theirs = run_mda(code, model, image, given.patches, given.stable)
        except IndexError:  # where insertion never gets to its end
            print(f"| {path.name} | their code gives up | | |", flush=True)
            continue
        spec = f"mda(cells={round(given.patches**0.5)}, compat=authors)"
        found = vitrail.explain(view, image, spec, progress=False).extras
        order = "equal" if found["order"][0].tolist() == theirs.order.tolist() else "not equal"
        sparse, dense = (
            np.abs(found[name].flatten().numpy() - values).max() / values.max()
            for name, values in (("sparse", theirs.sparse), ("dense", theirs.dense))
        )
        print(f"| {path.name} | {order} | {sparse:.0e} | {dense:.0e} |", flush=True)


if __name__ == "__main__":
    main()
