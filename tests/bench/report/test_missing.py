"""What a report says of what is not there: pictures left out, failures, unfinished and unbegun parts."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from helpers.reported import COUNT, INS, NUMBERS, PART, PROTOCOL, cell, facts, write_part, write_unit
from vitrail.bench import Filter, Store
from vitrail.bench.report import Result, gather, markdown, text
from vitrail.bench.unit import Unit


def test_left_out_by_the_filter_and_by_errors(tmp_path: Path) -> None:
    part = replace(PART, filter=Filter(correct=True, confidence=0.6), columns=PART.columns[:1])
    numbers = {method: {INS: columns[INS]} for method, columns in NUMBERS.items() if method != "tis"}
    reasons = {
        "a": "left out: the model gets it wrong",
        "b": "left out: the model is sure to 0.41 only, 0.6 is asked for",
        "c": "left out: the model is sure to 5.2e-02 only, 0.6 is asked for",
        "d": "left out: the model still sees it when it is blurred, with 0.3",
        "e/f.jpg": "the picture cannot be read: /data/e/f.jpg is broken",
    }
    store = write_part(Store(str(tmp_path)), part, numbers, reasons)
    for number, first in enumerate(range(0, COUNT, 16)):
        count = min(16, COUNT - first)
        failed = [i == 1 for i in range(count)]
        write_unit(
            store,
            Unit("tis", number, ()),
            [f"scene {first + i}" for i in range(count)],
            {INS: [None if bad else value for bad, value in zip(failed, NUMBERS["tis"][INS][first:])]},
            error=["tis failed: too bright" if bad else None for bad in failed],
        )
    found = gather(replace(PROTOCOL, parts=(part,)), Store(str(tmp_path)))
    (section,) = found.sections
    assert (section.images, section.facts["images"]) == (COUNT, COUNT + 5)
    assert section.left_out == {
        "the model is sure to … only, 0.6 is asked for": 2,
        "the model gets it wrong": 1,
        "the model still sees it when it is blurred": 1,
        "the picture cannot be read: FILE is broken": 1,
    }
    assert section.rows[0].failed == {"tis failed: too bright": 3}
    assert section.rows[1].failed == {}
    assert section.rows[0].cells[0].images == COUNT - 3
    assert np.isnan(section.rows[0].seconds)
    assert not section.missing
    said = markdown(found)
    assert "40 of 45 take part" in said
    assert "Left out by the filter: 5 (2: the model is sure to … only, 0.6 is asked for; 1: " in said
    assert "TIS has no map of 3 (3: tis failed: too bright)" in said
    assert "Ins counts 37 to 40 of them, not the same for all methods" in said
    assert "Filter `correct=true, confidence=0.6`" in said


def test_unfinished_runs_say_what_is_missing(store: Store, tmp_path: Path) -> None:
    shutil.copytree(store.place, tmp_path / "run")
    parts = tmp_path / "run" / "deit" / "parts"
    (tis,), (rollout,) = parts.glob("tis-*"), parts.glob("rollout-*")
    (tis / "00002.parquet").unlink()
    for file in rollout.iterdir():
        file.unlink()
    found = Result.of(str(tmp_path / "run"))
    (section,) = found.sections
    assert section.missing == {"TIS": 1, "Rollout_50%": 3}
    first = cell(section, "TIS", "Ins")
    assert first.images == 32
    assert first.value == pytest.approx(NUMBERS["tis"][INS][:32].mean())
    absent = cell(section, "Rollout_50%", "Ins")
    assert (absent.known, absent.rank, absent.published) == (False, None, 0.39)
    assert "Unfinished: 4 of 12 units of work are missing (TIS 1, Rollout" in markdown(found)
    for form in ("terminal", "markdown", "latex", "csv", "html"):
        assert "nan" not in text(found, form).replace("isNaN", "").lower()


def test_a_metric_that_came_later_is_missing_where_it_is(tmp_path: Path) -> None:
    part = replace(PART, methods={"TIS": "tis"}, ours=(), published={})
    write_part(Store(str(tmp_path)), part, {"tis": {INS: NUMBERS["tis"][INS]}})
    (section,) = gather(replace(PROTOCOL, parts=(part,)), Store(str(tmp_path))).sections
    assert section.missing == {"TIS": 3}
    assert [found.known for found in section.rows[0].cells] == [True, False, False]


def test_parts_that_have_not_begun(tmp_path: Path) -> None:
    store, begun = Store(str(tmp_path)), replace(PART, methods={"TIS": "tis"}, ours=(), published={})
    write_part(store, begun, {"tis": NUMBERS["tis"]})
    later = replace(PART, name="later", filter=Filter(correct=True))
    protocol = replace(PROTOCOL, parts=(begun, later))
    found = gather(protocol, store)
    assert found.sections[1].state == "This part of the run has not begun yet."
    store.within("later").begin(facts(later))
    rows = [{"image": "a", "error": None, "predicted": 1}]
    store.within("later").write("filter/00000", pa.Table.from_pylist(rows))
    found = gather(protocol, store)
    assert found.sections[1].state == "The pictures are still being chosen: 1 of 3 units are looked at."
    for form in ("terminal", "markdown", "latex", "csv", "html"):
        said = text(found, form)
        assert "later" in said
        assert form == "csv" or "1 of 3 units" in " ".join(said.split())
