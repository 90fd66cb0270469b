"""Maps that the authors' own code gave for DeiT-tiny on three validation images, and how ours compare with them.

Each ``tests/golden/NAME.npz`` holds ``maps`` (3, 14, 14), the ``spec`` of ours that must give the same, the ``source``
(repository and commit) and the ``tolerance`` of the largest error, relative to the largest absolute value of the map.
The class explained is the predicted one. Of maps with a value for every pixel the sums over the 14 x 14 patches are
stored, and ours are summed up the same way before they are compared.

The stored maps are float32 where nothing else is said, and ours are compared in float64: what is left is the rounding
of the stored ones, the same on every machine. How far our float32 lies from float64 is tests/method/test_precision.py.
"""

import copy
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vitrail.model import View, load

IMAGES = ("ILSVRC2012_val_00000293.jpg", "ILSVRC2012_val_00002138.jpg", "ILSVRC2012_val_00000236.jpg")
FOLDER = Path(__file__).parents[1] / "golden"


class Agreement(NamedTuple):
    """How close two sets of maps are, the worst of the images."""

    pearson: float
    error: float


@cache
def deit_tiny(assets: Path) -> View:
    """DeiT-tiny with its real weights."""
    checkpoint = assets / "weights/deit_tiny_patch16_224.safetensors"
    return load("timm/deit_tiny_patch16_224", checkpoint, device="cpu")


@cache
def deit_tiny_wide(assets: Path) -> View:
    """The same in float64."""
    view = deit_tiny(assets)
    return load(copy.deepcopy(view.model).double(), size=view.size)


def inputs(assets: Path) -> torch.Tensor:
    """(3, 3, 224, 224) model inputs: resize to 248, bicubic, centre crop, ImageNet normalisation."""
    folder = assets / "data/imagenet_val/images"
    return deit_tiny(assets).preprocess.batch([folder / name for name in IMAGES])


def agreement(found: np.ndarray, expected: np.ndarray) -> Agreement:
    """The lowest correlation and the largest error, relative to the largest absolute value of each map.

    Maps that are finer than the expected ones by a whole factor are summed up to their size. Where a map is zero
    everywhere, as one without any positive part is behind a ReLU, only another such map agrees with it.
    """
    pairs = list(zip(pooled(found, expected.shape), expected.astype(np.float64)))
    with np.errstate(divide="ignore", invalid="ignore"):
        pearson = [1.0 if np.array_equal(a, b) else np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in pairs]
        error = [0.0 if np.array_equal(a, b) else np.abs(a - b).max() / np.abs(b).max() for a, b in pairs]
    return Agreement(float(np.min(pearson)), float(np.max(error)))  # unlike min and max, these pass nan on


def pooled(maps: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(B, H, W) maps summed over equal tiles, so that they have ``shape``."""
    (batch, rows, columns), (height, width) = shape, maps.shape[1:]
    if len(maps) != batch or height % rows or width % columns:
        raise ValueError(f"maps of shape {maps.shape} cannot be summed up to {shape}")
    return maps.astype(np.float64).reshape(batch, rows, height // rows, columns, width // columns).sum((2, 4))


def store(name: str, maps: np.ndarray, spec: str, source: str, tolerance: float) -> None:
    """Write one golden file; used once, beside the authors' code."""
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        maps=np.asarray(maps, np.float32),
        spec=spec,
        source=source,
        tolerance=tolerance,
    )
