"""Pictures to learn from: read once, cut at random, and drawn the same whoever draws them."""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from vitrail.data import Dataset, Item, dataset
from vitrail.errors import InputError
from vitrail.events import observers_of, working
from vitrail.model import pictures

MARGIN = 8 / 7
"""Pictures are kept so much larger than the model sees them, so that cuts have detail."""

KEPT = 4 * 2**30
"""Bytes of pictures that are kept once they are read; larger datasets are read again each time."""

SHARE = 4
"""Pictures are kept on a GPU where they take at most one part in so many of its free memory."""

UNREADABLE = (OSError, InputError, ValueError, Image.DecompressionBombError)


def joined(specs: Sequence[str]) -> Dataset:
    """Several datasets one behind the other; each picture is then named with its dataset, as names may come twice.

    Of datasets with a part to learn from and one to judge by, it is the former.
    """
    parts = [dataset(spec, learn=True) for spec in specs]
    if len(parts) == 1:
        return parts[0]
    items = (replace(item, name=f"{part.spec}: {item.name}") for part in parts for item in part)
    return Dataset(" ".join(specs), tuple(items))


class Pictures:
    """The pictures of a dataset as squares of bytes. One that cannot be read is replaced by the next, and named.

    Args:
        items: The pictures.
        size: Height and width of the model's input.
        mark: The number by which a picture is known again.

    Attributes:
        broken: What could not be read, and why.
        marks: The marks of the pictures that were read, by their numbers.
    """

    def __init__(
        self, items: Sequence[Item], size: tuple[int, int], mark: Callable[[Image.Image], int] | None = None
    ) -> None:
        self.items = list(items)
        self.marks: dict[int, int] = {}
        self._mark = mark
        self.size = (round(size[0] * MARGIN), round(size[1] * MARGIN))
        self.broken: dict[str, str] = {}
        shape = (len(self.items), 3, *self.size)
        # It takes no memory before it is written to.
        self._shelf = torch.empty(shape, dtype=torch.uint8) if math.prod(shape) <= KEPT else None
        self._there: set[int] = set()
        self._whole = False
        self._readers = ThreadPoolExecutor(min(16, os.cpu_count() or 1))

    def __len__(self) -> int:
        return len(self.items)

    def fetch(self, numbers: Sequence[int]) -> Tensor:
        """(n, 3, height, width) uint8: some of the pictures, on the device that they are kept on."""
        if self._shelf is not None and self._whole:
            return self._shelf[torch.tensor(list(numbers), device=self._shelf.device)]
        return torch.stack(list(self._readers.map(self._readable, numbers)))

    def load(self, device: torch.device, *, progress: bool = False) -> None:
        """Read all pictures now, many at a time, and keep them on a GPU that has room; too many to keep are left.

        Args:
            device: Where they will be needed.
            progress: Show a progress line.
        """
        if self._shelf is None or self._whole:
            return
        squares = self._readers.map(self._readable, range(len(self)))
        with working("reading", len(self), "picture", observers=observers_of(progress, ())) as work:
            for number, square in enumerate(squares):
                self._shelf[number] = square  # that of the next where this one is broken
                work.finish_some()
        if device.type == "cuda" and self._shelf.numel() * SHARE <= torch.cuda.mem_get_info(device)[0]:
            self._shelf = self._shelf.to(device)
        self._whole = True

    def marked(self, numbers: Sequence[int]) -> list[int]:
        """The marks of some of the pictures, which are read for it where they were not yet; broken ones have none."""
        list(self._readers.map(self._read, [number for number in numbers if number not in self.marks]))
        return [self.marks[number] for number in numbers if number in self.marks]

    def _readable(self, number: int) -> Tensor:
        for other in range(len(self.items)):
            found = self._read((number + other) % len(self.items))
            if found is not None:
                return found
        name, why = next(iter(self.broken.items()))
        raise InputError(f"none of {len(self.items)} pictures can be read; the first, {name}: {why}")

    def _read(self, number: int) -> Tensor | None:
        if self._shelf is not None and number in self._there:
            return self._shelf[number]
        item = self.items[number]
        if item.name in self.broken:
            return None
        try:
            picture = pictures.read(item.picture())
            square = ImageOps.fit(picture, self.size[::-1], Image.Resampling.BICUBIC)
            if self._mark is not None and number not in self.marks:
                self.marks[number] = self._mark(picture)
        except UNREADABLE as error:
            self.broken[item.name] = str(error)
            return None
        found = torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()
        if self._shelf is not None:
            self._shelf[number] = found
            self._there.add(number)
        return found


@dataclass(frozen=True)
class Draw:
    """What chance decides about one picture in one step.

    Attributes:
        number: Which picture.
        box: Left, top, width and height of the cut, as shares.
        mirrored: Whether left and right are changed.
        rank: The class that is explained: 0 for the most probable one, 1 for the next.
        reference: Which of the references stands where the picture is hidden.
    """

    number: int
    box: tuple[float, float, float, float]
    mirrored: bool
    rank: int
    reference: int


def draws(count: int, batch: int, seed: int, step: int, *, others: float, references: int) -> list[Draw]:
    """What a step looks at: each picture once in an epoch, in an order of chance.

    All depends on the seed, the step and the place in the batch alone, so it is the same on any number of machines and
    after any number of stops.

    Args:
        count: How many pictures there are.
        batch: How many a step takes.
        seed: Another seed draws others.
        step: Which step.
        others: How often another class than the most probable one is explained.
        references: How many references there are.
    """
    found = []
    for place in range(step * batch, (step + 1) * batch):
        epoch, position = divmod(place, count)
        number = int(_order(count, seed, epoch)[position])
        chance = np.random.default_rng((seed, 1, place))
        share = np.sqrt(chance.uniform(0.5, 1.0))  # of a side: half of the picture or more
        left, top = chance.uniform(0, 1 - share, 2)
        mirrored, other = chance.random() < 0.5, chance.random() < others
        rank = int(chance.integers(1, 5)) if other else 0
        found.append(Draw(number, (left, top, share, share), bool(mirrored), rank, int(chance.integers(references))))
    return found


def numbers_drawn(count: int, batch: int, seed: int, steps: int) -> list[int]:
    """The numbers of the pictures that were drawn in so many steps."""
    return sorted(_order(count, seed, 0)[: min(count, batch * steps)].tolist())


@lru_cache(maxsize=2)  # a step may end one epoch and begin the next
def _order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, 0, epoch)).permutation(count)


def cut(squares: Tensor, drawn: Sequence[Draw], size: tuple[int, int]) -> Tensor:
    """(n, 3, h, w) uint8 -> (n, 3, *size) between 0 and 1: a part of each picture, some of them mirrored."""
    places = []
    for one in drawn:
        left, top, width, height = one.box
        turn = -1.0 if one.mirrored else 1.0
        places.append([[turn * width, 0.0, 2 * left + width - 1], [0.0, height, 2 * top + height - 1]])
    theta = torch.tensor(places, dtype=torch.float32, device=squares.device)
    grid = F.affine_grid(theta, [len(squares), 3, *size], align_corners=False)
    return F.grid_sample(squares.float() / 255, grid, mode="bilinear", padding_mode="border", align_corners=False)


def centre(squares: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, 3, h, w) uint8 -> (n, 3, *size) between 0 and 1: the middle, as the model would see it."""
    top, left = ((whole - part) // 2 for whole, part in zip(squares.shape[2:], size))
    return squares[:, :, top : top + size[0], left : left + size[1]].float() / 255
