"""The grid pointing game: mosaics by hand, a model whose maps are known, and what chance gives."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from helpers.oracle import oracle
from vitrail import InputError, scenes
from vitrail.method import Batch, Method
from vitrail.method import parse as method_of
from vitrail.metric import Case
from vitrail.metric.localisation.mosaic import (
    OWN,
    GridPointingGame,
    cell_of,
    drawn,
    pictures_of,
    seating,
    share_of_cell,
)
from vitrail.model import Target, View


class Colours(nn.Module):
    """Red, green, blue or none of them: the mean of a linear map of the pixels, so that ixg is that map."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 4, 1, bias=False)
        with torch.no_grad():
            self.mix.weight.copy_(torch.cat([torch.eye(3), -torch.ones(1, 3)]).view(4, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(images).mean((2, 3))


PURE = torch.cat([torch.eye(3), -torch.ones(1, 3)]).view(4, 3, 1, 1).expand(4, 3, 16, 16)
COLOURS = vitrail.load(Colours(), size=(16, 16))


@dataclass(frozen=True)
class Flat(Method):
    """The same everywhere, at the size of the picture."""

    id, needs, pixels = "flat", frozenset(), True
    value: float = 1.0

    def maps(self, view: View, batch: Batch) -> Tensor:
        return torch.full((len(batch), *batch.size), self.value)


def measure(images: Tensor, method: Method | str, metric: GridPointingGame, view: View = COLOURS, **known) -> Tensor:
    target = known.pop("target", None)
    maps = torch.zeros(len(images), 2, 2)
    return metric.measure(Case(view, images, maps, target, method=method_of(method), **known))


@pytest.mark.parametrize("fit", ["shrink", "enlarge"])
def test_a_map_that_knows_and_one_that_does_not(fit: str) -> None:
    game = GridPointingGame(fit=fit)
    torch.testing.assert_close(measure(PURE, "ixg", game), torch.ones(4).double())
    assert measure(PURE, Flat(), game).tolist() == [0.25] * 4
    assert measure(PURE, Flat(0.0), game).tolist() == [0.0] * 4, "nothing is nowhere"
    assert measure(PURE, Flat(-1.0), game).tolist() == [0.0] * 4
    assert measure(PURE, Flat(1e-11), game).tolist() == [0.0] * 4, "next to nothing too"
    assert measure(PURE, Flat(torch.nan), game).isnan().all(), "not a number is not nothing"


def test_the_class_explained_is_the_pictures_own() -> None:
    """Explained for another class than its own, a picture's cell has nothing to show."""
    target = Target(torch.tensor([1, 0, 3, 2]))
    pool = torch.cat([PURE, 0.9 * PURE])
    assert measure(PURE, "ixg", GridPointingGame(), target=target, others=pool).tolist() == [0.0] * 4


def test_others_are_of_other_classes() -> None:
    classes = torch.tensor([0, 0, 1, 2, 3, 4, 4])
    allowed = torch.tensor([True, True, False, True, True, True, True])
    generator = torch.Generator().manual_seed(0)
    cells, chosen = Counter(), Counter()
    for _ in range(400):
        seat = seating(classes, allowed, 2, generator)
        assert seat is not None
        cells[seat.index(OWN)] += 1
        numbers = [number for number in seat if number != OWN]
        assert len(numbers) == 3
        assert len({int(classes[number]) for number in numbers}) == 3
        assert allowed[numbers].all()
        chosen.update(int(classes[number]) for number in numbers)
    assert all(60 < cells[k] < 140 for k in range(4)), "every cell"
    assert all(260 < chosen[k] < 340 for k in (0, 2, 3, 4)), "every class, however many pictures it has"
    assert seating(classes, allowed & (classes != 0) & (classes != 2), 2, generator) is None


def test_a_mosaic() -> None:
    for size in ((12, 12), (7, 11)):  # the second does not divide
        seen = torch.zeros(size)
        for number in range(9):
            seen[cell_of(number, 3, size)] += 1
        assert (seen == 1).all()
    pictures = list(torch.rand(4, 3, 10, 14, generator=torch.Generator().manual_seed(0)))
    large = drawn(pictures, 2, (20, 28))
    rows = [torch.cat(pictures[:2], 2), torch.cat(pictures[2:], 2)]
    assert torch.equal(large, torch.cat(rows, 1))
    small = drawn(pictures, 2, (10, 14))
    expected = F.interpolate(pictures[2][None], (5, 7), mode="bilinear", antialias=True)[0]
    assert torch.equal(small[:, 5:, :7], expected)


def test_shares() -> None:
    heat = torch.zeros(6, 6)
    heat[0, 0], heat[4, 1], heat[5, 5], heat[1, 1] = 1.0, 2.0, 1.0, -5.0
    assert [float(share_of_cell(heat, k, 2)) for k in range(4)] == [0.25, 0.0, 0.5, 0.25]


def test_pictures_that_do_not_count() -> None:
    assert measure(PURE[:3], "ixg", GridPointingGame()).isnan().all(), "four classes are needed"
    with torch.no_grad():
        sure = COLOURS.logits(PURE).softmax(1).amax(1)
    assert sure[3] > 0.9 > sure[0]
    game = GridPointingGame(confidence=0.9)
    assert measure(PURE, "ixg", game).isnan().all()
    pool = torch.cat([20 * PURE, PURE])
    found = measure(torch.cat([9 * PURE, PURE]), "ixg", game, others=pool)
    assert found.isnan().tolist() == [False] * 4 + [True, True, True, False]
    seats = [s for s in game.seats(Case(COLOURS, 9 * PURE, torch.zeros(4, 2, 2), others=pool)) if s is not None]
    assert all(number in (OWN, 0, 1, 2, 3, 7) for seat in seats for number in seat), "the others are sure too"


@oracle("grid_pointing_game")
def test_agrees_with_mosaics_made_by_hand(pictures: Tensor) -> None:
    view, game, images = vitrail.load("demo"), GridPointingGame(seed=3), pictures[:3]
    case = Case(view, images, torch.zeros(3, 2, 2), method=method_of("ixg"), others=pictures)
    found = game.measure(case)
    for i, seat in enumerate(game.seats(case)):
        mosaic = torch.zeros(1, 3, 144, 144)
        for cell, number in enumerate(seat):
            picture = images[i] if number == OWN else pictures[number]
            small = F.interpolate(picture[None], (72, 72), mode="bilinear", antialias=True)[0]
            mosaic[0, :, cell // 2 * 72 :, cell % 2 * 72 :][:, :72, :72] = small
        heat = vitrail.explain(view, mosaic, "ixg", int(case.predicted[i])).maps[0].clamp_min(0)
        own = seat.index(OWN)
        inside = heat[own // 2 * 72 :, own % 2 * 72 :][:72, :72].sum()
        assert float(found[i]) == pytest.approx(float(inside / heat.sum()), rel=1e-5)


def test_a_picture_is_not_set_beside_itself() -> None:
    target = Target(torch.full((4,), 3))  # then their own predicted classes may be chosen for other cells
    case = Case(COLOURS, PURE, torch.zeros(4, 2, 2), target, others=PURE)
    for seed in range(8):
        for i, seat in enumerate(GridPointingGame(seed=seed).seats(case)):
            assert seat is None or i not in seat


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    return vitrail.load("demo").preprocess.batch([scenes.make(seed).pil for seed in range(24)])


def test_chance_and_a_method_that_looks(pictures: Tensor) -> None:
    view = vitrail.load("demo")
    random = measure(pictures, "random", GridPointingGame(), view)
    assert float(random.mean()) == pytest.approx(0.25, abs=0.015)
    thirds = measure(pictures, "random", GridPointingGame(cells=3), view)
    assert float(thirds.nanmean()) == pytest.approx(1 / 9, abs=0.015)
    good = measure(pictures[:8], "decompx", GridPointingGame(), view, others=pictures)
    assert float(good.nanmean()) > 0.35


def test_neither_batch_nor_call_matters_and_seeds_do(pictures: Tensor) -> None:
    view, game = vitrail.load("demo"), GridPointingGame()
    maps = torch.zeros(3, 2, 2)
    whole = measure(pictures[:3], "random", game, view, others=pictures)
    torch.testing.assert_close(measure(pictures[1:3], "random", game, view, others=pictures), whole[1:])
    assert torch.equal(measure(pictures[:3], "random", game, view, others=pictures), whole)
    seats = [replace(game, seed=seed).seats(Case(view, pictures[:3], maps, others=pictures)) for seed in (0, 1)]
    assert seats[0] != seats[1]


def test_the_other_cells_are_the_rivals(pictures: Tensor) -> None:
    """``var(A, classes=present)`` compares the classes of the mosaic, whatever the picture itself shows besides."""
    view, game, told = vitrail.load("demo"), GridPointingGame(), []
    images = pictures[:3]

    @dataclass(frozen=True)
    class Listening(Flat):
        def maps(self, view: View, batch: Batch) -> Tensor:
            told.append(batch.target)
            return super().maps(view, batch)

    own = vitrail.explain(view, images, "random").classes
    target = Target(own, rivals=own[:, None])
    case = Case(view, images, torch.zeros(3, 2, 2), target, method=Listening(), others=pictures)
    game.measure(case)
    answers = case.others.logits.argmax(1)
    for seat, rivals in zip(game.seats(case), told[0].rivals):
        assert rivals.tolist() == [int(answers[number]) for number in seat if number != OWN]
    assert told[0].classes.tolist() == own.tolist()

    seat, rivals = game.seats(case)[1], tuple(told[0].rivals[1].tolist())
    one = measure(images[1:2], "var(ixg, classes=present)", game, view, others=pictures)
    assert torch.equal(one, measure(images[1:2], f"var(ixg, classes={rivals})", game, view, others=pictures))
    mosaic = drawn(pictures_of(case, 1, seat), 2, case.size)[None]
    base = vitrail.explain(view, mosaic, "ixg", int(own[1])).upsample()[0]
    assert not torch.isclose(one, share_of_cell(base, seat.index(OWN), 2)), "the base map alone is another"


def test_the_pool_is_asked_once_and_maps_come_in_one_batch(pictures: Tensor) -> None:
    view, sizes = vitrail.load("demo"), []

    @dataclass(frozen=True)
    class Counting(Flat):
        def maps(self, view: View, batch: Batch) -> Tensor:
            sizes.append(len(batch))
            return super().maps(view, batch)

    case = Case(view, pictures[:5], torch.zeros(5, 2, 2), method=Counting(), others=pictures)
    before = view.meter.forwards
    GridPointingGame().measure(case)
    GridPointingGame(seed=1).measure(case)
    assert view.meter.forwards == before + 5 + len(pictures)
    assert sizes == [5, 5]


def test_what_a_mosaic_looks_like(pictures: Tensor) -> None:
    view, game = vitrail.load("demo"), GridPointingGame()
    case = Case(view, pictures[:2], torch.zeros(2, 2, 2), others=pictures)
    for i, seat in enumerate(game.seats(case)):
        assert seat is not None
        mosaic = drawn(pictures_of(case, i, seat), 2, case.size)
        assert mosaic.shape == pictures.shape[1:]
        own = mosaic[(slice(None), *cell_of(seat.index(OWN), 2, case.size))]
        torch.testing.assert_close(own, F.interpolate(pictures[i][None], (72, 72), mode="bilinear", antialias=True)[0])


def test_mistakes_get_a_sentence(pictures: Tensor) -> None:
    demo = vitrail.load("demo")
    with pytest.raises(InputError, match=r"288 x 288 pixels.*fit=shrink"):
        measure(pictures, "random", GridPointingGame(fit="enlarge"), demo)
    with pytest.raises(InputError, match="needs cells to be 2 to 16, but cells=1"):
        GridPointingGame(cells=1)
    with pytest.raises(InputError, match="needs a class"):
        measure(PURE, "ixg", GridPointingGame(), target=Target(None, lambda logits: logits[:, 0]))
    with pytest.raises(InputError, match="the method that made the maps"):
        GridPointingGame().measure(Case(COLOURS, PURE, torch.zeros(4, 2, 2)))
