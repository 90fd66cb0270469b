"""MDA as its authors' code computes it, on real weights and real images: the same order of all patches, and one map.

``golden/injected/mda.npz`` holds what their code gives at its own settings, with cvxopt's default tolerances. Only
pixels were sorted stably, because numpy's usual order of equal ones differs by machine. For each image it also holds
the two ``curves`` that they fit, and what cvxopt ``fitted``.
"""

from pathlib import Path

import numpy as np
import pytest

import vitrail
from helpers.goldens import FOLDER, deit_tiny

STORED = FOLDER / "injected" / "mda.npz"


def names(patches: int) -> list[str]:
    with np.load(STORED) as stored:
        return sorted({key.split("/")[1] for key in stored.files if key.startswith(f"{patches}/")})


def agrees(assets: Path, patches: int, name: str) -> None:
    side = round(patches**0.5)
    image = assets / "data/imagenet_val/images" / name
    found = vitrail.explain(deit_tiny(assets), image, f"mda(cells={side}, compat=authors)")
    with np.load(STORED) as stored:
        order, sparse, dense = (stored[f"{patches}/{name}/{what}"] for what in ("order", "sparse", "dense"))
    assert found.extras["order"][0].tolist() == order.tolist()
    for ours, theirs in ((found.extras["sparse"], sparse), (found.extras["dense"], dense)):
        assert np.abs(ours.flatten().numpy() - theirs).max() <= 1e-4 * theirs.max()


@pytest.mark.slow
@pytest.mark.parametrize("name", names(49))
def test_agrees_with_the_authors_code(assets: Path, name: str) -> None:
    agrees(assets, 49, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", names(196))
def test_agrees_on_the_models_own_patches(assets: Path, name: str) -> None:
    agrees(assets, 196, name)
