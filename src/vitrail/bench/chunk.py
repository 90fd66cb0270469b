"""Some pictures of a dataset, opened and shown to the model once, for all methods and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data import Item, masks_of
from vitrail.method import Batch, Method, Searches
from vitrail.model import Target, View, full, pictures

Explains = Literal["predicted", "label"]
"""The class that is explained: the one the model predicts, or the true one."""

FAILURES = (ArithmeticError, AssertionError, IndexError, OSError, RuntimeError, ValueError)
"""What a picture or a method may raise. It is written down, and the rest goes on; other errors are mistakes."""


@dataclass
class Row:
    """A picture on its way through the work.

    Attributes:
        item: What is known of it.
        picture: The picture, opened.
        error: Why it cannot take part.
        label: Its true class; where several are accepted, the one that the model finds most likely.
        predicted: The model's answer.
        confidence: The probability of that answer.
        explained: The class to explain.
        rivals: Other classes that it shows.
    """

    item: Item
    picture: Image.Image | None = None
    error: str | None = None
    label: int | None = None
    predicted: int | None = None
    confidence: float | None = None
    explained: int | None = None
    rivals: tuple[int, ...] = ()


class Chunk:
    """Pictures that are worked on together.

    Args:
        view: The model.
        items: The pictures.
        explains: Which class is explained.

    Attributes:
        rows: One a picture.
        whole: Numbers of the rows that nothing is wrong with.
        inputs: (rows, 3, H, W) model inputs, on its device; zero where a picture could not be read.
        logits: (rows, classes) the model's answers, on the CPU.
        precision: What these were calculated in.
        shared: What metrics found out about the pictures alone, see `Case`.
        searches: What methods found out about them, for others that render the same in another way.
    """

    def __init__(self, view: View, items: Sequence[Item], explains: Explains) -> None:
        self.view, self.rows = view, [Row(item) for item in items]
        found = [self._open(row) for row in self.rows]
        able = [i for i, one in enumerate(found) if one is not None]
        shape = next((one.shape for one in found if one is not None), (3, *view.size))
        inputs = torch.stack([torch.zeros(shape) if one is None else one for one in found])
        self.inputs = inputs.to(view.device, view.dtype)
        self.logits = torch.zeros(len(items), view.num_classes)
        if able:
            with view.still(), torch.no_grad():
                self.logits[able] = full(view.logits(self.inputs[able])).float().cpu()
        self.precision = view.precision
        for i in able:
            self._settle(self.rows[i], self.logits[i], explains)
        self.whole = [i for i, row in enumerate(self.rows) if row.error is None]
        self.shared: dict[tuple[int, ...], dict[Any, Any]] = {}
        self.searches = Searches()

    def _open(self, row: Row) -> Tensor | None:
        """Read a picture; a broken one is no reason to stop."""
        try:
            row.picture = pictures.read(row.item.picture())
            return self.view.preprocess.tensor(row.picture)
        except FAILURES as error:
            row.error = f"the picture cannot be read: {error}"
            return None

    @staticmethod
    def _settle(row: Row, answer: Tensor, explains: Explains) -> None:
        row.label, row.predicted = row.item.best(answer), int(answer.argmax())
        row.confidence = float(answer.softmax(0).max())
        row.explained = row.label if explains == "label" else row.predicted
        row.rivals = tuple(row.item.rivals(answer))
        if row.explained is None:
            row.error = "its class is not known, so it cannot be explained"

    def target(self, rows: Sequence[int]) -> Target:
        """What is explained of some rows, and which other classes they show."""
        rivals = None
        if any(self.rows[i].item.present is not None for i in rows):
            most = max(len(self.rows[i].rivals) for i in rows)
            each = (self.rows[i].rivals for i in rows)
            rivals = torch.tensor([[*one, *[-1] * (most - len(one))] for one in each], dtype=torch.long)
        return Target(torch.tensor([self.rows[i].explained for i in rows]), rivals=rivals)

    def batch(self, rows: Sequence[int], method: Method) -> Batch:
        """Some rows to be explained by a method; their clean logits are given where they are as exact as it wants."""
        fits = method.keeps_half() or self.precision == "fp32"
        return Batch(self.inputs[rows], self.target(rows), logits=self.logits[rows] if fits else None)

    @cached_property
    def masks(self) -> Tensor:
        """(rows, H, W): 1 on the object, 0 beside it, -1 where it does not count.

        A picture without a mask or boxes, where others have theirs, has an empty one; the report says who is left out.
        """
        items = [row.item for row in self.rows]
        drawn = any(item.region is not None for item in items)
        found = torch.zeros(len(items), *self.inputs.shape[2:], dtype=torch.int8)
        for i in self.whole:
            picture = self.rows[i].picture
            assert picture is not None
            mask = items[i].mask() if drawn else None
            nothing = np.zeros(picture.size[::-1], np.int8)
            regions = ([nothing if mask is None else mask], None) if drawn else (None, [items[i].boxes or ()])
            one = masks_of(self.view.preprocess, [picture], slice(0, 1), *regions)
            assert one is not None
            found[i] = one[0]
        return found

    def covered(self, row: int) -> float:
        """The share of a picture, as the model sees it, that the object covers."""
        return float((self.masks[row] == 1).float().mean())
