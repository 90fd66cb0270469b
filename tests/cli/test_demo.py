"""``vitrail demo``: a first look, without a download."""

import time
from pathlib import Path

import pytest
from PIL import Image

from vitrail import cli, scenes
from vitrail.cli.demo import METHODS
from vitrail.method import parse


def test_the_demo_draws_its_sheet_quickly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("the demo must not need a network")

    monkeypatch.setattr("socket.socket.connect", no_network)
    monkeypatch.setattr("socket.getaddrinfo", no_network)
    start = time.perf_counter()
    assert cli.main(["demo", "--out", str(tmp_path / "new"), "--device", "cpu"]) == 0
    assert time.perf_counter() - start < 60
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["sheet.png"]
    with Image.open(tmp_path / "new" / "sheet.png") as sheet:
        sheet.load()
        assert sheet.width > 200 * (len(METHODS) + 1)
        assert sheet.height > 200 * len(scenes.samples())
    said = capsys.readouterr()
    assert said.err == ""
    assert f"{len(scenes.samples())} pictures, {len(METHODS)} methods" in said.out
    assert str(tmp_path / "new" / "sheet.png") in said.out


def test_the_methods_shown_exist() -> None:
    assert [parse(spec).spec for spec in METHODS] == list(METHODS)


def test_an_out_folder_that_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.cli.demo.METHODS", ("random",))
    (tmp_path / "file").write_text("in the way")
    assert cli.main(["demo", "--out", str(tmp_path / "file"), "--device", "cpu", "--quiet"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "choose another folder" in said.err
    assert (tmp_path / "file").read_text() == "in the way"
