"""SkipPLUS(DecompX) from one pass against the forward decomposition repeated for every start layer: time and memory.

    python benchmarks/skipplus.py [--repeats 3]

The other side is the slow, obvious form that the tests judge by: the published code runs one decomposed forward pass,
with tokens x tokens x channels tensors, for every start layer. ViT-tiny/16, one image, CPU; equal results are checked.
Memory is the largest sum of tensors alive at once during the call, as torch's profiler sees them.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import timm
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from vitrail.method import SkipPlus
from vitrail.model import load

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from oracles.decompx import decompx


def seconds(call: Callable[[], Tensor], repeats: int) -> float:
    """Median wall time."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_megabytes(call: Callable[[], Tensor]) -> float:
    """The largest sum of bytes allocated and not yet freed during the call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(accumulate(change for _, change in changes)) / 2**20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    torch.manual_seed(0)
    model, image = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval(), torch.randn(1, 3, 224, 224)
    view = load(model)

    def one_pass() -> Tensor:
        return SkipPlus().attribute(view, image, 3).flatten()

    def every_layer() -> Tensor:
        return sum(decompx(model, image[0], 3, layer) for layer in range(6, 12))

    expected, found = every_layer(), one_pass()
    error = float((found - expected).norm() / expected.norm())
    assert error < 1e-3, f"the two forms disagree: {error:.1e}"
    slow, fast = seconds(every_layer, 1), seconds(one_pass, given.repeats)
    slow_peak, fast_peak = peak_megabytes(every_layer), peak_megabytes(one_pass)
    print(f"SkipPLUS(DecompX), ViT-tiny/16, one image, 6 start layers, CPU; results agree to {error:.0e}")
    print(f"{'':28}{'seconds':>10}{'peak MB':>10}")
    print(f"{'forward decompositions':28}{slow:10.2f}{slow_peak:10.0f}")
    print(f"{'vitrail, one pass':28}{fast:10.3f}{fast_peak:10.0f}")
    print(f"{'ratio':28}{slow / fast:9.0f}x{slow_peak / fast_peak:9.0f}x")


if __name__ == "__main__":
    main()
