"""Is the paper's MDA, vitrail's default, as good as what its authors' code does, and does half precision cost quality?

    python benchmarks/mda_quality.py --checkpoint deit_tiny.safetensors --images DIR [--count 40]

Insertion and deletion as in MDA's tables: 224 steps of 224 pixels, each image's own blur and zeros, responses
normalised and made monotone; MAS takes off (or adds) the distance between response and density. Images whose predicted
class has 60 % or more, and whose probability some blur brings below 1 %. Paired differences with 95 % bootstrap
intervals.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

import vitrail
from vitrail.metric import PRESETS, parse
from vitrail.metric.statistics import paired_bootstrap
from vitrail.model import Target, View
from vitrail.perturb import AdaptiveBlur

RUNS = (
    ("mda(compat=authors)", "fp32"),
    ("mda", "fp32"),
    ("mda", "tf32"),
    ("mda", "bf16"),
    ("mda", "fp16"),
    ("bt_h", "fp32"),
    ("plus(decompx)", "fp32"),
)
METRICS = [parse(spec).spec for spec in PRESETS["mda"].metrics[:4]]  # insertion, deletion, and both with MAS


def chosen(view: View, folder: Path, count: int) -> tuple[Tensor, Target]:
    """The first images that MDA's protocol takes, and their classes."""
    images, classes = [], []
    paths = sorted(folder.iterdir())
    for first in range(0, len(paths), 64):
        inputs = view.preprocess.batch(paths[first : first + 64]).to(view.device)
        with view.still(), torch.no_grad():
            sure, predicted = view.logits(inputs).softmax(1).max(1)
        _, widths = AdaptiveBlur().search(view, inputs, Target(predicted))
        keep = (sure >= 0.6) & (widths.to(sure.device) > 0)
        images.append(inputs[keep])
        classes.append(predicted[keep])
        if sum(map(len, images)) >= count:
            break
    return torch.cat(images)[:count], Target(torch.cat(classes)[:count])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--images", type=Path, required=True)
    options.add_argument("--count", type=int, default=40)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = options.parse_args()
    view = vitrail.load("timm/deit_tiny_patch16_224", given.checkpoint, device=given.device)
    images, target = chosen(view, given.images, given.count)
    print(f"DeiT-tiny, {len(images)} images, {given.device}, torch {torch.__version__}")
    found = {
        f"{spec}, {precision}": vitrail.explain(
            view, images, spec, target.classes, batch=given.count, precision=precision, progress=False
        )
        for spec, precision in RUNS
    }
    scores = vitrail.evaluate(view, images, found, METRICS)
    print(scores.table(), flush=True)
    for one, other in (
        ("mda, fp32", "mda(compat=authors), fp32"),
        ("mda, bf16", "mda, fp32"),
        ("mda, fp16", "mda, fp32"),
        ("mda, tf32", "mda, fp32"),
    ):
        for up, down in (METRICS[:2], METRICS[2:]):
            gap = paired_bootstrap(*(scores.row(up, name).each - scores.row(down, name).each for name in (one, other)))
            both = [scores.row(up, name).value - scores.row(down, name).value for name in (one, other)]
            words = f"{parse(up).id} - {parse(down).id}, {one} {both[0]:.4f} minus {other} {both[1]:.4f}"
            print(f"{words}: {gap.mean:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})")


if __name__ == "__main__":
    main()
