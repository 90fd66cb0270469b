"""A unit of work: some images of a dataset, explained by one method and judged by metrics, as rows of one table.

Maps are kept at their own grid in float32, as they are: so new metrics on stored maps give the very numbers that they
would have given at once, and no cell changes its place among the others, which is all that some methods find.
"""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from vitrail.bench.chunk import FAILURES, Chunk
from vitrail.data import Item
from vitrail.errors import InputError
from vitrail.files import slug
from vitrail.method import Explained, Method, Searches, explain_batch
from vitrail.method import parse as parse_method
from vitrail.metric import Case, Metric, Pool
from vitrail.metric import parse as parse_metric
from vitrail.model import View, in_parts, is_out_of_memory

FILTER = "filter"
"""What stands for a method in the units of a filter."""


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
        return f"{folder_of(self.method)}/{self.number:05d}"


@functools.cache
def folder_of(method: str) -> str:
    """The folder of a method's parts: by the words that its spec had first, so that no renaming leaves parts behind."""
    return slug(method if method == FILTER else parse_method(method).first_spec, stamped=True)


@functools.cache
def column_of(metric: str) -> str:
    """The column of a metric's numbers, by its spec; likewise."""
    return parse_metric(metric).first_spec


def units(items: Sequence[Item], methods: Sequence[str], chunk: int) -> list[Unit]:
    """All work: chunks of images, and for each of them every method, so that early parts compare methods already."""
    if chunk < 1:
        raise InputError(f"a chunk must hold 1 image or more, but {chunk} was given")
    return [
        Unit(method, number, tuple(items[first : first + chunk]))
        for number, first in enumerate(range(0, len(items), chunk))
        for method in methods
    ]


def explained(view: View, chunk: Chunk, method: Method, *, shares: bool = False) -> pa.Table:
    """One row an image: its map, what was explained, the cost; or why there is none.

    Args:
        view: The model.
        chunk: The images.
        method: What explains them.
        shares: Whether its search is kept with the chunk, because another method renders the same.
    """
    records = [
        {"image": row.item.name} | {key: getattr(row, key) for key in ("error", "label", "predicted", "confidence")}
        for row in chunk.rows
    ]
    for record, row in zip(records, chunk.rows):
        record["explained"] = row.explained
    if chunk.whole:
        _explain(view, chunk, chunk.whole, method, records, chunk.searches if shares else None)
    return pa.Table.from_pylist(records, schema=SCHEMA)


def judged(
    view: View, chunk: Chunk, table: pa.Table, method: Method, metrics: Sequence[Metric], others: Pool | None
) -> pa.Table:
    """The table with a column of numbers a metric; an image without a map has none.

    Args:
        view: The model.
        chunk: The images.
        table: What `explained` gave.
        method: The method.
        metrics: What to measure.
        others: Pictures to set beside these, where a metric asks for them.
    """
    records = table.to_pylist()
    rows = [i for i, record in enumerate(records) if record["error"] is None]
    columns: dict[str, list[list[float] | None]] = {column_of(metric.spec): [None] * len(records) for metric in metrics}
    if rows:
        masked = any("masks" in metric.needs for metric in metrics)
        case = _case(view, chunk, rows, [records[i] for i in rows], method, others, masked)
        for metric in metrics:
            found = metric.measure(case).double().cpu().reshape(len(rows), -1)
            for i, values in zip(rows, found.tolist()):
                columns[column_of(metric.spec)][i] = values
        case.forget()
    for column, values in columns.items():
        table = table.append_column(column, pa.array(values, pa.list_(pa.float64())))
    return table


def kept(values: Tensor) -> dict[str, Any]:
    """What a row holds of a (rows, columns) map, from which `map_of` makes it again, bit by bit."""
    return {"rows": values.shape[0], "columns": values.shape[1], "map": values.float().contiguous().numpy().tobytes()}


def map_of(record: dict[str, Any]) -> Tensor:
    """(rows, columns) float32: the map that a row of a table holds."""
    shape = record["rows"], record["columns"]
    if len(record["map"]) == 2 * shape[0] * shape[1]:  # runs of earlier versions hold float16, and a scale
        return torch.from_numpy(np.frombuffer(record["map"], np.float16).reshape(shape) * np.float32(record["scale"]))
    return torch.from_numpy(np.frombuffer(record["map"], np.float32).reshape(shape).copy())


SCHEMA = pa.schema(
    [
        ("image", pa.string()),
        ("error", pa.string()),
        ("empty", pa.bool_()),
        ("notes", pa.list_(pa.string())),
        ("label", pa.int32()),
        ("explained", pa.int32()),
        ("predicted", pa.int32()),
        ("confidence", pa.float32()),
        ("rows", pa.int32()),
        ("columns", pa.int32()),
        ("map", pa.binary()),
        ("seconds", pa.float64()),
        ("forwards", pa.float64()),
        ("backwards", pa.float64()),
    ]
)


def _explain(
    view: View,
    chunk: Chunk,
    rows: Sequence[int],
    method: Method,
    records: Sequence[dict[str, Any]],
    searches: Searches | None,
) -> None:
    """All at once; where that fails, one by one, so that the image to blame is found and the others go on."""

    def some(part: slice) -> tuple[Explained, float]:
        start = time.perf_counter()
        (found,) = explain_batch(view, method, [chunk.batch(rows[part], method)], searches)
        return found, (time.perf_counter() - start) / len(found.maps)

    try:
        for part, (found, seconds) in in_parts(len(rows), len(rows), some):
            searched = found.searched  # perhaps for another method: it costs what it cost then
            cost = {
                "seconds": max(seconds, searched.seconds),
                "forwards": searched.cost.forwards,
                "backwards": searched.cost.backwards,
            }
            empty = found.maps.flatten(1).amax(1) == found.maps.flatten(1).amin(1)
            for row, values, nothing, notes in zip(rows[part], found.maps.cpu(), empty.tolist(), found.notes):
                records[row].update(kept(values) | cost | {"empty": nothing, "notes": list(notes)})
    except FAILURES as error:
        if len(rows) == 1:
            records[rows[0]]["error"] = f"{method.spec} failed: {error}"
            return
        if is_out_of_memory(error):
            raise
        for row in rows:
            _explain(view, chunk, [row], method, records, searches)


def _case(
    view: View,
    chunk: Chunk,
    rows: Sequence[int],
    records: Sequence[dict[str, Any]],
    method: Method,
    others: Pool | None,
    masked: bool,
) -> Case:
    labels = [record["label"] for record in records]
    return Case(
        view,
        chunk.inputs[rows],
        torch.stack([map_of(record) for record in records]),
        chunk.target(rows),
        masks=chunk.masks[rows] if masked else None,
        labels=None if None in labels else torch.tensor(labels),
        method=method,
        others=others,
        shared=chunk.shared.setdefault(tuple(rows), {}),
        logits=chunk.logits[rows],
    )
