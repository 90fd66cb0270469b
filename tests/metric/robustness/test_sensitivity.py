"""Sensitivity against Captum, fed with the very same noise."""

from typing import Any

import pytest
import torch
from captum.metrics import sensitivity_max
from torch import Tensor

import vitrail
from helpers.oracle import oracle
from helpers.small import build
from helpers.zoo import pictures
from vitrail import InputError
from vitrail.method import Batch, parse
from vitrail.metric.case import Case
from vitrail.metric.robustness.sensitivity import AvgSensitivity, MaxSensitivity, NoiseFloor
from vitrail.model import Target, View

RADIUS, SAMPLES = 0.05, 6


class Watched(Case):
    """A case that keeps the pictures it has explained."""

    asked: list[Tensor]

    def explain(self, images: Tensor, *more: Any, **named: Any) -> Tensor:
        self.asked = [*getattr(self, "asked", []), images]
        return super().explain(images, *more, **named)


@pytest.fixture(scope="module")
def view() -> View:
    return vitrail.load(build("class token"), size=(64, 64))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return pictures(3, (64, 64)).double()


def made(view: View, images: Tensor, method: str = "saliency", **given: Any) -> Watched:
    bare = Case(view, images, torch.zeros(len(images), 1, 1), method=parse(method))
    return Watched(view, images, bare.explain(images), method=parse(method), **given)


@oracle("max_sensitivity")
@pytest.mark.parametrize("method", ["saliency", "decompx"])
def test_agrees_with_captum(view: View, images: Tensor, method: str) -> None:
    target = Target(torch.tensor([1, 2, 3]))
    case = made(view, images, method, target=target)
    found = MaxSensitivity(samples=SAMPLES, radius=RADIUS).measure(case)
    copies = torch.cat([x.unflatten(0, (-1, 3)) for x in case.asked])  # (samples, images, ...)
    noise = copies - images
    assert float(noise.abs().max()) <= RADIUS
    assert float(noise.std()) == pytest.approx(RADIUS / 3**0.5, rel=1e-2)
    assert noise.flatten(0, 1).flatten(1).unique(dim=0).shape[0] == 3 * SAMPLES, "all drawn apart"

    def explain(inputs: Any) -> Any:
        if isinstance(inputs, tuple):
            return (case.maps.double(),)
        return Case.explain(case, inputs, Target(target.classes.repeat_interleave(SAMPLES))).double()

    expected = sensitivity_max(
        explain, images, lambda _: copies.transpose(0, 1).flatten(0, 1), n_perturb_samples=SAMPLES
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@oracle("avg_sensitivity")
def test_the_mean_is_over_the_same_explanations(view: View, images: Tensor) -> None:
    case = made(view, images)
    largest = MaxSensitivity(samples=3).measure(case)
    passes = view.meter.forwards
    mean = AvgSensitivity(samples=3).measure(case)
    assert view.meter.forwards == passes
    each = [(case.explain(x) - case.maps).flatten(1).norm(dim=1) for x in torch.cat(case.asked).split(3)]
    shares = torch.stack(each).double() / case.maps.double().flatten(1).norm(dim=1)
    torch.testing.assert_close(mean, shares.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(largest, shares.amax(0), rtol=1e-6, atol=0)
    assert (AvgSensitivity(samples=3, seed=1).measure(case) != mean).all()


def test_does_not_depend_on_the_batch(view: View, images: Tensor) -> None:
    metric = MaxSensitivity(samples=2)
    together = metric.measure(made(view, images))
    alone = torch.cat([metric.measure(made(view, images[i : i + 1])) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=0)
    with torch.inference_mode():
        again = metric.measure(made(view, images))
    torch.testing.assert_close(again.clone(), together, rtol=1e-5, atol=0)


def test_no_noise_no_change_and_an_empty_map_counts_as_length_one(view: View, images: Tensor) -> None:
    case = made(view, images)
    assert (MaxSensitivity(samples=2, radius=0).measure(case) < 1e-5).all()
    empty = Watched(view, images, torch.zeros_like(case.maps), method=case.method)
    found = MaxSensitivity(samples=1).measure(empty)
    expected = case.explain(empty.asked[0]).double().flatten(1).norm(dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_a_steady_method_beats_a_random_one(view: View, images: Tensor) -> None:
    steady = MaxSensitivity(samples=2).measure(made(view, images, "decompx"))
    assert (steady < 0.5).all()
    assert (MaxSensitivity(samples=2).measure(made(view, images, "random")) > 0.5).all()


RANDOM = ["random", "tis(masks=8, keep=0.25)", "smoothgrad(saliency, samples=4)"]


@pytest.mark.parametrize("method", RANDOM)
def test_the_floor_is_what_the_methods_own_draws_make(view: View, images: Tensor, method: str) -> None:
    """A method that draws new numbers is not steady when nothing changes; one that keeps them is."""
    images = images.float()
    case = made(view_in_float(view), images, method)
    floor = NoiseFloor(samples=3).measure(case)
    assert (floor > 0.01).all()
    torch.testing.assert_close(floor, MaxSensitivity(samples=3, radius=0).measure(case))
    assert (MaxSensitivity(samples=3, radius=0, draws="same").measure(case) < 1e-5).all()
    tiny = {draws: MaxSensitivity(samples=3, radius=1e-6, draws=draws).measure(case) for draws in ("new", "same")}
    assert (tiny["same"] < floor / 4).all(), "the noise alone"
    assert (tiny["new"] > floor / 4).all(), "mostly the draws"
    alone = torch.cat([NoiseFloor(samples=3).measure(made(case.view, images[i : i + 1], method)) for i in range(3)])
    torch.testing.assert_close(floor, alone, rtol=1e-3, atol=1e-5)


@oracle("noise_floor")
def test_the_floor_by_hand(view: View, images: Tensor) -> None:
    """The very same pictures explained anew, each time with numbers of a seed of its own."""
    case = made(view, images, "random")
    batch = Batch(images)
    seeds = torch.stack([torch.randint(2**62, (3,), generator=batch.generator(i, 4)) for i in range(3)])
    again = [case.method.maps(view, Batch(images, case.target, keys)) for keys in seeds.T]
    clean = case.maps.double().flatten(1)
    moves = [(maps.double().flatten(1) - clean).norm(dim=1) / clean.norm(dim=1) for maps in again]
    expected = torch.stack(moves).amax(0)
    torch.testing.assert_close(NoiseFloor(samples=3, seed=4).measure(case), expected, rtol=1e-6, atol=0)


def view_in_float(view: View) -> View:
    return vitrail.load(build("class token").float(), size=view.size)


@pytest.mark.parametrize("method", ["decompx", "rise(masks=8)"])
def test_a_method_that_draws_nothing_has_no_floor_and_is_asked_once(view: View, images: Tensor, method: str) -> None:
    """Nor has one that draws the same for all pictures."""
    case = made(view, images, method)
    assert (NoiseFloor(samples=9).measure(case) < 1e-6).all()
    assert len(case.asked) == 1
    assert MaxSensitivity(samples=2).beside() == (NoiseFloor(samples=2),)
    assert MaxSensitivity(samples=2, draws="same").beside() == ()


def test_mistakes_get_a_sentence(view: View, images: Tensor) -> None:
    with pytest.raises(InputError, match="method that made the maps is needed"):
        MaxSensitivity().measure(Case(view, images, torch.zeros(3, 12, 12)))
    with pytest.raises(InputError, match=r"at their own grid, 64 x 64.*12 x 12"):
        AvgSensitivity(samples=1).measure(Case(view, images, torch.zeros(3, 12, 12), method=parse("saliency")))
    with pytest.raises(InputError, match="max_sensitivity needs samples to be 1 to"):
        MaxSensitivity(samples=0)
    with pytest.raises(InputError, match="noise_floor needs samples to be 1 to"):
        NoiseFloor(samples=0)
