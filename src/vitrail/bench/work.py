"""A unit of work: some images of a dataset, explained by one method and judged by metrics, as rows of one table.

Maps are kept at their own grid in float16, as shares of their largest absolute value, and judged as they are kept: so
new metrics on stored maps give the very numbers that they would have given at once.
"""

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from vitrail.bench.data import Item
from vitrail.errors import InputError
from vitrail.front import explain
from vitrail.method import Method
from vitrail.metric import Case, Metric, Pool, masks_of
from vitrail.model import Target, View, full, is_out_of_memory, pictures

Explains = Literal["predicted", "label"]
"""The class that is explained: the one the model predicts, or the true one."""

FAILURES = (ArithmeticError, AssertionError, IndexError, OSError, RuntimeError, ValueError)
"""What a picture or a method may raise. It is written down, and the rest goes on; other errors are mistakes."""


@dataclass(frozen=True)
class Unit:
    """Some images by one method.

    Attributes:
        method: The method's spec.
        number: Which chunk of the images it is.
        items: The images.
    """

    method: str
    number: int
    items: tuple[Item, ...]

    @property
    def name(self) -> str:
        """What its part is called in a store: ``ig-steps=20-1a2b3c4d/00012``."""
        return f"{slug(self.method)}/{self.number:05d}"


def slug(spec: str) -> str:
    """A spec as the name of a folder: legible, and told apart from others by a few digits of its hash."""
    words = re.sub(r"[^\w=.,+-]+", "-", spec.replace(" ", "")).strip("-")[:60]
    return f"{words}-{hashlib.sha256(spec.encode()).hexdigest()[:8]}"


def units(items: Sequence[Item], methods: Sequence[str], chunk: int) -> list[Unit]:
    """All work: chunks of images, and for each of them every method, so that early parts compare methods already."""
    if chunk < 1:
        raise InputError(f"a chunk must hold 1 image or more, but {chunk} was given")
    return [
        Unit(method, number, tuple(items[first : first + chunk]))
        for number, first in enumerate(range(0, len(items), chunk))
        for method in methods
    ]


def explained(view: View, unit: Unit, method: Method, explains: Explains) -> pa.Table:
    """One row an image: its map, what was explained, the cost; or why there is none.

    Args:
        view: The model.
        unit: The images.
        method: What its spec describes.
        explains: Which class.
    """
    rows = [_Row(item) for item in unit.items]
    whole = [row for row in rows if row.open(view)]
    _answer(view, whole, explains)
    whole = [row for row in whole if row.error is None]
    if whole:
        _explain(view, whole, method)
    return pa.Table.from_pylist([row.record() for row in rows], schema=SCHEMA)


def judged(
    view: View, unit: Unit, table: pa.Table, method: Method, metrics: Sequence[Metric], others: Pool
) -> pa.Table:
    """The table with a column of numbers a metric; an image without a map has none.

    Args:
        view: The model.
        unit: The images.
        table: What `explained` gave.
        method: The method.
        metrics: What to measure.
        others: Pictures to set beside these.
    """
    records = table.to_pylist()
    rows = [i for i, record in enumerate(records) if record["error"] is None]
    columns: dict[str, list[list[float] | None]] = {metric.spec: [None] * len(records) for metric in metrics}
    if rows:
        case = _case(view, [unit.items[i] for i in rows], [records[i] for i in rows], method, others)
        for metric in metrics:
            found = metric.measure(case).double().cpu().reshape(len(rows), -1)
            for i, values in zip(rows, found.tolist()):
                columns[metric.spec][i] = values
        case.forget()
    for spec, values in columns.items():
        table = table.append_column(spec, pa.array(values, pa.list_(pa.float64())))
    return table


def map_of(record: dict[str, Any]) -> Tensor:
    """(rows, columns) float32: the map that a row of a table holds."""
    flat = np.frombuffer(record["map"], np.float16).astype(np.float32) * np.float32(record["scale"])
    return torch.from_numpy(flat.reshape(record["rows"], record["columns"]))


SCHEMA = pa.schema(
    [
        ("image", pa.string()),
        ("error", pa.string()),
        ("label", pa.int32()),
        ("explained", pa.int32()),
        ("predicted", pa.int32()),
        ("confidence", pa.float32()),
        ("rows", pa.int32()),
        ("columns", pa.int32()),
        ("scale", pa.float32()),
        ("map", pa.binary()),
        ("seconds", pa.float64()),
        ("forwards", pa.float64()),
    ]
)


class _Row:
    """One image on its way through a unit."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.found: dict[str, Any] = {}
        self.input: Tensor | None = None
        self.error: str | None = None

    def open(self, view: View) -> bool:
        """Read the picture; a broken one is no reason to stop."""
        try:
            self.input = view.preprocess.tensor(self.item.picture())
        except FAILURES as error:
            self.error = f"the picture cannot be read: {error}"
        return self.error is None

    def record(self) -> dict[str, Any]:
        return {"image": self.item.name, "error": self.error, **self.found}


def _answer(view: View, rows: Sequence[_Row], explains: Explains) -> None:
    """Ask the model what it sees, and settle what is explained."""
    if not rows:
        return
    with view.still(), torch.no_grad():
        logits = full(view.logits(torch.stack([row.input for row in rows if row.input is not None]))).cpu()
    for row, answer in zip(rows, logits):
        label, predicted = row.item.best(answer), int(answer.argmax())
        row.found = {"label": label, "predicted": predicted, "confidence": float(answer.softmax(0).max())}
        row.found["explained"] = label if explains == "label" else predicted
        if row.found["explained"] is None:
            row.error = "its class is not known, so it cannot be explained"


def _explain(view: View, rows: Sequence[_Row], method: Method) -> None:
    """All at once; where that fails, one by one, so that the image to blame is found and the others go on."""
    inputs = torch.stack([row.input for row in rows if row.input is not None])
    start = time.perf_counter()
    try:
        found = explain(view, inputs, method, [row.found["explained"] for row in rows], batch=len(rows))
    except FAILURES as error:
        if len(rows) == 1:
            rows[0].error = f"{method.spec} failed: {error}"
            return
        if is_out_of_memory(error):
            raise
        for row in rows:
            _explain(view, [row], method)
        return
    seconds, forwards = (time.perf_counter() - start) / len(rows), found.forwards / len(rows)
    for row, values in zip(rows, found.maps):
        scale = float(values.abs().max())
        half = (values / scale if scale > 0 else values).half().numpy()
        row.found |= {"rows": half.shape[0], "columns": half.shape[1], "scale": scale, "map": half.tobytes()}
        row.found |= {"seconds": seconds, "forwards": forwards}


def _case(view: View, items: Sequence[Item], records: Sequence[dict[str, Any]], method: Method, others: Pool) -> Case:
    opened = [pictures.read(item.picture()) for item in items]
    whole = slice(0, len(items))
    regions: tuple[Any, Any] = (None, None)
    # Where others have a mask, or boxes, an image without has an empty one: it does not count, and is counted so.
    if any(item.region is not None for item in items):
        masks = [item.mask() for item in items]
        empty = [np.zeros(picture.size[::-1], np.int8) for picture in opened]
        regions = ([nothing if mask is None else mask for mask, nothing in zip(masks, empty)], None)
    elif any(item.boxes is not None for item in items):
        regions = (None, [item.boxes or () for item in items])
    labels = [record["label"] for record in records]
    return Case(
        view,
        view.preprocess.batch(opened),
        torch.stack([map_of(record) for record in records]),
        Target(torch.tensor([record["explained"] for record in records])),
        masks=masks_of(view.preprocess, opened, whole, *regions),
        labels=None if None in labels else torch.tensor(labels),
        method=method,
        others=others,
    )
