"""Insertion, deletion and MAS against their definitions done slowly, in float64."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail
from oracles import curves as oracle
from vitrail import InputError, scenes
from vitrail.metric import Curve, deletion, insertion
from vitrail.model import Target, View
from vitrail.perturb import baseline

STEP = 144 * 144 // 6


@pytest.fixture(scope="module")
def view() -> View:
    return vitrail.load(copy.deepcopy(vitrail.load("demo").model).double(), size=(144, 144))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return vitrail.load("demo").preprocess.batch([scenes.make(seed).pil for seed in (3, 4)]).double()


@pytest.fixture(scope="module")
def maps(images: Tensor) -> Tensor:
    found = vitrail.explain("demo", images.float(), "decompx")
    return found.upsample()  # signed, and without ties


@pytest.mark.parametrize(("metric", "fill"), [(insertion, "rise_blur(11, 5)"), (deletion, "zero_norm")])
def test_agrees_with_the_definition(view: View, images: Tensor, maps: Tensor, metric, fill: str) -> None:
    rising = metric is insertion
    with torch.no_grad():
        predicted = view.logits(images).argmax(1)
    forwards = view.meter.forwards
    found = metric(view, images, maps, predicted, step=STEP)
    assert view.meter.forwards == forwards + 2 * 7, "seven points an image, and nothing else"
    fills = baseline(fill).fill(view, images, Target(predicted))
    for i in range(2):
        curve = np.array(oracle.responses(view, images[i], maps[i], fills[i], int(predicted[i]), STEP, rising))
        shares = oracle.density(maps[i], STEP, rising)
        np.testing.assert_allclose(found.responses[i], curve, rtol=1e-9)
        np.testing.assert_allclose(found.density[i], shares, atol=1e-9)
        assert float(found.area()[i]) == pytest.approx(oracle.area(curve), rel=1e-9)
        assert float(found.area("mean")[i]) == pytest.approx(curve[1:].mean(), rel=1e-9)
        np.testing.assert_allclose(found.monotone().responses[i], oracle.monotone(curve, rising), atol=1e-9)
        np.testing.assert_allclose(found.aligned().responses[i], oracle.aligned(curve, shares, rising), atol=1e-9)


def test_the_ends_are_the_fill_and_the_image(images: Tensor, maps: Tensor) -> None:
    found = insertion("demo", images.float(), maps, baseline="zero_norm", step=144 * 144)
    logits = vitrail.explain("demo", images.float(), "random").logits
    assert found.fractions.tolist() == [0, 1]
    torch.testing.assert_close(found.responses[:, 1].float(), logits.softmax(1).amax(1), rtol=1e-4, atol=1e-6)
    gone = deletion("demo", images.float(), maps, step=144 * 144)
    torch.testing.assert_close(gone.responses.flip(1), found.responses, rtol=1e-4, atol=1e-6)


def test_a_good_map_beats_its_opposite(images: Tensor, maps: Tensor) -> None:
    assert (insertion("demo", images.float(), maps, step=STEP).area() > 0.5).all()
    better = deletion("demo", images.float(), maps, step=STEP).area()
    assert (better < deletion("demo", images.float(), -maps, step=STEP).area()).all()


def test_a_step_that_does_not_divide_the_pixels(images: Tensor, maps: Tensor) -> None:
    found = insertion("demo", images[:1].float(), maps[:1], step=15000)
    assert found.fractions.tolist() == pytest.approx([0, 15000 / 20736, 1])
    flat = Curve(found.fractions, torch.full((1, 3), 0.25), found.density, rising=True)
    assert flat.area() == pytest.approx(0.25), "points need not be evenly spaced"


@pytest.mark.parametrize("rising", [True, False])
def test_no_way_between_the_ends_is_a_straight_line(rising: bool) -> None:
    fractions = torch.linspace(0, 1, 5).double()
    line = fractions if rising else 1 - fractions
    flat = Curve(fractions, torch.full((1, 5), 0.3).double(), line[None], rising)
    assert torch.equal(flat.monotone().responses[0], line)
    assert torch.isfinite(flat.aligned().responses).all()


def test_mistakes_get_a_sentence(images: Tensor, maps: Tensor) -> None:
    with pytest.raises(InputError, match=r"one map of 144 x 144 an image.*Explanation\.upsample"):
        insertion("demo", images.float(), maps[:, :12, :12])
    with pytest.raises(InputError, match="1 pixel or more"):
        deletion("demo", images.float(), maps, step=0)
    with pytest.raises(InputError, match="no baseline called"):
        deletion("demo", images.float(), maps, baseline="blakc")
