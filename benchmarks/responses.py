"""Methods that live on the model's responses: seconds an image, beside the authors' code and beside the roofline.

    python benchmarks/responses.py --checkpoint deit_tiny.safetensors --images DIR [--checkouts DIR] [--batch 32]
    python benchmarks/responses.py --model timm/vit_base_patch16_224 [--batch 32]

The roofline is the model's best plain forward throughput at that token count and precision, in the same run. The
checkouts, made by whoever runs this, are MDA-Metric-Driven-Attributions-for-ViT (with its MAS code) and
Transformer_Input_Sampling; theirs take one image at a time. Without --checkpoint the weights are random: the number
of passes does not depend on them, in MDA neither on where insertion stops. Every precision has a process of its own.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import timm
import torch
from mda_authors import authors_mas, authors_mda, authors_tis
from torch import Tensor

import vitrail
from vitrail.metric import Case, parse
from vitrail.model import Target, View
from vitrail.perturb import roofline

T = TypeVar("T")

METHODS = ("mda", "tis", "rise(masks=4000)")

OWN = "fp32, the model's own code"
PRECISIONS = {"fp32": (True, False), OWN: (False, False), "tf32": (False, True), "bf16": (True, False)}
"""Which are run: whether by our own kernels, and whether compiled."""


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], T], device: torch.device, repeats: int) -> tuple[float, T]:
    """Median wall time after two warm-up calls, and what the last call gave."""
    times = []
    for _ in range(repeats + 2):
        wait(device)
        start = time.perf_counter()
        found = call()
        wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]), found


def forwards(view: View, images: Tensor, spec: str) -> int:
    """Explain, or measure; returns the forward passes made."""
    if spec == "insertion + deletion":
        return insertion_and_deletion(view, images)
    return vitrail.explain(view, images, spec, batch=len(images)).forwards


def insertion_and_deletion(view: View, images: Tensor) -> int:
    """Both metrics, 224 steps of 224 pixels, of maps without ties; returns the forward passes."""
    before = view.meter.forwards
    maps = torch.rand(len(images), *images.shape[2:], generator=torch.Generator().manual_seed(0))
    case = Case(view, images, maps, Target(torch.zeros(len(images), dtype=torch.long)))
    for spec in ("insertion", "deletion"):
        parse(spec).measure(case).sum().item()
    return view.meter.forwards - before


def compare(view: View, images: Tensor, repeats: int, theirs: dict[str, float], name: str, compile_too: bool) -> None:
    layout = view.layout((images.shape[2], images.shape[3]))
    half = layout.prefix + layout.patches // 2
    fused, compiled = PRECISIONS[name]
    with view.using(name.split(",")[0], compiled, fused):
        rates = {n: roofline(view, tokens=n, compile_too=compile_too) for n in (layout.tokens, half)}
        for spec in (*METHODS, "insertion + deletion"):
            taken, passes = seconds(lambda: forwards(view, images, spec), view.device, repeats)  # noqa: B023
            passes /= len(images)
            each = taken / len(images)
            rate = rates[half if spec == "tis" else layout.tokens]
            other = theirs.get(spec)
            beside = "| | |" if other is None else f"| {other:.3f} | {other / each:.1f} x |"
            share = passes / each / rate
            print(f"| `{spec}` | {name} | {each:.4f} | {passes:.0f} | {rate:.0f} | {share:.0%} {beside}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="timm/deit_tiny_patch16_224")
    options.add_argument("--checkpoint", type=Path)
    options.add_argument("--images", type=Path)
    options.add_argument("--checkouts", type=Path)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument(
        "--compile-too", action="store_true", help="let the roofline try the compiled model, a minute each"
    )
    options.add_argument("--precision", choices=PRECISIONS, help="this one alone, in this process")
    options.add_argument("--theirs", type=float, nargs=3, help="seconds an image of the authors' MDA, TIS and MAS")
    given = options.parse_args()
    if given.checkpoint is None:
        torch.manual_seed(0)
        model = timm.create_model(given.model.removeprefix("timm/"))
        view = vitrail.load(model, device=given.device)
        view.name = f"{given.model}, random weights"
    else:
        view = vitrail.load(given.model, given.checkpoint, device=given.device)
    if given.images is None:
        images = torch.randn(given.batch, 3, *view.size, generator=torch.Generator().manual_seed(0))
    else:
        images = view.preprocess.batch(sorted(given.images.iterdir())[: given.batch])
    images = images.to(view.device)
    if given.precision is not None:
        theirs = dict(zip(("mda", "tis", "insertion + deletion"), given.theirs or ()))
        return compare(view, images, given.repeats, theirs, given.precision, given.compile_too)
    print(f"{view.name}, {view.device.type}, batch {len(images)}, torch {torch.__version__}")
    print("| method | precision | s an image | passes an image | roofline, passes/s | share | authors, s | ratio |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    more: list[str] = []
    if given.checkouts is not None:
        seconds_of = [
            authors_mda(given.checkouts, given.checkpoint, images[:3]),
            authors_tis(given.checkouts, view.model, images[:3]),
            authors_mas(given.checkouts, view.model, images[:3]),
        ]
        more = ["--theirs", *map(str, seconds_of)]
    for precision in PRECISIONS if view.device.type == "cuda" else ("fp32",):
        subprocess.run([sys.executable, *sys.argv, "--precision", precision, *more], check=False)
    return None


if __name__ == "__main__":
    main()
