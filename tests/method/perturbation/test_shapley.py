"""Shapley values: against all coalitions, all orders, a Lagrange multiplier and Captum."""

from collections.abc import Iterator
from itertools import permutations

import captum.attr
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from helpers.games import Convolutions, Quadratic
from helpers.oracle import oracle
from helpers.small import build, close, exact, off
from helpers.zoo import pictures
from oracles import perturbation as slow
from vitrail.method import Batch
from vitrail.method.perturbation.shapley import additive, all_coalitions, draw_coalitions, mean_gains, shapley_kernel
from vitrail.model import Target, load
from vitrail.perturb import Responder, cell_canvas, grid_labels, order_of, ranks_of

SIZE, GRID, TARGETS = (32, 48), (2, 3), [3, 5]


def tiny() -> nn.Module:
    """Two by three patches."""
    return build("class token", img_size=SIZE)


def asking(model: nn.Module, images: Tensor, grid: tuple[int, int] | None = None, score: str = "logit") -> Responder:
    target = Target(torch.tensor(TARGETS[: len(images)]))
    return Responder(cell_canvas(load(model, size=images.shape[2:]), images, [images * 0], grid), [target], score)


@oracle("kernel_shap")
@pytest.mark.parametrize("score", ["logit", "probability"])
def test_kernel_shap_with_all_coalitions_is_exact(score: str) -> None:
    model, images = tiny(), pictures(2, SIZE).double()
    found = exact(f"kernel_shap(samples=62, score={score})", model, images, TARGETS)
    for i, target in enumerate(TARGETS):
        value = slow.coalition_value(model, images[i], target, GRID, score)
        assert close(found[i].flatten(), slow.shapley_values(value, 6))


def test_kernel_shap_is_exact_on_a_cnn_too() -> None:
    model, images = Convolutions(), pictures(1, (32, 32)).double()
    found = exact("kernel_shap(grid=2)", load(model, size=(32, 32)), images, 3)
    value = slow.coalition_value(model, images[0], 3, (2, 2), "logit")
    assert close(found[0].flatten(), slow.shapley_values(value, 4))


def test_all_orders_are_exact() -> None:
    model, images = tiny(), pictures(1, SIZE).double()
    orders = torch.tensor(list(permutations(range(6))))[None]
    value = slow.coalition_value(model, images[0], TARGETS[0], GRID, "logit")
    assert close(mean_gains(asking(model, images), ranks_of(orders))[0, :, 0], slow.shapley_values(value, 6))


@oracle("shapley")
@pytest.mark.parametrize("antithetic", [True, False])
def test_shapley_is_the_mean_gain_along_its_own_orders(antithetic: bool) -> None:
    model, images = tiny(), pictures(2, SIZE).double()
    found = exact(f"shapley(samples=3, antithetic={antithetic}, seed=2, score=probability)", model, images, TARGETS)
    for i, target in enumerate(TARGETS):
        generator = Batch(images).generator(i, 2)
        orders = order_of(-torch.rand(3, 6, generator=generator).argsort(1)).tolist()
        orders += [order[::-1] for order in orders] if antithetic else []
        value = slow.coalition_value(model, images[i], target, GRID, "probability")
        assert close(found[i].flatten(), slow.gains_along(value, orders, 6))


def test_an_order_and_its_reverse_are_exact_for_a_game_of_pairs() -> None:
    game, images = Quadratic(), pictures(2, (32, 32)).double()
    found = exact("shapley(samples=1, grid=2)", load(game, size=(32, 32)), images, 0)
    assert close(found.flatten(1), game.shapley(images))
    two = exact("shapley(samples=2, antithetic=False, grid=2)", load(game, size=(32, 32)), images, 0)
    assert off(two, found) > 0.01


def test_agrees_with_captums_permutation_sampling() -> None:
    model, images = tiny(), pictures(1, SIZE).double()
    orders = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).argsort(1)
    peer = captum.attr.ShapleyValueSampling(model)
    peer.permutation_generator = lambda *_: iter(orders.tolist())
    mask = grid_labels(SIZE, GRID)[None, None]
    expected = peer.attribute(images, target=TARGETS[0], feature_mask=mask, n_samples=4, perturbations_per_eval=6)
    expected = torch.stack([expected[0, 0][mask[0, 0] == cell][0] for cell in range(6)]).double()
    assert (
        off(mean_gains(asking(model, images), ranks_of(orders)[None])[0, :, 0], expected) <= 1e-5
    )  # float32 over there


def test_agrees_with_captums_kernel_shap() -> None:
    """Captum keeps the sum by giving the empty and the full coalition a weight of a million, in float32."""
    model, images = tiny(), pictures(1, SIZE).double()
    shown = draw_coalitions(40, 6, torch.Generator().manual_seed(0))
    peer = captum.attr.KernelShap(lambda x: model(x).float())

    def generate(*_: object, **__: object) -> Iterator[Tensor]:
        yield torch.ones(1, 6, dtype=torch.long)
        yield torch.zeros(1, 6, dtype=torch.long)
        for row in shown:
            yield row[None].long()

    peer.perturb_func = generate
    mask = grid_labels(SIZE, GRID)[None, None]
    expected = peer.attribute(
        images, target=TARGETS[0], feature_mask=mask, n_samples=42, return_input_shape=False, perturbations_per_eval=6
    )
    ask = asking(model, images)
    none, whole = ask.each(torch.tensor([[False] * 6, [True] * 6])).unbind(1)
    found = additive(shown[None], torch.ones(40), ask.each(shown[None]), none, whole)[..., 0]
    assert off(found, expected.double()) <= 1e-5


def test_kernel_shap_fits_its_own_coalitions_and_adds_up() -> None:
    model, images = build("average pooling"), pictures(2, (64, 64)).double()
    found = exact("kernel_shap(samples=61, seed=5)", model, images, TARGETS).flatten(1)
    for i, target in enumerate(TARGETS):
        shown = draw_coalitions(61, 16, Batch(images).generator(i, 5)).numpy()
        value = slow.coalition_value(model, images[i], target, (4, 4), "logit")
        scores = np.array([value(frozenset(np.flatnonzero(row).tolist())) for row in shown])
        none, whole = value(frozenset()), value(frozenset(range(16)))
        assert close(found[i], slow.constrained_fit(shown, np.ones(61), scores, none, whole))
        assert abs(float(found[i].sum()) - (whole - none)) <= 1e-12


def test_with_fewer_samples_than_cells_it_still_adds_up_and_keeps_near_an_even_split() -> None:
    model, images = build("average pooling"), pictures(1, (64, 64)).double()
    few = exact("kernel_shap(samples=4)", model, images, 3).flatten()
    many = exact("kernel_shap(samples=400)", model, images, 3).flatten()
    assert abs(float(few.sum() - many.sum())) <= 1e-12
    assert few.std() < many.std()


def test_coalitions_are_drawn_with_the_kernels_probability_in_pairs() -> None:
    shown = draw_coalitions(20001, 6, torch.Generator().manual_seed(0))
    assert shown.shape == (20001, 6)
    assert torch.equal(shown[0:20000:2], ~shown[1:20000:2])
    every = all_coalitions(6)
    assert len(every.unique(dim=0)) == 62
    sizes = torch.bincount(shown.sum(1), minlength=7)[1:6].double()
    expected = torch.bincount(every.sum(1), shapley_kernel(every), minlength=7)[1:6]
    assert torch.allclose(sizes / sizes.sum(), expected / expected.sum(), atol=0.01)
    assert torch.allclose(shown.double().mean(0), torch.full((6,), 0.5, dtype=torch.float64), atol=0.01)


def test_a_single_cell_gets_everything() -> None:
    model, images = tiny(), pictures(1, SIZE).double()
    whole = exact("shapley(samples=1)", model, images, 3).sum()
    for spec in ("shapley(samples=2, grid=1)", "kernel_shap(grid=1)"):
        assert close(exact(spec, model, images, 3).flatten(), whole[None])


@pytest.mark.parametrize("spec", ["shapley(samples=0)", "kernel_shap(samples=0)"])
def test_mistakes_get_a_sentence(spec: str) -> None:
    with pytest.raises(vitrail.InputError, match=r"samples to be 1 to 10*,000, but samples=0 was given"):
        vitrail.method.parse(spec)
