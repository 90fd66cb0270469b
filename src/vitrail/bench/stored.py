"""What the store of a run holds: parts by the unit of work they belong to, columns, and the scores they come to."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from vitrail.bench.shapes import known_facts
from vitrail.bench.store import MANIFEST, Store
from vitrail.bench.unit import Unit, column_of
from vitrail.errors import InputError
from vitrail.metric import Score, Scores, parse, score

if TYPE_CHECKING:
    from vitrail.bench.runner import Plan

CHOSEN = "chosen/00000"
"""The part of a run that says which pictures take part; beside it the filter's answers are."""

MORE = "+"
"""Between the name of a unit and the digest of metrics that were asked for later."""


def parts_of(store: Store) -> dict[str, list[str]]:
    """The names of all parts, by the unit they belong to."""
    found = defaultdict(list)
    for name in store.units():
        folder, _, last = name.rpartition("/")  # a method's own name may hold the sign too: gradcam++
        found[f"{folder}/{last.partition(MORE)[0]}"].append(name)
    return dict(found)


def columns_of(store: Store, parts: Sequence[str], *, maps: bool = True) -> dict[str, pa.ChunkedArray]:
    """The columns of some parts of one unit, by name; maps are much the largest, and not always wanted."""
    tables = [store.read(name, None if maps else [n for n in store.names(name) if n != "map"]) for name in parts]
    return {column: table[column] for table in tables for column in table.column_names}


def names_of(store: Store, parts: Sequence[str]) -> list[str]:
    """The names of the columns of some parts."""
    return [name for part in parts for name in store.names(part)]


def chosen_images(store: Store) -> list[str]:
    """The names of the pictures that take part, once they are chosen."""
    return [one["image"] for one in store.read(CHOSEN, ["image", "error"]).to_pylist() if one["error"] is None]


def scores(plan: "Plan", store: Store) -> Scores:
    """The table of a run, from what is stored; images of units that are not done, or that failed, do not count."""
    facts = known_facts(store)
    if facts is None:
        raise InputError(f"{store.place} holds no run")
    if not store.has(CHOSEN):
        raise InputError(f"{store.place} holds a run that has only begun; start it again to go on")
    images = chosen_images(store)
    gathered: dict[tuple[str, str], list[torch.Tensor | None]] = defaultdict(list)
    seconds, forwards = 0.0, 0.0
    known = parts_of(store)
    for method in plan.methods:
        for number, first in enumerate(range(0, len(images), facts["chunk"])):
            unit = Unit(method, number, ()).name
            columns = columns_of(store, known.get(unit, ()), maps=False)
            count = min(facts["chunk"], len(images) - first)
            if any(len(column) != count for column in columns.values()):
                raise InputError(
                    f"the part {unit!r} of {store.place} does not have a row for each of {count} pictures, as the "
                    f"run's {MANIFEST} wants it; choose another folder"
                )
            seconds += _total(columns, "seconds")
            forwards += _total(columns, "forwards")
            for spec in plan.metrics:
                stored = columns.get(column_of(spec))
                values = [None] * count if stored is None else stored.to_pylist()
                found = [None if v is None else torch.tensor(v, dtype=torch.float64) for v in values]
                gathered[method, spec] += found
    rows = []
    for (method, spec), values in gathered.items():
        metric = parse(spec)
        protocol = {"explains": facts["explains"], "precision": facts["precision"], "metric": metric.config}
        if all(value is None for value in values):
            nothing = np.full(len(values), np.nan)
            rows.append(Score(method, spec, np.nan, np.nan, np.nan, metric.higher_is_better, nothing, protocol))
        else:
            rows.append(score(method, metric, _stacked(values), protocol))
    return Scores(
        rows=tuple(rows),
        images=tuple(images),
        model=facts["model"],
        fingerprint=facts["weights"],
        seconds=seconds,
        forwards=round(forwards),
        versions=facts["versions"],
    )


def _total(columns: dict[str, pa.ChunkedArray], name: str) -> float:
    return sum(value for value in columns[name].to_pylist() if value is not None) if name in columns else 0.0


def _stacked(values: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """(N,) or (N, P) what a metric measured; NaN for images without a number."""
    width = max((len(value) for value in values if value is not None), default=1)
    nothing = torch.full((width,), torch.nan, dtype=torch.float64)
    found = torch.stack([nothing if value is None else value for value in values])
    return found[:, 0] if width == 1 else found


def errors(store: Store) -> Iterator[dict[str, str]]:
    """Which images were left out, by which method, and why."""
    for name in store.units():
        if "error" in store.names(name):
            for record in store.read(name, ["image", "error"]).to_pylist():
                if record["error"] is not None:
                    yield {"unit": name, **record}
