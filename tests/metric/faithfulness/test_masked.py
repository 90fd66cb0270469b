"""Pictures seen through their maps: by hand, in float64."""

import copy

import pytest
import torch

import vitrail
from helpers.oracle import oracle
from vitrail import scenes
from vitrail.metric import Case, parse
from vitrail.metric.faithfulness.masked import unit
from vitrail.perturb import baseline


@pytest.fixture(scope="module")
def case() -> Case:
    view = vitrail.load(copy.deepcopy(vitrail.load("demo").model).double(), size=(144, 144))
    images = vitrail.load("demo").preprocess.batch([scenes.make(seed).pil for seed in (3, 4, 5)]).double()
    maps = torch.rand(3, 144, 144, generator=torch.Generator().manual_seed(0)).double() * 4 - 1
    return Case(view, images, maps)


@oracle("average_drop", "average_gain", "increase_in_confidence")
@pytest.mark.parametrize("fill", ["zero_norm", "black_pixel"])
def test_agrees_with_the_definition(case: Case, fill: str) -> None:
    bright = torch.stack([(m - m.min()) / (m.max() - m.min()) for m in case.maps])[:, None]
    hidden = case.fill(baseline(fill))
    with torch.no_grad():
        seen = case.view.logits(bright * case.images + (1 - bright) * hidden).softmax(1)
        whole = case.view.logits(case.images).softmax(1)
    for i, c in enumerate(case.predicted.tolist()):
        before, after = float(whole[i, c]), float(seen[i, c])
        expected = {
            "average_drop": 100 * max(0, before - after) / before,
            "increase_in_confidence": 100.0 if after > before else 0.0,
            "average_gain": 100 * max(0, after - before) / (1 - before),
        }
        for name, value in expected.items():
            assert float(parse(f"{name}(baseline={fill})").measure(case)[i]) == pytest.approx(value, abs=1e-5), name


def test_the_three_share_one_pass(case: Case) -> None:
    fresh = Case(case.view, case.images, case.maps)
    before = case.view.meter.forwards
    for name in ("average_drop", "increase_in_confidence", "average_gain"):
        parse(name).measure(fresh)
    assert case.view.meter.forwards - before == 2 * len(fresh)


def test_a_white_map_loses_nothing_and_a_constant_one_shows_nothing(case: Case) -> None:
    white = torch.ones(3, 144, 144).double()
    white[:, 0, 0] = 0
    assert parse("average_drop").measure(Case(case.view, case.images, white)).max() < 1
    blank = Case(case.view, case.images, torch.zeros(3, 2, 2))
    with torch.no_grad():
        nothing = case.view.logits(torch.zeros_like(case.images)).softmax(1)
    drop = parse("average_drop").measure(blank)
    before = case.clean.probability["explained"][:, 0]
    after = nothing.gather(1, case.predicted[:, None])[:, 0]
    torch.testing.assert_close(drop, (100 * (before - after) / before).relu(), rtol=1e-4, atol=1e-4)


def test_unit() -> None:
    assert unit(torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]])).tolist() == [[[0, 1]], [[0, 0]]]
