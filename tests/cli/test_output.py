"""What the command line prints: tables that read right in a narrow window, and pipes whose reader has left."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from vitrail import cli, scenes

Capture = pytest.CaptureFixture[str]


def test_each_target_has_a_line_of_its_own(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a long name is folded, the probabilities stay beside their classes."""
    monkeypatch.setenv("COLUMNS", "50")
    scenes.make(3, classes=["cat"]).pil.save(tmp_path / "a.png")
    long = "a very long name of a class that is folded"
    names = [long if name == "shark" else name for name in scenes.CLASSES]
    arguments = ["--target", long, "cat", "--classes", *names, "--method", "random", "--out", str(tmp_path / "out")]
    assert cli.main(["explain", str(tmp_path / "a.png"), *arguments]) == 0
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    begun = [[cell.strip() for cell in line] for line in lines if "%" in line[-1]]
    assert len(begun) == 2
    assert begun[0][-2].startswith("a")
    assert begun[1][-2] == "cat"
    assert begun[1][:3] == ["", "", ""]


def test_the_version(capsys: Capture) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"vitrail {version('vitrail')}\n"


@pytest.mark.parametrize("words", [["metrics", "--json"], ["metrics"], ["explain", "--help"]], ids=" ".join)
def test_a_reader_that_leaves_early_is_no_mistake(words: list[str]) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "vitrail", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert command.stderr.read() == ""
    command.stderr.close()
    assert command.wait(60) == 141
