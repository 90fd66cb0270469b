"""Our maps against those of the authors' own code, on real weights and real images."""

from pathlib import Path

import numpy as np
import pytest

import vitrail
from helpers.goldens import FOLDER, agreement, deit_tiny_wide, inputs

NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))
LONG = ("decompx_absdot", "pgc_ablationcam", "pgc_scorecam")
"""Compared on the first image alone, in the long run; docs/make_agreement.py compares all three."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in NAMES])
def test_agrees_with_the_authors_code(assets: Path, name: str) -> None:
    agrees(assets, name, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*NAMES} - {*LONG}))
def test_agrees_on_more_images(assets: Path, name: str) -> None:
    agrees(assets, name, 3)


def agrees(assets: Path, name: str, count: int) -> None:
    with np.load(FOLDER / f"{name}.npz") as stored:
        maps, spec, tolerance = stored["maps"], str(stored["spec"]), float(stored["tolerance"])
    assert tolerance <= 1e-3
    found = vitrail.explain(deit_tiny_wide(assets), inputs(assets)[:count].double(), spec).maps.numpy()
    close = agreement(found, maps[:count])
    assert close.pearson > 0.9999
    assert close.error <= tolerance
