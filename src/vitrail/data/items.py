"""What a dataset is: a sequence of items, each a picture and what is known of it, read when asked for."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.errors import InputError, option
from vitrail.files import legible
from vitrail.model import pictures

Mask: TypeAlias = NDArray[np.int8]
Box: TypeAlias = tuple[float, float, float, float]


class Picture(Protocol):
    """Where a picture comes from: small, picklable, and nothing is open."""

    def open(self) -> Path | Image.Image:
        """What `vitrail.explain` takes as an image."""

    def stamp(self) -> str:
        """What the fingerprint says of it; found without reading pixels."""


class Region(Protocol):
    """Where a mask comes from: small, picklable, and nothing is open."""

    def read(self) -> Mask:
        """(H, W) int8: 1 on the object, 0 beside it, -1 where it does not count."""

    def stamp(self) -> str:
        """What the fingerprint says of it; found without reading pixels."""


@dataclass(frozen=True)
class Item:
    """A picture and what is known of it.

    Attributes:
        name: What it is called; no other item of its dataset is called so, and it is the same on every machine.
        source: Where the picture comes from.
        label: The model's class that is right, or None where it is not known which one.
        boxes: (x0, y0, x1, y1) of each object of that class, in the picture's pixels, or None.
        region: Where the mask comes from, or None.
        accepted: All classes that are right: for a dog of unknown breed, every breed. Only the label where it is known.
        present: Of each other class that the picture shows, all classes that are right; empty where it shows no other,
            None where it is not known what else it shows.
    """

    name: str
    source: Picture
    label: int | None = None
    boxes: tuple[Box, ...] | None = None
    region: Region | None = None
    accepted: tuple[int, ...] = ()
    present: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", legible(self.name))
        if not self.accepted and self.label is not None:
            object.__setattr__(self, "accepted", (self.label,))

    def picture(self) -> Path | Image.Image:
        """The picture, as a path or opened: what `vitrail.explain` and `vitrail.evaluate` take."""
        return self.source.open()

    def mask(self) -> Mask | None:
        """(H, W) int8: 1 on objects of the class, 0 beside them, -1 where it does not count. None if unknown."""
        return None if self.region is None else self.region.read()

    def best(self, logits: Any) -> int | None:
        """The label; where several classes are accepted, the one that the model finds most likely.

        Args:
            logits: (classes,) the model's answer to this picture.
        """
        if self.label is not None or not self.accepted:
            return self.label
        return max(self.accepted, key=lambda i: float(logits[i]))

    def rivals(self, logits: Any) -> list[int]:
        """The other classes that the picture shows; of several accepted, the one that the model finds most likely.

        Args:
            logits: (classes,) the model's answer to this picture.
        """
        return [max(accepted, key=lambda i: float(logits[i])) for accepted in self.present or ()]

    def stamp(self) -> str:
        """All that is known of it on one line, file sizes for files."""
        region = "" if self.region is None else self.region.stamp()
        known = (self.name, self.label, self.boxes, self.accepted, self.source.stamp(), region)
        # Left out where it is empty, so that results stored before it was known are still found.
        return repr((*known, self.present) if self.present else known)


@dataclass(frozen=True)
class Dataset(Sequence[Item]):
    """Items in a fixed order.

    Slices and `limit` give datasets of the same spec; the fingerprint tells them apart.

    Attributes:
        spec: The string that `dataset` read.
        items: The items.
        classes: Name of each class, by label, or None.

    Example:
        >>> from vitrail.data import dataset
        >>> data = dataset("scenes:100")
        >>> [item.name for item in data.limit(3)]
        ['scene 0', 'scene 50', 'scene 99']
    """

    spec: str
    items: tuple[Item, ...]
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        names = [item.name for item in self.items]
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise InputError(f"{self.spec} has two items called {twice!r}; give each picture a name of its own")

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> "Dataset": ...
    def __getitem__(self, index: int | slice) -> "Item | Dataset":
        if isinstance(index, slice):
            return replace(self, items=self.items[index])
        return self.items[index]

    def limit(self, count: int | None) -> "Dataset":
        """``count`` items evenly spread over all, the first and the last among them; all where there are fewer.

        Most datasets are sorted by class, so the first ones would show few classes.
        """
        if count is None or count >= len(self):
            return self
        if count < 1:
            raise InputError(f"{option('limit')} must be 1 or more, but {count} was given; leave it out to take all")
        chosen = np.linspace(0, len(self) - 1, count).round().astype(int)
        return replace(self, items=tuple(self.items[i] for i in chosen))

    def check_readable(self) -> None:
        """Refuse pictures of which none can be read. Reads no more than the first that can."""
        first = ""
        for item in self:
            try:
                pictures.read(item.picture())
            except (ArithmeticError, IndexError, OSError, RuntimeError, ValueError) as error:
                first = first or f"{item.name}: {error}"
            else:
                return
        raise InputError(f"none of {len(self):,} pictures of {self.spec} can be read; the first, {first}")

    def fingerprint(self) -> str:
        """A hash of names, labels, boxes and file sizes. No picture is read; the folder's own place does not count."""
        found = hashlib.sha256(repr(self.classes).encode())
        for item in self.items:
            found.update(item.stamp().encode() + b"\n")
        return found.hexdigest()[:16]
