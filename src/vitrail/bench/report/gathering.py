"""From a run's folder to a `Result`. Of an unfinished run, what is there is reported and what is missing counted."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple, cast

import numpy as np

from vitrail.bench.protocol import COMMAND, PROTOCOL, Column, Part, Protocol
from vitrail.bench.report.compare import Measured, agreement, cells, measured, standing
from vitrail.bench.report.result import Cell, Heading, Result, Row, Section
from vitrail.bench.shapes import known_facts
from vitrail.bench.store import Store
from vitrail.bench.stored import CHOSEN, chosen_images, errors, names_of, parts_of, scores
from vitrail.bench.tables import recorded
from vitrail.bench.unit import FILTER, Unit, column_of, folder_of
from vitrail.errors import InputError
from vitrail.method import parse as parse_method
from vitrail.notes import ranked, summed


def read(store: Store) -> Result:
    """The result of the run in a folder, of the protocol that the folder keeps."""
    try:
        protocol = recorded(store)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{store.place} cannot be read ({why}); give the folder of a run") from error
    if protocol is None:
        raise InputError(f"{store.place} holds no run of a protocol: it has no {PROTOCOL}; give the folder of a run")
    return gather(protocol, store)


def gather(protocol: Protocol, store: Store) -> Result:
    """The result of a protocol's run.

    Args:
        protocol: What was asked for.
        store: The run's folder, with a folder in it for each part.
    """
    sections = tuple(_section(part, store.within(part.name)) for part in protocol.parts)
    if not any(section.facts for section in sections):
        raise InputError(f"{store.place} holds no run of {protocol.name}: no part of it has begun")
    told = store.noted(COMMAND)
    return Result(
        name=protocol.name,
        title=protocol.title,
        paper=protocol.paper,
        note=protocol.note,
        place=store.place,
        sections=sections,
        command=told.strip() if told else None,
    )


def _section(part: Part, store: Store) -> Section:
    facts, rows = known_facts(store), _rows(part)
    plain = Section(
        name=part.name,
        headings=tuple(Heading(c, published_decimals=_told_decimals(part, c)) for c in part.columns),
        rows=tuple(rows),
        facts=cast("Mapping[str, Any]", facts or {}),
        published_for=part.published_for,
        sweep=part.sweep if part.sweep and any(row.label in part.sweep.at for row in rows) else None,
        state="This part of the run has not begun yet." if facts is None else "",
    )
    if facts is None:
        return plain
    if not store.has(CHOSEN):
        looked, wanted = sum(name.startswith(FILTER) for name in store.units()), _units(facts["images"], facts)
        return replace(plain, state=f"The pictures are still being chosen: {looked} of {wanted} units are looked at.")
    return _filled(plain, part, store)


def _filled(plain: Section, part: Part, store: Store) -> Section:
    """A section with the numbers that are there, once it is known which pictures take part."""
    plan, facts = part.plan(), plain.facts
    images = len(chosen_images(store))
    wanted, known = _units(images, facts), parts_of(store)
    done: dict[str, int] = {}
    metrics = set(map(column_of, plan.metrics))
    costs: dict[str, tuple[float, float, float]] = {}
    maps: dict[str, _Maps] = {}
    for method in plan.methods:
        names = [Unit(method, number, ()).name for number in range(wanted)]
        done[method] = sum(metrics <= set(names_of(store, known.get(name, ()))) for name in names)
        explained = [name for name in names if name in known.get(name, ())]
        costs[method], maps[method] = _costs(store, explained), _maps(store, explained)
    left_out, failed = _reasons(store, plan.methods)
    found = scores(plan, store)
    columns = [{method: measured(found, method, column) for method in plan.methods} for column in part.columns]
    unranked = {method for method, one in maps.items() if not ranked(one.empty, one.explained)}
    compared = [cells(one, column.higher_is_better, unranked) for one, column in zip(columns, part.columns)]
    rows = [
        replace(
            row,
            cells=tuple(replace(one[row.spec], published=cell.published) for one, cell in zip(compared, row.cells)),
            seconds=costs[row.spec][0],
            forwards=costs[row.spec][1],
            backwards=costs[row.spec][2],
            failed=failed[row.spec],
            empty=maps[row.spec].empty,
            maps=maps[row.spec].explained,
            told=maps[row.spec].told,
            done=done[row.spec],
        )
        if row.spec
        else row
        for row in plain.rows
    ]
    headings = [
        _heading(heading, one, [row.cells[i] for row in rows], unranked)
        for i, (heading, one) in enumerate(zip(plain.headings, columns))
    ]
    return replace(plain, headings=tuple(headings), rows=tuple(rows), images=images, left_out=left_out, wanted=wanted)


def _units(images: int, facts: Mapping[str, Any]) -> int:
    """How many units of work so many images are, for each method."""
    return -(-images // int(facts["chunk"]))


def _rows(part: Part) -> list[Row]:
    """Every method with the paper's numbers: the paper's, those that only the paper has, ours."""
    papers = {label: parse_method(spec).spec for label, spec in part.methods.items()}
    shown = {column.name for column in part.columns}
    papers |= {label: "" for label, told in part.published.items() if label not in papers and shown & set(told)}
    ours = dict.fromkeys(parse_method(spec).spec for spec in part.ours)
    named = [(label, spec, False) for label, spec in papers.items()]
    named += [(spec, spec, True) for spec in ours if spec not in papers.values()]
    return [
        Row(*name, cells=tuple(Cell(published=_published(part, name[0], c)) for c in part.columns)) for name in named
    ]


def _published(part: Part, label: str, column: Column) -> float | None:
    return part.published.get(label, {}).get(column.name)


def _told_decimals(part: Part, column: Column) -> int:
    """Digits behind the point of the paper's most exact number: 0.5 beside 0.52 is 0.50."""
    numbers = [numbers[column.name] for numbers in part.published.values() if column.name in numbers]
    return max((len(_digits(number)) for number in numbers), default=0)


def _digits(number: float) -> str:
    return np.format_float_positional(number, precision=8, trim="-").partition(".")[2]


def _heading(
    plain: Heading, found: Mapping[str, Measured], shown: Sequence[Cell], unranked: Collection[str]
) -> Heading:
    published = [np.nan if cell.published is None else cell.published for cell in shown]
    return replace(
        plain,
        decimals=_decimals([one.value for one in found.values()]),
        own_total=any(one.own_total for one in found.values()),
        agreement=agreement([cell.value for cell in shown], published),
        standing=standing(
            {method: one for method, one in found.items() if method not in unranked}, plain.column.higher_is_better
        ),
    )


def _decimals(values: Sequence[float]) -> int:
    """Three digits that count for the largest number of a column, three behind the point for those up to 10."""
    largest = max((abs(value) for value in values if np.isfinite(value) and value), default=1.0)
    magnitude = math.floor(math.log10(largest))
    return int(np.clip(2 - magnitude, 1, 8)) if magnitude < -1 or magnitude > 0 else 3


def _costs(store: Store, parts: Sequence[str]) -> tuple[float, float, float]:
    """Median seconds, as the first of a run may be slow, and mean forward and backward passes of an image."""
    found: dict[str, list[float]] = {"seconds": [], "forwards": [], "backwards": []}
    for name in parts:
        table = store.read(name, [one for one in found if one in store.names(name)])
        for one in table.column_names:
            found[one] += [value for value in table[one].to_pylist() if value is not None]
    seconds, *passes = found.values()
    forwards, backwards = (float(np.mean(one)) if one else np.nan for one in passes)
    return float(np.median(seconds)) if seconds else np.nan, forwards, backwards


class _Maps(NamedTuple):
    """A method's maps: how many, how many of them empty, and what their notes say."""

    explained: int
    empty: int
    told: dict[str, int]


def _maps(store: Store, parts: Sequence[str]) -> _Maps:
    """What is known of a method's maps; runs of earlier versions do not tell which are empty."""
    empty, notes = [], []
    for name in parts:
        if {"empty", "notes"} <= set(store.names(name)):
            table = store.read(name, ["empty", "notes"])
            empty += [one for one in table["empty"].to_pylist() if one is not None]
            notes += [one for one in table["notes"].to_pylist() if one]
    return _Maps(len(empty), sum(empty), summed(notes))


# ------------------------------------------------------------------------------------------------------------ left out


def _reasons(store: Store, methods: Sequence[str]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Why pictures were left out by the filter, and why each method has no map of some; with counts."""
    folders = {folder_of(method): method for method in methods}
    filtered: Counter[str] = Counter()
    failed: dict[str, Counter[str]] = {method: Counter() for method in methods}
    for record in errors(store):
        folder = record["unit"].rpartition("/")[0]
        reason = _alike(record["error"], record["image"])
        if folder in folders:
            failed[folders[folder]][reason] += 1
        elif folder in (folder_of(FILTER), CHOSEN.rpartition("/")[0]):
            filtered[reason] += 1
    return dict(filtered.most_common()), {method: dict(one.most_common()) for method, one in failed.items()}


def _alike(reason: str, image: str) -> str:
    """A reason without what differs from picture to picture: its own numbers and its file's name."""
    text = reason.removeprefix("left out: ")
    text = re.sub(r"\b[\d.]+(e[+-]?\d+)? only", "… only", text)
    text = re.sub(r", with [\d.]+(e[+-]?\d+)?$", "", text)
    file = PurePath(image)
    return re.sub(rf"\S*\b{re.escape(file.name)}", "FILE", text) if file.suffix else text
