"""HSIC against its matrices, written out; and what the methods over cells have in common."""

import numpy as np
import pytest
import torch

import vitrail
from helpers.games import Quadratic
from helpers.oracle import oracle
from helpers.small import build, close, exact
from helpers.zoo import pictures
from oracles import perturbation as slow
from vitrail.method import Batch, parse
from vitrail.method.perturbation.hsic import dependence, latin_hypercube, sobol
from vitrail.model import load

TARGETS = [3, 5]


@oracle("hsic")
@pytest.mark.parametrize("design", ["lhs", "sobol"])
@pytest.mark.parametrize("bandwidth", ["distances", "outputs"])
def test_agrees_with_full_matrices(design: str, bandwidth: str) -> None:
    model, images = build("class token"), pictures(2, (64, 64)).double()
    found = exact(f"hsic(designs=21, grid=2, design={design}, bandwidth={bandwidth}, seed=1)", model, images, TARGETS)
    draw = latin_hypercube if design == "lhs" else sobol
    for i, target in enumerate(TARGETS):
        shown = draw(21, 4, Batch(images).generator(i, 1)).numpy()
        value = slow.coalition_value(model, images[i], target, (2, 2), "logit")
        scores = np.array([value(frozenset(np.flatnonzero(row).tolist())) for row in shown])
        gaps = [abs(a - b) for k, a in enumerate(scores) for b in scores[:k]]
        width = np.sort(gaps)[(len(gaps) - 1) // 2] if bandwidth == "distances" else np.median(scores)
        assert close(found[i].flatten(), slow.hsic(shown, scores, width))


def test_designs_show_half() -> None:
    generator = torch.Generator().manual_seed(0)
    assert (latin_hypercube(500, 64, generator).sum(0) == 250).all()
    assert (sobol(512, 64, generator).sum(0) == 256).all()
    assert sobol(500, 64, generator).shape == (500, 64)


def test_finds_the_cell_that_matters_however_it_does() -> None:
    game = Quadratic()
    with torch.no_grad():
        game.pairs.zero_()
        game.pairs[2, 2] = -1
    found = exact("hsic(designs=64, grid=2)", load(game, size=(32, 32)), pictures(1, (32, 32)).double(), 0).flatten()
    assert found.argmax() == 2
    assert found.min() >= 0
    assert found[2] > 10 * found[[0, 1, 3]].max()


def test_equal_scores_depend_on_nothing() -> None:
    shown = latin_hypercube(20, 4, torch.Generator().manual_seed(0))
    assert torch.equal(dependence(shown, torch.full((20,), 0.5)), torch.zeros(4))
    assert torch.equal(dependence(shown, torch.zeros(20), "outputs"), torch.zeros(4))


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(vitrail.InputError, match="designs to be 2 to 10,000, but designs=1"):
        parse("hsic(designs=1)")


# --------------------------------------------------------------------------------------------- what they all promise

FAMILY = [
    "rise(masks=5)",
    "occlusion(window=32, stride=24)",
    "pami(window=32, stride=32)",
    "lime(samples=5)",
    "kernel_shap(samples=5)",
    "kernel_shap(grid=2)",
    "shapley(samples=1, grid=3)",
    "shapley(samples=2, antithetic=False, grid=2)",
    "hsic(designs=5)",
]


@pytest.mark.parametrize("spec", FAMILY)
def test_forward_passes_are_foretold(spec: str) -> None:
    view = load(build("class token"))
    before = view.meter.forwards
    method = parse(spec)
    exact(method, view, pictures(3, (64, 64)).double(), 1)
    expected = method.passes(view, (64, 64)).forwards
    # Cells of the model's own grid are embedded once, picture and fill, and their embedding is tried out once.
    assert view.meter.forwards - before in (3 * expected, 3 * expected + 9)


@pytest.mark.parametrize("name", ["lime(samples=5", "kernel_shap(samples=5", "shapley(samples=1", "hsic(designs=5"])
def test_a_grid_of_ones_own(name: str) -> None:
    view = load(build("class token"))
    method = parse(f"{name}, grid=3)")
    assert method.shape(view, (64, 64)) == (3, 3)
    assert exact(method, view, pictures(1, (64, 64)).double(), 1).shape == (1, 3, 3)
    with pytest.raises(vitrail.InputError, match="needs grid to be 1 to 64, but grid=70 was given"):
        parse(f"{name}, grid=70)")


@pytest.mark.parametrize("spec", ["lime(samples=30000", "kernel_shap(samples=30000", "shapley(samples=10000"])
def test_cells_and_pictures_that_no_memory_holds(spec: str) -> None:
    view = load(build("class token"))
    with pytest.raises(vitrail.InputError, match=r"of 4,096 cells on .*, more than fit in memory; at most 12,207 of"):
        exact(f"{spec}, grid=64)", view, pictures(1, (64, 64)).double(), 1)
