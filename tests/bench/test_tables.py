"""A protocol run part by part, in pieces, from the command line: nothing is lost, nothing is mixed up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vitrail import InputError
from vitrail.bench import Column, Part, Protocol, Store, narrowed, perform
from vitrail.bench.report import Result
from vitrail.bench.tables import PROTOCOL, recorded
from vitrail.cli import main

SPARSE, COMPLEX = Column("Sparse", (("sparseness", 1.0),)), Column("Complex", (("complexity", 1.0),))
ONE = Part("one", "demo", "scenes:4", {"Chance": "random", "CAM": "gradcam"}, (SPARSE,), chunk=2)
TWO = replace(ONE, name="two", data="scenes:4,seed=1")
TABLE = Protocol("table", "A table", "nobody", (ONE, TWO))


def numbers(result: Result) -> dict[tuple[str, str, str], float]:
    return {
        (section.name, row.label, heading.column.name): cell.value
        for section in result.sections
        for row in section.rows
        for heading, cell in zip(section.headings, row.cells)
    }


def test_a_run_in_pieces_is_the_run_at_once(tmp_path: Path) -> None:
    whole = numbers(Result.of(perform(TABLE, str(tmp_path / "whole"))))
    store = Store(str(tmp_path / "pieces"))
    perform(narrowed(TABLE, ["two"], ["CAM"]), store)
    assert {part.name: list(part.methods) for part in recorded(store).parts} == {"two": ["CAM"]}
    perform(narrowed(TABLE, ["one"]), store)
    perform(narrowed(TABLE, ["two"], ["Chance"]), store)
    assert numbers(Result.of(store)) == pytest.approx(whole)


def test_only_what_is_asked_for_now_is_run(tmp_path: Path) -> None:
    """Half of a method that was asked for before waits for whoever asked; what is new gets the columns of before."""
    store = Store(str(tmp_path / "run"))
    perform(narrowed(TABLE, ["one"], ["CAM"]), store)
    cam = sorted(name for name in store.within("one").units() if name.startswith("gradcam"))
    assert len(cam) == 2
    (tmp_path / "run" / "one" / "parts" / f"{cam[0]}.parquet").unlink()
    perform(narrowed(TABLE, ["one"], ["Chance"], ["complexity"]), store)
    assert [name for name in store.within("one").units() if name.startswith("gradcam")] == cam[1:]
    chance = [name for name in store.within("one").units() if name.startswith("random")]
    assert len(chance) == 2
    assert all({"sparseness", "complexity"} <= set(store.within("one").names(name)) for name in chance)
    assert list(recorded(store).part("one").methods) == ["CAM", "Chance"]
    perform(narrowed(TABLE, ["one"], ["CAM"]), store)
    assert len(numbers(Result.of(store))) == 4


def test_methods_and_metrics_of_ones_own(tmp_path: Path) -> None:
    wanted = narrowed(TABLE, ["one"], ["CAM", "rollout"], ["Sparse", "complexity"])
    part = wanted.part("one")
    assert (dict(part.methods), part.ours) == ({"CAM": "gradcam"}, ("rollout",))
    assert [column.name for column in part.columns] == ["Sparse", "complexity"]
    with pytest.raises(InputError, match="has no part 'three'; there are one, two"):
        narrowed(TABLE, ["three"])


def test_another_table_or_setting_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "run"
    perform(narrowed(TABLE, ["one"], ["Chance"]), str(place))
    before = (place / PROTOCOL).read_text()
    with pytest.raises(InputError, match="holds a run of table, not of other"):
        perform(replace(TABLE, name="other"), str(place))
    with pytest.raises(InputError, match="chunk is 2 there, but 3"):
        perform(narrowed(TABLE, ["one"]).with_parts(chunk=3), str(place))
    assert (place / PROTOCOL).read_text() == before


FILE = """
title: Two methods on four scenes
model: demo
data: scenes:4
methods: {Chance: random, CAM: gradcam}
columns: {Sparse: sparseness}
"""


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "own.yaml", tmp_path / "run"
    file.write_text(FILE)
    assert (
        main(["bench", str(file), "--limit", "3", "--methods", "CAM", "--methods", "rollout", "--out", str(out)]) == 0
    )
    told = capsys.readouterr().out
    assert "Two methods on four scenes" in told
    assert "rollout" in told
    assert "3 pictures" in told
    assert json.loads((out / PROTOCOL).read_text())["parts"][0]["limit"] == 3
    assert main(["report", str(out), "--form", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") >= 3
    assert main(["bench", "mda/tabel5"]) == 2
    assert "did you mean mda/table5" in capsys.readouterr().err
    assert main(["bench", str(file), "--address", "auto"]) == 2
    assert "add --engine ray" in capsys.readouterr().err
