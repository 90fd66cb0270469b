"""How does a run grow? Its time by the number of images, of patches and of methods, as a table and a plot.

    python benchmarks/scaling.py [--device cuda] [--images 128] [--precision fp32] [--out docs/images/scaling.png]

A ViT-tiny/16 with chance weights on drawn scenes; `rise`, which asks the model often, and gradient methods, each judged
by insertion and deletion in 32 steps. One thing changes at a time. The first, small run of each model is not counted.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitrail import show
from vitrail.bench import Plan, run

MODELS = Path(__file__).with_name("models.py")
METHODS = ("rise(masks=256)", "genatt", "ixg", "gradcam", "decompx", "legrad", "saliency", "random")


def plan(side: int, images: int, methods: int, precision: str) -> Plan:
    step = side * side // 32
    return Plan(
        f"{MODELS}:vit_tiny_{side}",
        f"scenes:{images}",
        METHODS[:methods],
        (f"insertion(step={step})", f"deletion(step={step})"),
        chunk=32,
        precision=precision,
    )


def timed(wanted: Plan, device: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run(replace(wanted, data="scenes:1"), f"{folder}/warm", device=device)
        start = time.perf_counter()
        run(wanted, f"{folder}/run", device=device)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    most = given.images
    cases = {
        "images": [(n, plan(224, n, 2, given.precision)) for n in (most // 8, most // 4, most // 2, most)],
        "patches": [((s // 16) ** 2, plan(s, most // 4, 2, given.precision)) for s in (112, 160, 224, 320, 448)],
        "methods": [(n, plan(224, most // 4, n, given.precision)) for n in (1, 2, 4, 8)],
    }
    panels = []
    for what, entries in cases.items():
        places = np.array([place for place, _ in entries], dtype=float)
        seconds = np.array([timed(wanted, given.device) for _, wanted in entries])
        slope = np.polyfit(np.log(places), np.log(seconds), 1)[0]
        for place, value in zip(places, seconds):
            print(f"{what:8} {place:6.0f}: {value:8.2f} s", flush=True)
        print(f"{what:8} grows with the power {slope:.2f}", flush=True)
        nothing = np.full(len(places), np.nan)
        panels.append(show.Panel(f"seconds by {what}", [show.Track(what, places, seconds, seconds, seconds, nothing)]))
    if given.out is not None:
        given.out.write_bytes(show.sweep(panels, across="how many", title=f"A run on {given.device}"))


if __name__ == "__main__":
    main()
