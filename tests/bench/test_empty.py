"""Nothing from nothing: a report says whose maps hold no evidence, and does not rank them."""

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from vitrail.bench import Column, Part, Protocol, Store, perform
from vitrail.bench.report import Result
from vitrail.bench.report.files import text
from vitrail.bench.report.words import notes
from vitrail.method import METHODS, Batch, Method
from vitrail.model import View
from vitrail.notes import evidence, summed


@dataclasses.dataclass(frozen=True)
class Nothing(Method):
    """The same everywhere."""

    id: ClassVar[str] = "nothing"
    needs: ClassVar[frozenset[Any]] = frozenset()
    family: ClassVar[str] = "baseline"

    def maps(self, view: View, batch: Batch) -> Tensor:
        batch.settle(view)
        return torch.zeros(len(batch), *view.grid_at(batch.size), device=batch.images.device)


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Result:
    monkeypatch.setitem(METHODS, "nothing", Nothing)
    columns = (Column("Complex", (("complexity", 1.0),)), Column("Sparse", (("sparseness", 1.0),)))
    methods = {"Chance": "random", "Nothing": "nothing", "TIS": "tis(masks=2, keep=2)"}
    part = Part("one", "demo", "scenes:2", methods, columns, chunk=2)
    return Result.of(Store(perform(Protocol("table", "A table", "nobody", (part,)), str(tmp_path / "run")).place))


def test_a_method_without_evidence_is_shown_but_not_ranked(result: Result) -> None:
    (section,) = result.sections
    rows = {row.label: row for row in section.rows}
    empty = rows["Nothing"]
    assert (empty.empty, empty.maps) == (2, 2)
    assert all(cell.known and cell.rank is None and not cell.best and not cell.tied for cell in empty.cells)
    assert sorted(rows[label].cells[0].rank or 0 for label in ("Chance", "TIS")) == [1, 2]
    assert (rows["Chance"].empty, rows["TIS"].empty) == (0, 0)
    lines = [line for _, found in notes(section) for line in found]
    assert any(line.startswith("Nothing: no evidence on 2 of 2 pictures, so it is not ranked") for line in lines)
    assert any("patches are in none of its masks" in line and "2 of 2 pictures" in line for line in lines)
    for form in ("terminal", "markdown", "latex", "html"):
        assert "no evidence on 2 of 2" in " ".join(text(result, form).split()), form  # type: ignore[arg-type]
        assert "None" not in text(result, form), form  # type: ignore[arg-type]
    table = list(csv.DictReader(io.StringIO(text(result, "csv"))))
    assert [row["empty"] for row in table if row["label" if "label" in row else "method"] == "Nothing"] == ["2", "2"]


def test_how_it_is_said() -> None:
    assert evidence(0, 9) == ""
    assert evidence(4, 9) == "no evidence on 4 of 9 pictures"
    assert evidence(5, 9) == "no evidence on 5 of 9 pictures, so it is not ranked"
    assert summed([("a 1 of 5", "b"), ("a 3 of 5",), ()]) == {"a 1 to 3 of 5": 2, "b": 1}
