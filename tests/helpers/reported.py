"""A run made by hand, whose numbers are known, to report on."""

from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa

from vitrail.bench import Store
from vitrail.bench.protocol import Column, Part, Protocol
from vitrail.bench.report import Cell, Section
from vitrail.bench.stored import CHOSEN
from vitrail.bench.unit import SCHEMA, Unit

INS, DEL, MIOU = "insertion", "deletion", "segmentation"
COUNT = 40
NOISE = np.random.default_rng(0).normal(0, 0.05, (4, COUNT))

NUMBERS = {
    "tis": {INS: 0.7 + NOISE[0], DEL: 0.2 + NOISE[1]},
    "rollout": {INS: 0.4 + NOISE[1], DEL: 0.5 + NOISE[0]},
    "genatt": {INS: 0.7 + NOISE[0] + 0.5 * NOISE[2] - 0.5 * NOISE[2].mean() - 0.001, DEL: 0.3 + NOISE[2]},
    "skipplus(decompx)": {INS: 0.5 + NOISE[3], DEL: 0.15 + NOISE[3]},
}

PART = Part(
    name="deit",
    model="demo",
    data=f"scenes:{COUNT}",
    methods={"TIS": "tis", "Rollout_50%": "rollout", "T&A #1": "genatt"},
    ours=("skipplus(decompx)",),
    columns=(
        Column("Ins", ((INS, 1.0),)),
        Column("Del", ((DEL, 1.0),)),
        Column("Ins - Del", ((INS, 1.0), (DEL, -1.0))),
    ),
    published={
        "TIS": {"Ins": 0.741, "Del": 0.2},
        "Rollout_50%": {"Ins": 0.39, "Del": 0.4},
        "T&A #1": {"Ins": 0.75, "Del": 0.3},
        "Older": {"Ins": 0.5},
    },
    published_for="DeiT-B on 5,000 pictures",
    chunk=16,
)
PROTOCOL = Protocol("tis/table1", "TIS, Table 1: 100% of {methods}", "Englebert et al. 2023", (PART,), "A note_.")


def facts(part: Part, images: int = COUNT) -> dict[str, Any]:
    return {
        "model": "demo",
        "weights": "0123456789abcdef0123",
        "data": part.data,
        "images": images,
        "images hash": "fedcba9876543210",
        "filter": part.filter.given,
        "limit": part.limit,
        "explains": part.explains,
        "chunk": part.chunk,
        "precision": part.precision,
        "compiled": part.compiled,
        "versions": {"vitrail": "0.1", "torch": "2.8"},
    }


def write_unit(store: Store, unit: Unit, images: Sequence[str], columns: Mapping[str, Any], **known: Any) -> None:
    """A part as a run writes it, without maps; ``known`` holds errors, seconds and forward passes."""
    rows = [{"image": image} | {key: values[i] for key, values in known.items()} for i, image in enumerate(images)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    for spec, values in columns.items():
        listed = [None if one is None else np.atleast_1d(one).tolist() for one in values]
        table = table.append_column(spec, pa.array(listed, pa.list_(pa.float64())))
    store.write(unit.name, table)


def write_part(
    store: Store, part: Part, numbers: Mapping[str, Mapping[str, Any]], left_out: Mapping[str, str] | None = None
) -> Store:
    """The run of a part."""
    store = store.within(part.name)
    images = [f"scene {i}" for i in range(COUNT)]
    rows = [{"image": image, "error": None} for image in images]
    rows += [{"image": image, "error": why} for image, why in (left_out or {}).items()]
    store.begin(facts(part, len(rows)))
    store.write(CHOSEN, pa.Table.from_pylist(rows, schema=pa.schema([("image", pa.string()), ("error", pa.string())])))
    for method, columns in numbers.items():
        for number, first in enumerate(range(0, COUNT, part.chunk)):
            rows_of = slice(first, first + part.chunk)
            count = len(images[rows_of])
            write_unit(
                store,
                Unit(method, number, ()),
                images[rows_of],
                {spec: values[rows_of] for spec, values in columns.items()},
                seconds=[9.0 if first + i == 0 else 0.5 for i in range(count)],
                forwards=[1024.0] * count,
                backwards=[512.0] * count,
            )
    return store


def cell(section: Section, label: str, column: str) -> Cell:
    (row,) = [row for row in section.rows if row.label == label]
    names = [heading.column.name for heading in section.headings]
    return row.cells[names.index(column)]


class Reader(HTMLParser):
    """Which tags are open, which places are named, and what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "circle", "path"):
            self.open.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data", "action")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("circle", "path"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
