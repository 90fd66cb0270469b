"""What the command line prints: tables that read right in a narrow window, and pipes whose reader has left."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from vitrail import Explanation, Scores, cli, scenes

Capture = pytest.CaptureFixture[str]

VITRAIL = [sys.executable, "-m", "vitrail"]


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


@pytest.mark.parametrize("words", [["metrics"], ["explain", "--help"]], ids=" ".join)
def test_a_reader_that_leaves_early_is_no_mistake(words: list[str]) -> None:
    command = subprocess.Popen([*VITRAIL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert command.stderr.read() == ""
    command.stderr.close()
    assert command.wait(60) == 141


COMMANDS = [["metrics"], ["--help"], ["--version"]]
"""A table, what tyro prints, and what is said before it is asked: none but the first takes seconds to begin."""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_that_cannot_be_written_is_told(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        told = subprocess.run([*VITRAIL, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        untold = subprocess.run([*VITRAIL, *words], stdout=full, stderr=full, check=False)
    assert told.returncode == untold.returncode == 1
    assert told.stderr == "vitrail: what it prints cannot be written (No space left on device)\n"


@pytest.mark.skipif(os.name != "posix", reason="shells elsewhere close no streams")
@pytest.mark.parametrize(("close", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("| true", 141)])
def test_streams_that_are_closed(close: str, code: int) -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$@" {close}', "bash", *VITRAIL, "explain", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr + done.stdout


def test_a_refusal_without_a_stream_keeps_its_code() -> None:
    words = ["explain", "none.png", "--method", "nosuch"]
    assert subprocess.run(["bash", "-c", '"$@" 2>&-', "bash", *VITRAIL, *words], check=False).returncode == 2


def test_a_reader_that_leaves_while_pictures_are_explained(tmp_path: Path) -> None:
    scenes.make(3).pil.save(tmp_path / "a.png")
    words = ["explain", str(tmp_path / "a.png"), "--method", "random", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        ["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash", *VITRAIL, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (141, "")
    assert (tmp_path / "out" / "sheet.png").is_file()


# ----------------------------------------------------------------------------------------- names that are not UTF-8


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder and pictures in it whose names are bytes of no encoding."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/od\xff"))
    try:
        folder.mkdir()
    except (OSError, UnicodeError):
        pytest.skip("file names of this system are text")
    for i, name in enumerate((b"a\xff\xe9.png", "\u00fc.png".encode())):
        scenes.make(i).pil.save(Path(os.fsdecode(os.fsencode(folder) + b"/" + name)))
    return folder


def test_names_that_are_not_utf8(odd: Path, tmp_path: Path, capsys: Capture) -> None:
    def said(*words: object) -> str:
        assert cli.main([*map(str, words)]) == 0
        return capsys.readouterr().out

    legible = r"a\udcff\udce9.png"
    printed = said("explain", odd, "--method", "random", "--out", odd / "out")
    assert legible in printed
    assert "\u00fc.png" in printed
    manifest = json.loads((odd / "out" / "random" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["images"] == [legible, "\u00fc.png"]
    assert Explanation.load(odd / "out" / "random").images == (legible, "\u00fc.png")
    said("evaluate", odd, "--method", "random", "--metric", "sparseness", "--out", odd / "scores")
    assert Scores.from_parquet(odd / "scores" / "scores.parquet").images == (legible, "\u00fc.png")
    run = ["bench", "scenes", "--part", "object", "--methods", "random", "--metrics", "sparseness"]
    for out in (odd / "run", tmp_path / "run"):
        said(*run, "--data", f"folder:{odd}", "--out", out)
        said("report", out)
        said("report", out, "--out", odd / "report")
    assert r"od\udcff" in (odd / "report" / "report.md").read_text(encoding="utf-8")
    said("recommend", "--model", "demo", "--images", odd, "--methods", "ixg", "--out", tmp_path / "advice")


def test_refusals_name_what_is_not_utf8(odd: Path, capsys: Capture) -> None:
    picture = next(path for path in odd.iterdir() if "\u00fc" not in path.name)
    for words in (
        ["explain", str(odd / "none.png")],
        ["explain", str(picture), "--method", "no\udcff"],
        ["explain", str(picture), "--target", "no\udcff"],
        ["explain", str(picture), "--checkpoint", str(odd / "none.pt")],
        ["bench", f"{odd}/none.yaml"],
        ["recommend", "--model", "demo", "--images", str(picture), "--methods", "ixg"],
    ):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("vitrail: ")
        assert r"\udcff" in said
