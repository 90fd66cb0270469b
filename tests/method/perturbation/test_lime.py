"""LIME against plain least squares and against Captum."""

import captum.attr
import numpy as np
import pytest
import torch
from captum._utils.models.linear_model import SkLearnRidge
from torch import Tensor

import vitrail
from helpers.oracle import oracle
from helpers.small import build, close, exact, off
from helpers.zoo import pictures
from oracles import perturbation as slow
from vitrail.method import Batch
from vitrail.method.perturbation.lime import coins, ridge_slopes
from vitrail.perturb import grid_labels

TARGETS = [3, 5]


@oracle("lime")
@pytest.mark.parametrize(("settings", "width", "ridge"), [("", 0.25, 1.0), (", width=2, ridge=0.01", 2.0, 0.01)])
def test_agrees_with_plain_least_squares(settings: str, width: float, ridge: float) -> None:
    model, images = build("class token", img_size=(32, 48)), pictures(2, (32, 48)).double()
    found = exact(f"lime(samples=30, seed=3{settings})", model, images, TARGETS)
    for i, target in enumerate(TARGETS):
        shown = coins(30, 6, Batch(images).generator(i, 3)).numpy()
        value = slow.coalition_value(model, images[i], target, (2, 3), "probability")
        scores = np.array([value(frozenset(np.flatnonzero(row).tolist())) for row in shown])
        assert close(found[i].flatten(), slow.ridge_fit(shown, scores, width, ridge))


def test_agrees_with_captum() -> None:
    """With Captum's ridge, on the same samples, the distance taken between samples instead of pictures."""
    model, images = build("class token", img_size=(32, 48)), pictures(1, (32, 48)).double()
    shown = coins(50, 6, Batch(images).generator(0, 0))
    rows = iter(shown)

    def weight(_: Tensor, __: Tensor, sample: Tensor, **___: object) -> Tensor:
        distance = 1 - torch.cosine_similarity(sample.double(), torch.ones(1, 6, dtype=torch.float64))
        return torch.exp(-(distance**2) / (2 * 0.25**2))

    peer = captum.attr.Lime(
        lambda x: model(x).softmax(1),
        interpretable_model=SkLearnRidge(alpha=1.0),
        similarity_func=weight,
        perturb_func=lambda *_, **__: next(rows)[None].long(),
    )
    expected = peer.attribute(
        images, target=3, feature_mask=grid_labels((32, 48), (2, 3))[None, None], n_samples=50, return_input_shape=False
    )
    found = exact("lime(samples=50)", model, images, 3).flatten()
    assert off(found, expected[0].double()) <= 1e-5  # float32 over there


def test_finds_the_slopes_of_a_linear_answer() -> None:
    shown = coins(200, 9, torch.Generator().manual_seed(0))[None]
    slopes = torch.arange(-4.0, 5.0, dtype=torch.float64)
    found = ridge_slopes(shown, (shown.double() @ slopes + 7)[..., None], width=0.25, ridge=1e-9)
    assert close(found[0, :, 0], slopes)


def test_a_sample_that_shows_nothing_is_as_far_as_can_be() -> None:
    shown = torch.tensor([[[False, False], [True, True], [True, False]]])
    assert torch.isfinite(ridge_slopes(shown, torch.tensor([[[0.0], [1.0], [0.5]]]), 0.25, 1.0)).all()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lime(samples=0)", "samples to be 1 to 100,000, but samples=0"),
        ("lime(grid=0)", "grid to be 1 to 64, but grid=0"),
        ("lime(width=0)", "width to be above 0, up to 1,000, but width=0"),
        ("lime(ridge=-1)", "ridge to be above 0, up to 1,000,000,000, but ridge=-1"),
    ],
)
def test_mistakes_get_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        vitrail.method.parse(spec)


def test_many_cells_on_two_threads() -> None:
    """Intel's LU, batched, fails there from some 196 cells on; Cholesky does not."""
    shown = coins(300, 200, torch.Generator().manual_seed(0)).expand(2, -1, -1)
    scores = torch.rand(2, 300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = ridge_slopes(shown, scores[..., None], 0.25, 1.0)[..., 0]
    finally:
        torch.set_num_threads(threads)
    assert close(found[1], slow.ridge_fit(shown[1].numpy(), scores[1].numpy(), 0.25, 1.0))
