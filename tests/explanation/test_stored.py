"""Explanations and runs of an earlier version are read: small real ones are kept in tests/golden/schema1."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail import Explanation, scenes
from vitrail.bench import perform, report
from vitrail.bench.protocol_json import from_dict
from vitrail.explanation import versions

GOLDEN = Path(__file__).parents[1] / "golden" / "schema1"


def test_an_explanation_of_schema_1() -> None:
    found = Explanation.load(GOLDEN / "mda")
    assert json.loads((GOLDEN / "mda" / "manifest.json").read_text())["schema"] == 1
    assert (found.targets, found.signed, found.enlargement) == (None, False, "cells")
    fresh = vitrail.explain("demo", [scenes.make(seed).pil for seed in (7, 8)], found.method)
    assert torch.allclose(found.maps, fresh.maps, atol=1e-4), "made by another version of torch"
    again, expected = found.with_(gamma=1.0, kappa=0.1), fresh.with_(gamma=1.0, kappa=0.1)
    assert torch.allclose(again.maps, expected.maps, atol=1e-4)
    assert again.notes == expected.notes


def test_one_of_a_function(tmp_path: Path) -> None:
    found = Explanation.load(GOLDEN / "function")
    assert found.explained(0) == "a function of the logits"
    assert found.overlay(scenes.make(7).pil).size == (144, 144)
    again = Explanation.load(found.save(tmp_path / "again"))
    assert json.loads((tmp_path / "again" / "manifest.json").read_text())["schema"] == 2
    assert torch.equal(again.maps, found.maps)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "run", tmp_path / "run"))


def test_a_run_is_reported(folder: Path) -> None:
    result = report.Result.of(str(folder))
    cells = [row.cells[0] for row in result.sections[0].rows if row.cells[0].value is not None]
    assert len(cells) == 2
    assert all(0 < cell.value < 1 for cell in cells)


def test_a_run_goes_on(folder: Path) -> None:
    """Nothing of it is made again: its parts are found under their names."""
    manifest = folder / "object" / "manifest.json"
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(facts | {"versions": versions()}))  # the libraries of today
    before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    perform(from_dict(json.loads((folder / "protocol.json").read_text())), str(folder))
    assert {path: path.read_bytes() for path in folder.rglob("*.parquet")} == before
