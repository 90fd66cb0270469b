"""Insertion, deletion and their kin against their definitions done slowly, in float64."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

import vitrail
from helpers.oracle import oracle
from oracles import curves as slow
from vitrail import InputError, scenes
from vitrail.metric import Case, Curve, parse
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


@pytest.fixture
def case(view: View, images: Tensor, maps: Tensor) -> Case:
    return Case(view, images, maps, labels=torch.tensor([3, 4]))


def curve(case: Case, spec: str) -> Curve:
    return parse(spec).curve(case)  # type: ignore[attr-defined]


@oracle("deletion", "insertion", "mas_deletion", "mas_insertion", "monotonicity")
@pytest.mark.parametrize(("name", "fill"), [("insertion", "rise_blur(11, 5)"), ("deletion", "zero_norm")])
def test_agrees_with_the_definition(case: Case, name: str, fill: str) -> None:
    rising = name == "insertion"
    predicted = case.predicted
    forwards = case.view.meter.forwards
    found = curve(case, f"{name}(step={STEP})")
    # Seven points: the clean picture is known, the hidden one is asked about once, and five lie between them.
    assert case.view.meter.forwards == forwards + 2 * (5 + 1)
    fills = baseline(fill).fill(case.view, case.images, Target(predicted))
    shares = [slow.density(case.maps[i].relu(), STEP, rising) for i in range(2)]
    for i in range(2):
        responses = np.array(
            slow.responses(case.view, case.images[i], case.maps[i], fills[i], int(predicted[i]), STEP, rising)
        )
        np.testing.assert_allclose(found.responses[i], responses, rtol=1e-9)
        np.testing.assert_allclose(found.density[i], shares[i], atol=1e-6)
        assert float(found.area()[i]) == pytest.approx(slow.area(responses), rel=1e-9)
        assert float(found.area("mean")[i]) == pytest.approx(responses[1:].mean(), rel=1e-9)
        assert float(found.area("integral")[i]) == pytest.approx(slow.area(responses), rel=1e-9)
        np.testing.assert_allclose(found.monotone().responses[i], slow.monotone(responses, rising), atol=1e-9)
        np.testing.assert_allclose(found.aligned().responses[i], slow.aligned(responses, shares[i], rising), atol=1e-6)
        rank = spearmanr(responses, range(7)).statistic * (1 if rising else -1)
        expected = {
            f"{name}(baseline={fill}, step={STEP})": slow.area(responses),
            f"mas_{name}(baseline={fill}, step={STEP})": slow.area(slow.aligned(responses, shares[i], rising)),
            f"monotonicity(way={name}, baseline={fill}, step={STEP})": rank,
        }
        for spec, value in expected.items():
            assert float(parse(spec).measure(case)[i]) == pytest.approx(value, abs=1e-6), spec


def test_one_pass_serves_many_metrics(case: Case) -> None:
    _ = case.logits
    before = case.view.meter.forwards
    both = [f"{name}(baseline=zero_norm, step={STEP})" for name in ("insertion", "deletion")]
    also = [f"mas_{spec}" for spec in both] + [spec.replace("(", "_aopc(") for spec in both]
    also += [f"monotonicity(baseline=zero_norm, step={STEP}, way={way})" for way in ("insertion", "deletion")]
    also += [f"{name}_accuracy(baseline=zero_norm, step={STEP})" for name in ("insertion", "deletion")]
    also += [f"insertion(baseline=zero_norm, step={STEP}, target=label, score=logit, area=mean, monotone=True)"]
    for spec in both + also:
        assert torch.isfinite(parse(spec).measure(case)).all(), spec
    # Two curves of seven points for two images; they share their ends, of which the clean one is known.
    assert case.view.meter.forwards - before == 2 * (2 * 5 + 1)


def test_signs_order_the_pixels(case: Case) -> None:
    fine, turned = (Case(case.view, case.images, sign * case.maps) for sign in (1, -1))
    absolute = f"deletion(step={STEP}, sign=absolute)"
    assert torch.allclose(curve(fine, absolute).responses, curve(turned, absolute).responses)
    plain = f"deletion(step={STEP})"
    assert not torch.allclose(curve(fine, plain).responses, curve(turned, plain).responses)


def test_insertion_is_deletion_of_the_turned_map(case: Case) -> None:
    """Deleting from the lowest point on visits the pictures of insertion, backwards."""
    maps = torch.rand(2, 144, 144, generator=torch.Generator().manual_seed(0)).double()  # no two points are equal
    case, turned = (Case(case.view, case.images, sign * maps) for sign in (1, -1))
    for fill in ("zero_norm", "rise_blur", "black_pixel"):
        one = curve(case, f"insertion(baseline={fill}, step={STEP})").responses
        other = curve(turned, f"deletion(baseline={fill}, step={STEP})").responses
        torch.testing.assert_close(one, other.flip(1))


@pytest.mark.parametrize("spec", ["insertion", "deletion", "positive_perturbation", "comprehensiveness", "lodds"])
def test_only_the_order_matters(case: Case, spec: str) -> None:
    stretched = Case(case.view, case.images, case.maps.sinh() * 3 + 1, labels=case.labels)
    spec = f"{spec}(step={STEP})" if spec in ("insertion", "deletion") else spec
    # Patches are ordered by the mean of their pixels, so these maps are made of patches.
    small = [torch.nn.functional.avg_pool2d(x.maps[:, None], 12)[:, 0] for x in (case, stretched)]
    cases = [Case(case.view, case.images, m, labels=case.labels) for m in (small[0], small[0].sinh() * 3 + 1)]
    for one, other in ((case, stretched),) if "(" in spec else (cases,):
        torch.testing.assert_close(parse(spec).measure(one), parse(spec).measure(other))


def test_the_ends_are_the_fill_and_the_image(images: Tensor, maps: Tensor) -> None:
    case = Case(vitrail.load("demo"), images.float(), maps)
    found = curve(case, f"insertion(baseline=zero_norm, step={144 * 144})")
    assert found.fractions.tolist() == [0, 1]
    torch.testing.assert_close(found.responses[:, 1], case.logits.double().softmax(1).amax(1), rtol=1e-4, atol=1e-6)
    gone = curve(case, f"deletion(step={144 * 144})")
    torch.testing.assert_close(gone.responses.flip(1), found.responses, rtol=1e-4, atol=1e-6)
    assert found.pictures is not None
    assert torch.equal(found.pictures(1), case.images)
    assert not found.pictures(0).any()


def test_a_good_map_beats_its_opposite(images: Tensor, maps: Tensor) -> None:
    good, bad = (Case(vitrail.load("demo"), images.float(), sign * maps) for sign in (1, -1))
    for spec in (f"insertion(step={STEP}, baseline=zero_norm)", f"deletion(step={STEP})"):
        metric = parse(spec)
        better = metric.measure(good) > metric.measure(bad)
        assert (better == metric.higher_is_better).all(), spec


def test_a_step_that_does_not_divide_the_pixels(case: Case) -> None:
    found = curve(case, "insertion(step=15000)")
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
    assert flat.area() == pytest.approx(0.3)


def test_magnitudes_that_follow_the_answers_pay_no_penalty() -> None:
    fractions = torch.linspace(0, 1, 6).double()
    rise = torch.tensor([[0.1, 0.4, 0.7, 0.8, 0.85, 0.9]], dtype=torch.float64)
    aligned = Curve(fractions, rise, (rise - 0.1) / 0.8, rising=True)
    assert aligned.penalty().max() < 1e-12
    torch.testing.assert_close(aligned.aligned().area(), aligned.monotone().area())


@pytest.mark.parametrize("rising", [True, False])
def test_mas_as_the_formula_and_as_the_code_has_it(rising: bool) -> None:
    """The formula adds the penalty to a deletion and takes it off an insertion; the code then clips and stretches."""
    fractions = torch.linspace(0, 1, 6, dtype=torch.float64)
    responses = torch.tensor([[0.1, 0.2, 0.7, 0.6, 0.8, 0.9]], dtype=torch.float64)
    density = torch.tensor([[0, 0.9, 0.95, 0.97, 0.99, 1]], dtype=torch.float64)
    found = Curve(fractions, responses if rising else responses.flip(1), density if rising else 1 - density, rising)
    steady = np.array([0, 0.125, 0.75, 0.75, 0.875, 1]) if rising else np.array([1, 0.875, 0.625, 0.625, 0.125, 0])
    worse = np.abs(steady - found.density[0].numpy())
    by_hand = steady - worse if rising else steady + worse
    np.testing.assert_allclose(found.aligned("paper").responses[0], by_hand, atol=1e-12)
    clipped = by_hand.clip(0, 1)
    stretched = (clipped - clipped.min()) / (clipped.max() - clipped.min())
    np.testing.assert_allclose(found.aligned().responses[0], stretched, atol=1e-12)
    assert abs(float(found.aligned("paper").area()) - float(found.aligned().area())) > 0.01


@oracle("negative_perturbation", "positive_perturbation")
@pytest.mark.parametrize("lowest", [False, True])
def test_perturbation_paints_tenths_black(case: Case, lowest: bool) -> None:
    """Chefer's test, done by hand for one image."""
    name = "negative_perturbation" if lowest else "positive_perturbation"
    found = curve(case, name)
    order = (case.maps[0] if lowest else -case.maps[0]).flatten().argsort(stable=True)
    black = baseline("black_pixel").fill(case.view, case.images, case.target)[0]
    hits = []
    for tenth in range(1, 10):
        picture = case.images[0].clone().flatten(1)
        gone = order[: 20736 * tenth // 10]
        picture[:, gone] = black.flatten(1)[:, gone]
        with torch.no_grad():
            hits.append(float(case.view.logits(picture.view(1, 3, 144, 144)).argmax() == 3))
    assert found.responses[0].tolist() == hits
    area = (sum(hits) - hits[0] / 2 - hits[-1] / 2) / 8
    assert float(parse(name).measure(case)[0]) == float(found.area()[0]) == pytest.approx(area)


@pytest.mark.parametrize("flat", [0.0, 1.0, -2.0])
@pytest.mark.parametrize("spec", ["insertion(step=6000)", "mas_deletion(step=6000)", "monotonicity(step=6000)"])
def test_maps_that_say_nothing_have_a_value(case: Case, spec: str, flat: float) -> None:
    constant = Case(case.view, case.images, torch.full((2, 3, 3), flat))
    assert torch.isfinite(parse(spec).measure(constant)).all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("insertion(step=0)", "step to be 1 to"),
        ("deletion(baseline=blakc)", "no baseline called"),
        ("positive_perturbation(shares=(0.5, 1.5))", "shares to be 0 to 1"),
    ],
)
def test_mistakes_get_a_sentence(case: Case, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(spec).measure(case)


def test_labels_must_be_there(view: View, images: Tensor, maps: Tensor) -> None:
    with pytest.raises(InputError, match="give them as labels"):
        parse("positive_perturbation").measure(Case(view, images, maps))


@pytest.mark.parametrize("wrong", [torch.zeros(3, 4, 4), torch.zeros(2, 4), torch.full((2, 4, 4), torch.nan)])
def test_maps_must_fit(view: View, images: Tensor, wrong: Any) -> None:
    with pytest.raises(InputError, match=r"one map an image|finite"):
        Case(view, images, wrong)
