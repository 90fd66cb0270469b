"""Our metrics against the authors' own code, on real weights and real images."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.metric_goldens import FOLDER, Golden, names

TOLERANCE = 1e-4


@cache
def golden(name: str, assets: Path) -> Golden:
    """One file for all its specs, which share the model's answers."""
    return Golden(name, assets)


def stored() -> list[Any]:
    """File and number of every spec, the long ones marked."""
    found = []
    for name in names():
        with np.load(FOLDER / f"{name}.npz") as file:
            for i, (spec, slow) in enumerate(zip(file["specs"], file["slow"])):
                found.append(pytest.param(name, i, marks=[pytest.mark.slow] * bool(slow), id=f"{name}-{spec}"))
    return found


@pytest.mark.parametrize(("name", "number"), stored())
def test_agrees_with_the_authors_code(assets: Path, name: str, number: int) -> None:
    found = golden(name, assets).agreement(number)
    assert found.curve is None or found.curve <= TOLERANCE
    assert found.value <= TOLERANCE
