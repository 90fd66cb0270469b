"""Is the paper's MDA, vitrail's default, as good as what its authors' code does, and does bf16 cost quality?

    python benchmarks/mda_quality.py --checkpoint deit_tiny.safetensors --images DIR [--count 40]

Insertion and deletion as in MDA's tables: 224 steps of 224 pixels, each image's own blur and zeros, responses
normalised and made monotone; MAS takes off (or adds) the distance between response and density. Images whose predicted
class has 60 % or more, and whose probability some blur brings below 1 %. Paired differences with 95 % bootstrap
intervals.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import vitrail
from vitrail.method import parse
from vitrail.method.mda_authors import shifted_labels
from vitrail.metric import Curve, deletion, insertion
from vitrail.model import Target, View
from vitrail.perturb import AdaptiveBlur, grid_labels

RUNS = (
    ("mda(compat=authors)", "fp32"),
    ("mda", "fp32"),
    ("mda", "tf32"),
    ("mda", "bf16"),
    ("bt_h", "fp32"),
    ("plus(decompx)", "fp32"),
)
NAMES = ("Ins", "Del", "Ins-Del", "MAS Ins", "MAS Del", "MAS Ins-Del")


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


def scores(view: View, images: Tensor, target: Target, heat: Tensor) -> np.ndarray:
    """(B, 6) of (B, H, W) maps."""
    how = {"target": target.classes, "step": 224}
    curves = (
        insertion(view, images, heat.abs(), baseline="adaptive_blur", **how),
        deletion(view, images, heat.abs(), **how),
    )
    plain, aligned = (
        [each(curve).area().cpu().numpy() for curve in curves] for each in (Curve.monotone, Curve.aligned)
    )
    columns = [(up, down, up - down) for up, down in (plain, aligned)]
    return np.stack([column for three in columns for column in three], 1)


def enlarged(spec: str, maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, H, W): MDA's maps are constant on their patches, others are enlarged smoothly."""
    if not spec.startswith("mda"):
        return torch.nn.functional.interpolate(maps[:, None], size, mode="bilinear")[:, 0]
    grid = (maps.shape[1], maps.shape[2])
    labels = shifted_labels(size, grid) if parse(spec).config["compat"] == "authors" else grid_labels(size, grid)
    return maps.flatten(1)[:, labels]


def interval(difference: np.ndarray) -> tuple[float, float]:
    draws = np.random.default_rng(0).choice(difference, (4000, len(difference)))
    low, high = np.quantile(draws.mean(1), [0.025, 0.975])
    return float(low), float(high)


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
    print(f"| spec | precision | {' | '.join(NAMES)} |\n|---|---|{'---|' * len(NAMES)}", flush=True)
    table = {}
    for spec, precision in RUNS:
        found = vitrail.explain(
            view, images, spec, target.classes, batch=given.count, precision=precision, progress=False
        )
        table[spec, precision] = scores(view, images, target, enlarged(spec, found.maps, view.size))
        means = " | ".join(f"{x:.3f}" for x in table[spec, precision].mean(0))
        print(f"| `{spec}` | {precision} | {means} |", flush=True)
    authors, paper = table["mda(compat=authors)", "fp32"], table["mda", "fp32"]
    for words, difference in (
        ("default minus authors", paper - authors),
        ("bf16 minus fp32", table["mda", "bf16"] - paper),
        ("tf32 minus fp32", table["mda", "tf32"] - paper),
    ):
        for j in (2, 5):
            low, high = interval(difference[:, j])
            print(f"{words}, {NAMES[j]}: {difference[:, j].mean():+.4f} ({low:+.4f} to {high:+.4f})")


if __name__ == "__main__":
    main()
