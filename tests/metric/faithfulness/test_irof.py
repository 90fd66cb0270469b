"""IROF and its superpixels against both done slowly, pixel by pixel."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import vitrail
from helpers.oracle import oracle
from helpers.small import build
from helpers.zoo import pictures
from oracles import irof as slow
from vitrail import InputError, scenes
from vitrail.metric.base import parse
from vitrail.metric.case import Case
from vitrail.metric.faithfulness.irof import IROF, lab, means, slic
from vitrail.model import Target, View
from vitrail.perturb import grid_labels


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many small steps: a second thread only waits for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def some(size: tuple[int, int]) -> Tensor:
    """Smooth pictures, and one of black and white noise, in which superpixels are lost."""
    smooth = (0.5 + pictures(2, size) / 4).clamp(0, 1)
    noise = (torch.rand(1, 1, *size, generator=torch.Generator().manual_seed(0)) < 0.5).float().expand(-1, 3, -1, -1)
    return torch.cat([smooth, noise]).double()


def test_colours() -> None:
    colours = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.02, 0.5, 0.03]])
    found = lab(colours.double().view(6, 3, 1, 1)).flatten(1)
    known = [[100, 0, 0], [0, 0, 0], [53.24, 80.09, 67.2], [87.73, -86.18, 83.18], [32.3, 79.19, -107.86]]
    torch.testing.assert_close(found[:5], torch.tensor(known).double(), rtol=0, atol=0.05)
    for row, colour in zip(found, colours.double()):
        torch.testing.assert_close(row, torch.from_numpy(slow.lab(colour.tolist())), rtol=0, atol=1e-5)


@pytest.mark.parametrize("compactness", [10, 1])
def test_superpixels_agree_with_slow_ones(compactness: float) -> None:
    images = some((20, 30))
    found = slic(images, 24, compactness, iterations=3)
    for i in range(3):
        assert found[i].tolist() == slow.slic(images[i], 4, 6, compactness, 3).tolist()


def test_superpixels_are_whole_numbers_without_gaps_in_any_batch() -> None:
    images = some((48, 60))
    found = slic(images, 30)
    counts = found.flatten(1).amax(1) + 1
    assert counts[:2].tolist() == [30, 30]
    assert 10 < counts[2] < 30, "some were lost, and the numbers closed up"
    for labels, count in zip(found, counts):
        assert labels.unique().tolist() == list(range(int(count)))
    alone = torch.cat([slic(image[None], 30) for image in images])
    assert torch.equal(found, alone)
    assert torch.equal(slic(images, 30, iterations=0), grid_labels((48, 60), (5, 6)).expand(3, -1, -1))
    assert slic(images, 1).unique().tolist() == [0]
    assert (slic(images[:, :, :3, :4], 100, iterations=0).flatten(1).amax(1) == 11).all(), "no more than pixels"


def test_superpixels_follow_edges() -> None:
    halves = torch.zeros(1, 3, 40, 40)
    halves[:, 0, :, 17:] = 1  # not where a grid of 4 x 4 has an edge
    labels = slic(halves, 16)[0]
    assert not set(labels[:, :17].flatten().tolist()) & set(labels[:, 17:].flatten().tolist())


def test_means_are_exact() -> None:
    values = torch.full((1, 1, 7), 0.1, dtype=torch.float64)
    found, counts = means(values, torch.tensor([[0, 0, 0, 2, 2, 2, 2]]), 3)
    assert counts.tolist() == [[3, 0, 4]]
    assert found[0, 0, 0] == found[0, 0, 2] == pytest.approx(0.1, abs=1e-9)
    assert found[0, 0, 1] == 0


@pytest.fixture(scope="module")
def view() -> View:
    return vitrail.load(build("class token", img_size=(48, 64)), size=(48, 64))


@pytest.fixture(scope="module")
def images(view: View) -> Tensor:
    mean, std = (torch.tensor(x).double().view(3, 1, 1) for x in (view.preprocess.mean, view.preprocess.std))
    return (some((48, 64)) - mean) / std


@pytest.fixture(scope="module")
def maps() -> Tensor:
    return torch.randn(3, 48, 64, generator=torch.Generator().manual_seed(0)).double()


@oracle("irof")
def test_agrees_with_the_definition(view: View, images: Tensor, maps: Tensor) -> None:
    classes = [1, 2, 3]
    metric = IROF(segments=20)
    case = Case(view, images, maps, Target(torch.tensor(classes)))
    labels = metric.cut(case)
    assert len(set((labels.flatten(1).amax(1) + 1).tolist())) > 1, "not all images have equally many"
    before = view.meter.forwards
    found = metric.measure(case)
    assert view.meter.forwards - before == 3 * 20 + 3
    for i in range(3):
        expected = slow.area_over_curve(view, images[i], maps[i], labels[i], classes[i])
        assert float(found[i]) == pytest.approx(expected, abs=1e-9)


def test_coarse_maps_and_signs(view: View, images: Tensor) -> None:
    maps = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    case = Case(view, images, maps, Target(torch.tensor([1, 2, 3])))
    heat = torch.nn.functional.interpolate(maps[:, None], (48, 64), mode="bilinear")[:, 0].abs()
    metric = IROF(segments=6, iterations=0, sign="absolute")
    expected = [slow.area_over_curve(view, images[i], heat[i], grid_labels((48, 64), (2, 3)), i + 1) for i in range(3)]
    assert metric.measure(case).tolist() == pytest.approx(expected, abs=1e-9)


def test_constant_and_empty_maps(view: View, images: Tensor) -> None:
    found = [IROF(segments=6).measure(Case(view, images, torch.full((3, 48, 64), v))) for v in (0.0, 0.1, -7.0)]
    assert torch.isfinite(found[0]).all()
    assert torch.equal(found[0], found[1]), "ties go by place"
    assert torch.equal(found[0], found[2])


def test_does_not_depend_on_the_batch(view: View, images: Tensor, maps: Tensor) -> None:
    metric = IROF(segments=12)
    together = metric.measure(Case(view, images.flip(0), maps.flip(0))).flip(0)
    alone = torch.cat([metric.measure(Case(view, images[i : i + 1], maps[i : i + 1])) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
    with torch.inference_mode():
        again = metric.measure(Case(view, images, maps))
    torch.testing.assert_close(again.clone(), together, rtol=1e-9, atol=1e-12)
    assert parse(metric.spec) == metric


def test_a_good_map_beats_its_opposite() -> None:
    view = vitrail.load("demo")
    images = view.preprocess.batch([scenes.make(seed).pil for seed in (3, 4)])
    maps = vitrail.explain(view, images, "decompx").maps
    good, bad = (IROF(segments=25).measure(Case(view, images, sign * maps)) for sign in (1, -1))
    assert (good > bad + 0.2).all()


def test_an_answer_of_nothing_does_not_count(view: View, images: Tensor, maps: Tensor) -> None:
    case = Case(view, images, maps, Target(None, lambda logits: logits[:, 0] * 0))
    assert IROF(segments=4).measure(case).isnan().all()


def test_mistakes_get_a_sentence(view: View, images: Tensor, maps: Tensor) -> None:
    with pytest.raises(InputError, match="irof needs segments to be 1 to"):
        IROF(segments=0)
    with pytest.raises(InputError, match="true classes are needed"):
        IROF(target="label").measure(Case(view, images, maps))
