"""Maps that the authors' own code gave for DeiT-tiny on three validation images, and how ours compare with them.

Each ``tests/golden/NAME.npz`` holds ``maps`` (3, 14, 14), the ``spec`` of ours that must give the same, the ``source``
(repository and commit) and the ``tolerance`` of the largest error, relative to the largest absolute value of the map.
The class explained is the predicted one.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vitrail.model import View, load

IMAGES = ("ILSVRC2012_val_00000293.jpg", "ILSVRC2012_val_00002138.jpg", "ILSVRC2012_val_00000236.jpg")
FOLDER = Path(__file__).parent / "golden"


class Agreement(NamedTuple):
    """How close two sets of maps are, the worst of the images."""

    pearson: float
    error: float


@cache
def deit_tiny(assets: Path) -> View:
    """DeiT-tiny with its real weights."""
    checkpoint = assets / "weights/deit_tiny_patch16_224.safetensors"
    return load("timm/deit_tiny_patch16_224", checkpoint, device="cpu")


def inputs(assets: Path) -> torch.Tensor:
    """(3, 3, 224, 224) model inputs: resize to 248, bicubic, centre crop, ImageNet normalisation."""
    folder = assets / "data/imagenet_val/images"
    return deit_tiny(assets).preprocess.batch([folder / name for name in IMAGES])


def agreement(found: np.ndarray, expected: np.ndarray) -> Agreement:
    """The lowest correlation and the largest error, relative to the largest absolute value of each map."""
    pearson = min(np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(found, expected))
    error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected))
    return Agreement(float(pearson), error)


def store(name: str, maps: np.ndarray, spec: str, source: str, tolerance: float) -> None:
    """Write one golden file; used once, beside the authors' code."""
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        maps=np.asarray(maps, np.float32),
        spec=spec,
        source=source,
        tolerance=tolerance,
    )
