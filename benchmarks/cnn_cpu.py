"""CNNs on a CPU: channels side by side, freed memory kept, batch norms' gradients, shared passes; each as a ratio.

    python benchmarks/cnn_cpu.py [--model resnet50] [--batch 8] [--repeats 3]

The model has random weights, pictures are noise. Memory is kept as the command line does, for the whole process, so
that side comes last.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import timm
import torch

from vitrail.cli import keep_freed_memory
from vitrail.method import Batch, parse
from vitrail.model import Target, View, load
from vitrail.model import view as running


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """Median wall time, the first call left out."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def passes(view: View, images: torch.Tensor, repeats: int) -> tuple[float, float]:
    """Forward passes a second, and passes with a gradient at the pixels."""

    def forward() -> None:
        with torch.no_grad():
            view.logits(images)

    def backward() -> None:
        trace = view.trace(images, pixels=True)
        view.gradient(trace.logits[:, 0], [trace.images])

    with mock.patch.object(running, "FixedNorm", nullcontext):  # torch's batch norms: `gradients` has ours
        return len(images) / seconds(forward, repeats), len(images) / seconds(backward, repeats)


def gradients(view: View, images: torch.Tensor, count: int, repeats: int) -> tuple[float, float]:
    """Seconds an image for the gradients of so many classes: batch norms left to torch, and as one product."""

    def call() -> None:
        trace = view.trace(images, pixels=True)
        for c in range(count):
            view.gradient(trace.logits[:, c], [trace.images], again=c < count - 1)

    with view.still():
        with mock.patch.object(running, "FixedNorm", nullcontext):
            torchs = seconds(call, repeats)
        return torchs / len(images), seconds(call, repeats) / len(images)


def classes(view: View, images: torch.Tensor, spec: str, repeats: int) -> tuple[float, float]:
    """Seconds an image for the maps of six classes: one after the other, and together."""
    method, targets = parse(spec), [Target(torch.full((len(images),), c)) for c in range(6)]

    def alone() -> None:
        for target in targets:
            method.maps(view, Batch(images, target))

    def together() -> None:
        with view.remembering(images):
            method.maps_of(view, Batch(images), targets)

    with view.still():
        return seconds(alone, repeats) / len(images), seconds(together, repeats) / len(images)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="resnet50")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    torch.manual_seed(0)
    view = load(timm.create_model(given.model).eval(), size=(224, 224), device="cpu")
    images = torch.randn(given.batch, 3, 224, 224)
    print(f"{given.model}, batch {given.batch}, {torch.get_num_threads()} threads; passes a second")
    first = None
    for kept in (False, True):
        if kept:
            keep_freed_memory()
        for side_by_side in (False, True):
            view._channels_last = side_by_side  # what the view would find out by itself
            found = passes(view, images, given.repeats)
            first = first or found
            order, memory = "side by side" if side_by_side else "one by one", "kept" if kept else "freed"
            ratios = " and ".join(f"{now / then:.1f} x" for now, then in zip(found, first))
            print(
                f"  channels {order:<12}, memory {memory:<5}: {found[0]:6.1f}, with gradients {found[1]:6.1f}; {ratios}"
            )
    print("seconds an image for a forward pass and gradients at the pixels")
    for count in (1, 6):
        torchs, ours = gradients(view, images, count, given.repeats)
        print(f"  {count} classes: torch's batch norms {torchs:.4f}, one product {ours:.4f}; {torchs / ours:.2f} x")
    print("seconds an image for the maps of six classes")
    for spec in ("lrp(wide=False)", "lrp", "ig(steps=8)", "smoothgrad(samples=4)"):
        alone, together = classes(view, images, spec, given.repeats)
        print(f"  {spec:<21}: one by one {alone:.3f}, together {together:.3f}; {alone / together:.1f} x")


if __name__ == "__main__":
    main()
