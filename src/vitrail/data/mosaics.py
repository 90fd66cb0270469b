"""Mosaics: four pictures of four classes in one, so that it is known where the evidence for each class can be."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from vitrail.data.items import Dataset, Item, Mask, Picture
from vitrail.data.masks import masks_of
from vitrail.errors import InputError
from vitrail.model import Preprocess, pictures

SIDE = 224
"""Height and width of a cell; that of a mosaic is twice as much."""

SEED = 0
"""Which pictures meet; another order would be another dataset."""

FRAME = Preprocess((SIDE, SIDE), crop=1.0, interpolation="bicubic")
"""What a cell shows of its picture: the short side resized, the centre of the long one."""

CORNERS = ((0, 0), (0, SIDE), (SIDE, 0), (SIDE, SIDE))
"""First row and column of each cell: from left to right, from top to bottom."""


@dataclass(frozen=True)
class Mosaic:
    """Four pictures in two rows of two.

    Attributes:
        items: Where the four pictures come from.
    """

    items: tuple[Item, ...]

    def open(self) -> Image.Image:
        """The picture."""
        return _laid(self).copy()

    def stamp(self) -> str:
        """What the four say; their names too, since a file's own stamp is only its size."""
        return repr((SIDE, [item.stamp() for item in self.items]))


@lru_cache(maxsize=8)  # four items in a row share a mosaic
def _laid(mosaic: Mosaic) -> Image.Image:
    canvas = Image.new("RGB", (2 * SIDE, 2 * SIDE))
    for item, (row, column) in zip(mosaic.items, CORNERS):
        canvas.paste(FRAME.picture(item.picture()), (column, row))
    return canvas


@dataclass(frozen=True)
class Cell:
    """The region of one cell.

    Attributes:
        number: Which of the four.
    """

    number: int

    def read(self) -> Mask:
        """(H, W) int8: 1 in the cell."""
        return _placed(np.ones((SIDE, SIDE), np.int8), self.number)

    def stamp(self) -> str:
        """Which cell."""
        return f"cell {self.number}"


@dataclass(frozen=True)
class Part:
    """The object in one cell.

    Attributes:
        number: Which of the four cells.
        item: The picture in it, whose mask is known, or else its boxes.
    """

    number: int
    item: Item

    def read(self) -> Mask:
        """(H, W) int8: 1 on what the cell shows of the object, -1 where it does not count in the picture."""
        mask = self.item.mask()
        known = ([mask], None) if mask is not None else (None, [self.item.boxes])
        framed = masks_of(FRAME, [pictures.read(self.item.picture())], slice(0, 1), *known)
        assert framed is not None
        return _placed(framed[0].numpy(), self.number)

    def stamp(self) -> str:
        """Which cell; the mosaic's own stamp says the rest."""
        return f"part {self.number}"


def _placed(cell: Mask, number: int) -> Mask:
    mask = np.zeros((2 * SIDE, 2 * SIDE), np.int8)
    row, column = CORNERS[number]
    mask[row : row + SIDE, column : column + SIDE] = cell
    return mask


def quad_items(inner: Dataset, spec: str, parts: bool) -> Dataset:
    """``quads:SPEC`` and ``part-quads:SPEC``: mosaics of four pictures of another dataset, an item for each cell.

    Every picture with a label is in one mosaic, except the last ones, of which no four are of different classes. A
    picture that is several items is used as the first of them. Both kinds lay the same mosaics.

    Args:
        inner: The other dataset.
        spec: The whole spec.
        parts: Whether the object in a cell is asked for, instead of the cell.
    """
    once: dict[Picture, Item] = {}
    for item in inner:
        if item.label is not None:
            once.setdefault(item.source, item)
    if parts and not any(_located(item) for item in once.values()):
        raise InputError(f"{spec}: {inner.spec} has neither masks nor boxes; give another dataset, or use quads")
    items = []
    for i, four in enumerate(_fours(list(once.values()))):
        mosaic = Mosaic(four)
        for number, item in enumerate(four):
            region = Cell(number) if not parts else Part(number, item) if _located(item) else None
            others = tuple(other.accepted for other in four if other is not item)
            items.append(Item(f"quad {i}.{number}", mosaic, item.label, region=region, present=others))
    if not items:
        raise InputError(f"{spec}: {inner.spec} must have labelled pictures of four classes or more")
    return Dataset(spec, tuple(items), inner.classes)


def _located(item: Item) -> bool:
    return item.region is not None or item.boxes is not None


def _fours(items: list[Item]) -> list[tuple[Item, ...]]:
    """Shuffled and cut in fours; a picture whose class is there already changes places with the next that fits."""
    order = [items[i] for i in np.random.default_rng(SEED).permutation(len(items))]
    fours: list[tuple[Item, ...]] = []
    for first in range(0, len(order) - 3, 4):
        for place in range(first + 1, first + 4):
            taken = {item.label for item in order[first:place]}
            fitting = next((i for i in range(place, len(order)) if order[i].label not in taken), None)
            if fitting is None:
                return fours
            order[place], order[fitting] = order[fitting], order[place]
        fours.append(tuple(order[first : first + 4]))
    return fours
