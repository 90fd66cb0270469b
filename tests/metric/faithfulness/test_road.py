"""ROAD: the painting over against a direct solver and pytorch-grad-cam, the scores against their definition."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from pytorch_grad_cam.metrics.perturbation_confidence import RemoveLeastRelevantFirst, RemoveMostRelevantFirst
from pytorch_grad_cam.metrics.road import NoisyLinearImputer
from torch import Tensor
from torch.nn import functional as F

import vitrail
from helpers.oracle import oracle
from helpers.small import build
from helpers.zoo import pictures
from oracles import road as slow
from vitrail import InputError, scenes
from vitrail.method import Batch
from vitrail.metric.base import parse
from vitrail.metric.case import Case
from vitrail.metric.faithfulness.road import Road, coarser, impute, neighbours
from vitrail.model import Target, View

SIZE = (29, 37)
SHARES = [0.1, 0.5, 0.9]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many small steps: a second thread only waits for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def masks() -> dict[str, Tensor]:
    """Holes of every kind, in a picture of an odd size."""
    rows, columns = torch.arange(SIZE[0])[:, None].expand(SIZE), torch.arange(SIZE[1]).expand(SIZE)
    draw = torch.rand(SIZE, generator=torch.Generator().manual_seed(0))
    return {
        "one pixel": (rows == 5) & (columns == 7),
        "one corner": (rows == 0) & (columns == 36),
        "a row": rows == 11,
        "the first rows": rows < 6,
        "the last columns": columns > 20,
        "every other row": rows % 2 == 0,
        "a checkerboard": (rows + columns) % 2 == 0,
        "the rim": (rows == 0) | (rows == 28) | (columns == 0) | (columns == 36),
        "all but the rim": (rows > 0) & (rows < 28) & (columns > 0) & (columns < 36),
        "all but one pixel": (rows != 20) | (columns != 3),
        "all but one corner": (rows > 0) | (columns > 0),
        "half, at random": draw < 0.5,
        "nearly all, at random": draw < 0.95,
    }


@pytest.mark.parametrize("name", masks())
def test_solves_the_equations(name: str) -> None:
    image, hidden = 2 + pictures(1, SIZE)[0], masks()[name]
    expected = slow.imputed(image, hidden)
    for dtype in (torch.float64, torch.float32):
        found = impute(image[None].to(dtype), hidden[None])[0]
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=4e-5)
        assert torch.equal(found[:, ~hidden], image.to(dtype)[:, ~hidden]), "what is seen stays"
        low, high = image[:, ~hidden].amin(1), image[:, ~hidden].amax(1)
        inside = found.float().flatten(1)
        assert ((inside >= low[:, None] - 1e-4) & (inside <= high[:, None] + 1e-4)).all(), "a mean is between"


@pytest.mark.parametrize("share", SHARES)
def test_agrees_with_pytorch_grad_cam(share: float) -> None:
    image = vitrail.load("demo").preprocess.batch([scenes.make(3).pil])
    heat = F.interpolate(torch.rand(1, 1, 9, 9, generator=torch.Generator().manual_seed(0)), (144, 144), mode="bicubic")
    hidden = heat[:, 0] > heat.flatten().quantile(1 - share)
    expected = NoisyLinearImputer(noise=0)(image[0], (~hidden[0]).float())
    torch.testing.assert_close(impute(image, hidden)[0], expected, rtol=0, atol=4e-5)


def test_nothing_hidden_everything_hidden_and_many_together() -> None:
    images = pictures(3, SIZE)
    nothing = torch.zeros(3, *SIZE, dtype=torch.bool)
    assert torch.equal(impute(images, nothing), images)
    torch.testing.assert_close(impute(images, ~nothing), images.mean((2, 3), keepdim=True).expand_as(images))
    holes = torch.stack(list(masks().values()))
    many = images[:1].expand(len(holes), -1, -1, -1)
    alone = torch.cat([impute(images[:1], hole[None]) for hole in holes])
    assert torch.equal(impute(many, holes), alone), "no system knows of the others"
    assert impute(images[:0], nothing[:0]).shape == (0, 3, *SIZE)


def test_a_slope_goes_on_under_a_hole() -> None:
    slope = (torch.arange(40)[:, None] - 0.5 * torch.arange(60)).expand(1, 1, 40, 60).double()
    hole = torch.zeros(1, 40, 60, dtype=torch.bool)
    hole[:, 5:30, 10:50] = True
    torch.testing.assert_close(impute(slope, hole), slope, rtol=0, atol=1e-4)


def test_the_grids_fit_together() -> None:
    fine, coarse = (torch.randn(1, 1, *size, generator=torch.Generator().manual_seed(0)) for size in ((8, 12), (4, 6)))
    doubled = F.interpolate(coarse, scale_factor=2, mode="bilinear")
    torch.testing.assert_close((doubled * fine).sum(), (coarse * coarser(fine)).sum())
    kernel = torch.tensor([[1.0, 2.0, 1.0], [2.0, 0.0, 2.0], [1.0, 2.0, 1.0]])[None, None]
    torch.testing.assert_close(neighbours(fine), F.conv2d(fine, kernel, padding=1))


@pytest.fixture(scope="module")
def view() -> View:
    return vitrail.load(build("class token", img_size=32), size=(32, 32))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return 2 * pictures(2, (32, 32)).double()


@pytest.fixture(scope="module")
def maps() -> Tensor:
    return torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@oracle("road", "road_lerf", "road_morf")
def test_agrees_with_the_definition(view: View, images: Tensor, maps: Tensor) -> None:
    case = Case(view, images, maps, Target(torch.tensor([1, 2])))
    settings = f"(shares={tuple(SHARES)}, noise=0.3, seed=2)"
    found, morf, lerf = (parse(name + settings).measure(case) for name in ("road", "road_morf", "road_lerf"))
    for i in range(2):
        noise = 0.3 * torch.randn(3, 32, 32, generator=Batch(images).generator(i, 2)).double()
        high, low = (
            np.mean(slow.probabilities(view, images[i], maps[i], noise, i + 1, SHARES, lowest_first))
            for lowest_first in (False, True)
        )
        assert [float(x[i]) for x in (found, morf, lerf)] == pytest.approx([(low - high) / 2, high, low], abs=1e-8)


def test_agrees_with_pytorch_grad_cam_combined(view: View, images: Tensor, maps: Tensor) -> None:
    """At shares where both count the same pixels, without noise, which it draws afresh each time."""
    heat = maps.flatten(1).argsort(1).argsort(1).view_as(maps).float() / 1023
    imputer = NoisyLinearImputer(noise=0)
    changes = []
    for remove in (RemoveLeastRelevantFirst, RemoveMostRelevantFirst):
        seen = [[remove(p, imputer)(x.float(), h) for p in (25, 50, 75)] for x, h in zip(images, heat)]
        answers = [view.model(torch.stack(row).double()).softmax(1)[:, 1] for row in seen]
        changes.append(torch.stack(answers).mean(1))
    expected = (changes[0] - changes[1]).detach() / 2
    found = Road(shares=(0.25, 0.5, 0.75), noise=0).measure(Case(view, images, heat, Target(torch.tensor([1, 1]))))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_three_numbers_from_the_same_answers(view: View, images: Tensor, maps: Tensor) -> None:
    case = Case(view, images, maps, Target(torch.tensor([1, 2])), labels=torch.tensor([0, 1]))
    before = view.meter.forwards
    for spec in ("road", "road_morf", "road_lerf", "road_morf(score=accuracy, target=label)"):
        assert torch.isfinite(parse(spec).measure(case)).all()
    assert view.meter.forwards - before == 2 * 18 + 2, "nine shares, two ways, and the clean images"
    accuracy = parse("road_morf(score=accuracy, target=predicted)").measure(case)
    assert ((accuracy * 9).round() == accuracy * 9).all()


def test_equal_and_opposite_maps(view: View, images: Tensor, maps: Tensor) -> None:
    metric = Road(shares=tuple(SHARES))
    assert metric.measure(Case(view, images, torch.full((2, 32, 32), 0.3))).tolist() == [0, 0]
    assert metric.measure(Case(view, images, torch.zeros(2, 2, 2))).tolist() == [0, 0]
    assert torch.equal(metric.measure(Case(view, images, -maps)), -metric.measure(Case(view, images, maps)))
    whole = Road(shares=(0.0, 1.0)).measure(Case(view, images, maps))
    assert whole.tolist() == [0, 0], "nothing and everything removed are the same either way"


def test_does_not_depend_on_the_batch(view: View, images: Tensor, maps: Tensor) -> None:
    metric = Road(shares=tuple(SHARES))
    together = metric.measure(Case(view, images.flip(0), maps.flip(0))).flip(0)
    alone = torch.cat([metric.measure(Case(view, images[i : i + 1], maps[i : i + 1])) for i in range(2)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
    with torch.inference_mode():
        again = metric.measure(Case(view, images, maps))
    torch.testing.assert_close(again.clone(), together, rtol=1e-9, atol=1e-12)
    assert (Road(shares=tuple(SHARES), seed=1).measure(Case(view, images, maps)) != together).all()
    assert parse(metric.spec) == metric


def test_a_good_map_has_a_good_score() -> None:
    view = vitrail.load("demo")
    images = view.preprocess.batch([scenes.make(seed).pil for seed in (3, 4)])
    found = Road(shares=(0.5, 0.8)).measure(Case(view, images, vitrail.explain(view, images, "decompx").maps))
    assert (found > 0.1).all()


def test_mistakes_get_a_sentence(view: View, images: Tensor, maps: Tensor) -> None:
    with pytest.raises(InputError, match="road needs shares to be 0 to 1, but"):
        Road(shares=(0.5, 1.5))
    with pytest.raises(InputError, match="true classes are needed"):
        Road(target="label").measure(Case(view, images, maps))
