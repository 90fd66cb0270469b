"""RISE against a slow version, and against the authors' own code with its own masks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitrail
from helpers.goldens import FOLDER, agreement, deit_tiny, inputs
from helpers.oracle import oracle
from helpers.small import build, close, exact
from helpers.zoo import pictures
from oracles import perturbation as slow
from vitrail import perturb
from vitrail.method.perturbation.rise import draw_masks, seen_through, stretched
from vitrail.model import Target, load

TARGETS = [3, 5]


@oracle("rise")
@pytest.mark.parametrize(("blur", "score"), [("zero_norm", "probability"), ("rise_blur(5, 2)", "logit")])
def test_agrees_with_a_loop_over_masks(blur: str, score: str) -> None:
    model = build("class token", img_size=(64, 48))
    images = pictures(2, (64, 48)).double()
    found = exact(f"rise(masks=40, grid=5, keep=0.3, seed=4, baseline={blur}, score={score})", model, images, TARGETS)
    masks = stretched(*draw_masks(40, 5, 0.3, (64, 48), 4), (64, 48), torch.float64)
    for i, target in enumerate(TARGETS):
        fill = perturb.baseline(blur).fill(load(model), images[i : i + 1], Target(torch.tensor([0])))[0]
        assert close(found[i], slow.rise(model, images[i], target, masks, 0.3, fill, score))


def test_masks_are_made_of_their_grids() -> None:
    """Away from the border a mask is a plain bilinear stretch, cut at its shift."""
    grids, shifts = draw_masks(40, 4, 0.4, (30, 42), 1)
    masks = stretched(grids, shifts, (30, 42), torch.float64)
    assert masks.shape == (40, 30, 42)
    assert masks.min() == 0
    assert masks.max() <= 1
    assert abs(float(grids.double().mean()) - 0.4) < 0.05
    assert {tuple(s.tolist()) for s in shifts.aminmax(dim=0)} == {(0, 0), (7, 10)}, "shifts of less than a cell"
    plain = F.interpolate(grids[:, None].double(), (40, 55), mode="bilinear")[:, 0]
    for mask, stretch, (down, right) in zip(masks, plain, shifts):
        inner = stretch[down : down + 30, right : right + 42]
        rows, columns = (slice(max(0, 5 - down), 35 - down), slice(max(0, 7 - right), 48 - right))
        torch.testing.assert_close(mask[rows, columns], inner[rows, columns])


def test_a_map_does_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build("average pooling"), pictures(3, (64, 64)).double()
    whole = exact("rise(masks=25)", model, images, 1)
    monkeypatch.setattr(perturb.responder, "MOST_ON_CPU", 7)
    assert close(exact("rise(masks=25)", model, images, 1), whole)


def test_all_images_are_seen_through_the_same_masks_and_another_seed_draws_others() -> None:
    model, images = build("class token"), pictures(1, (64, 64)).double()
    twice = exact("rise(masks=9)", model, images.repeat(2, 1, 1, 1), 1)
    assert close(twice[0], twice[1])
    assert not torch.equal(exact("rise(masks=9, seed=1)", model, images, 1), exact("rise(masks=9)", model, images, 1))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rise(masks=0)", "masks to be 1 to 100,000, but masks=0"),
        ("rise(grid=1)", "grid to be 2 to 64, but grid=1"),
        ("rise(keep=1)", "keep to be above 0, below 1, but keep=1"),
        ("rise(score=loud)", "'probability' or 'logit'"),
        ("rise(baseline=black)", "no baseline called 'black'"),
    ],
)
def test_mistakes_get_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        vitrail.method.parse(spec)


# ------------------------------------------------------------------------------------------------- the authors' code


def _stored() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "injected/rise.npz") as stored:
        return dict(stored)


def _masks(grids: np.ndarray, shifts: np.ndarray, size: tuple[int, int]) -> Tensor:
    return stretched(torch.tensor(grids), torch.tensor(shifts).long(), size)


def test_masks_are_those_of_the_authors_code() -> None:
    stored = _stored()
    found = _masks(stored["small_grids"], stored["small_shifts"], (20, 34))
    assert np.abs(found.numpy() - stored["small_masks"]).max() <= 1e-6


@pytest.mark.slow
def test_agrees_with_the_authors_code(assets: Path) -> None:
    """Their generator's cells and shifts, their saliency, averaged over 16 x 16 pixels to be small."""
    stored, view, images = _stored(), deit_tiny(assets), inputs(assets)
    grids = np.unpackbits(stored["grids"]).astype(bool).reshape(64, 8, 8)
    with torch.no_grad():
        target = Target(view.logits(images).argmax(1))
    ask = perturb.Responder(perturb.PixelCanvas(view, images, [torch.zeros_like(images)]), [target])
    (found,) = seen_through(ask, _masks(grids, stored["shifts"], (224, 224))) / (64 * float(stored["keep"]))
    close = agreement(F.avg_pool2d(found[:, None], 16)[:, 0].numpy(), stored["maps"])
    assert close.error <= 1e-5
