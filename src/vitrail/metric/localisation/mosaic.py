"""Does a map find its own picture among others? Mosaics of pictures of different classes (Rao et al. 2022, VAR)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.fields import number, random_seed
from vitrail.method import Batch, checksum
from vitrail.metric.base import Metric, register
from vitrail.metric.case import Case
from vitrail.model import full

NOTHING = 1e-7
"""A map whose positive part adds up to no more than this has none."""

OWN = -1
"""Stands for the picture itself where the others of a mosaic stand by their number."""


def seating(classes: Tensor, allowed: Tensor, cells: int, generator: torch.Generator) -> list[int] | None:
    """Which picture comes into which cell of a mosaic, row by row; None where too few classes are at hand.

    Args:
        classes: (M,) the classes of the pictures to choose from.
        allowed: (M,) which of them may be chosen.
        cells: Pictures in a row, and in a column.
        generator: Draws the own cell, other classes, each as likely as any, and a picture of each.
    """
    wanted = cells**2 - 1
    found = classes[allowed].unique()
    if len(found) < wanted:
        return None
    own = _draw(wanted + 1, generator)
    numbers = []
    for chosen in found[torch.randperm(len(found), generator=generator)[:wanted]]:
        members = (allowed & (classes == chosen)).nonzero().squeeze(1)
        numbers.append(int(members[_draw(len(members), generator)]))
    return [*numbers[:own], OWN, *numbers[own:]]


def _draw(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (1,), generator=generator))


def cell_of(number: int, cells: int, size: tuple[int, int]) -> tuple[slice, slice]:
    """The rows and columns of a cell in a mosaic of ``size`` pixels, whether or not they divide evenly."""
    row, column = (
        slice(place * side // cells, (place + 1) * side // cells) for place, side in zip(divmod(number, cells), size)
    )
    return row, column


def drawn(pictures: list[Tensor], cells: int, size: tuple[int, int]) -> Tensor:
    """(3, H, W) pictures -> (3, height, width): a mosaic, each picture resized to its cell, so that none mix."""
    canvas = pictures[0].new_empty(3, *size)
    for cell, picture in enumerate(pictures):
        rows, columns = cell_of(cell, cells, size)
        place = canvas[:, rows, columns]
        if place.shape != picture.shape:
            picture = F.interpolate(full(picture)[None], place.shape[1:], mode="bilinear", antialias=True)[0]
        place.copy_(picture)
    return canvas


def share_of_cell(heat: Tensor, number: int, cells: int) -> Tensor:
    """(H, W) -> (): the share of the positive part that lies in a cell; 0 where there is none."""
    heat = heat.relu().double()
    total = heat.sum()
    inside = heat[cell_of(number, cells, (heat.shape[0], heat.shape[1]))].sum()
    return torch.where(total <= NOTHING, 0, inside / total)


@register("grid_pointing_game", "Rao et al. 2022, VAR 2025", higher_is_better=True, needs=["method"])
@dataclass(frozen=True)
class GridPointingGame(Metric):
    """The share of the map's positive part in a picture's own cell, in a mosaic with pictures of other classes.

    The class explained is the picture's own; knowing nothing gives one over the number of cells. The others come from
    the case's pool, or else from its own images, and each is of another class by the model's prediction. These classes
    are the target's rivals, so that ``var(classes=present)`` compares the cells as its paper does. A picture for which
    there are too few classes does not count.

    Attributes:
        cells: Pictures in a row, and in a column.
        confidence: Pictures whose class has a lower probability do not take part (0.99 in Rao et al.).
        fit: ``shrink`` the mosaic to the size of one picture, which every model takes, or ``enlarge`` it, so that each
            cell has the size of a picture.
        seed: Another seed draws other neighbours and other cells.
    """

    uses_others: ClassVar[bool] = True
    cells: int = number(2, low=2, high=16)
    confidence: float = number(0.0, low=0, high=1)
    fit: Literal["shrink", "enlarge"] = "shrink"
    seed: int = random_seed()

    @property
    def uncounted(self) -> str:
        unsure = f", or the model is less than {self.confidence:g} sure of their class" if self.confidence else ""
        return (
            f"their mosaic takes {self.cells**2 - 1} other pictures, each predicted as another class, and there are "
            f"too few{unsure}"
        )

    def measure(self, case: Case) -> Tensor:
        size = self._size(case)
        seats = {i: seat for i, seat in enumerate(self.seats(case)) if seat is not None}
        found = torch.full((len(case),), torch.nan, dtype=torch.float64, device=case.view.device)
        if not seats:
            return found
        which = torch.tensor(list(seats), device=case.view.device)
        mosaics = torch.stack([drawn(pictures_of(case, i, seat), self.cells, size) for i, seat in seats.items()])
        target = replace(case.target.take(which), rivals=rivals_of(case, list(seats.values())).to(which.device))
        maps = case.explain(mosaics, target)
        assert case.method is not None
        heat = maps if maps.shape[1:] == size else case.method.enlarge(maps, size)
        shares = [share_of_cell(one, seat.index(OWN), self.cells) for one, seat in zip(heat, seats.values())]
        found[which] = torch.stack(shares).to(found.device)
        return found

    def seats(self, case: Case) -> list[list[int] | None]:
        """For each image the pictures of its mosaic, see `seating`; None for one that does not count."""
        own = case.target.classes
        if own is None:
            raise InputError("the grid pointing game needs a class, but a function of the logits was explained")
        sure = (case.target.probability(case.logits) >= self.confidence).tolist()
        answers = case.others.logits.softmax(1).max(1)
        classes, able = answers.indices.cpu(), (answers.values >= self.confidence).cpu()
        batch, keys, pool = Batch(case.images), checksum(case.images), checksum(case.others.images)
        return [
            seating(classes, able & (classes != c) & (pool != key), self.cells, batch.generator(i, self.seed))
            if sure[i]
            else None
            for i, (c, key) in enumerate(zip(own.cpu(), keys))
        ]

    def _size(self, case: Case) -> tuple[int, int]:
        if self.fit == "shrink":
            return case.size
        size = (case.size[0] * self.cells, case.size[1] * self.cells)
        try:
            case.view.grid_at(size)
        except InputError as error:
            raise InputError(f"{error}; fit=shrink makes mosaics of that size") from error
        return size


def pictures_of(case: Case, image: int, seat: list[int]) -> list[Tensor]:
    """The pictures of one image's mosaic, cell by cell."""
    return [case.images[image] if number == OWN else case.others.images[number] for number in seat]


def rivals_of(case: Case, seats: list[list[int]]) -> Tensor:
    """(mosaics, cells - 1) the predicted classes of the pictures in the other cells: what a mosaic shows besides."""
    others = torch.tensor([[number for number in seat if number != OWN] for seat in seats])
    return case.others.logits.argmax(1).cpu()[others]
