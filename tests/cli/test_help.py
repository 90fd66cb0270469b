"""Every verb's help has an example that runs on a fresh machine: the embedded world, no network, nothing set."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail
from vitrail import cli

DEAR = ("demo", "train")
"""Verbs whose example takes more than a few seconds; tests/cli/test_demo.py and tests/train run the like."""

RUNNER = """
import json, os, socket, sys, traceback
def refuse(*_, **__):
    raise OSError("the network was asked for")
socket.socket.connect = socket.getaddrinfo = refuse
from vitrail import cli
found = {}
for verb, commands in json.loads(sys.argv[1]).items():
    os.makedirs(verb)
    os.chdir(verb)
    for words in commands:
        sys.argv = ["vitrail", *words]
        try:
            code = cli.main(words)
        except BaseException:
            code = traceback.format_exc()
        if code != 0:
            found[verb] = code
            break
    os.chdir("..")
    print(verb, "done", file=sys.stderr)
print("FOUND", json.dumps(found))
"""


def told(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What --help prints, each paragraph on one line."""
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as left:
        cli.main([*words, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def examples(text: str) -> list[list[list[str]]]:
    """The commands of each example, split into words as a shell does."""
    found = []
    for line in re.findall(r"(?:^|[.] )Example: (vitrail .*)$", text, re.MULTILINE):
        commands = [shlex.split(command) for command in line.split(" && ")]
        assert all(words[0] == "vitrail" for words in commands), line
        found.append([words[1:] for words in commands])
    return found


@pytest.fixture
def helps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Every verb's example, as its own help has it."""
    whole = told([], capsys, monkeypatch)
    usage = re.search(r"\{([\w,]+)\}", whole)
    assert usage is not None
    found = {}
    for verb in usage.group(1).split(","):
        own = examples(told([verb], capsys, monkeypatch))
        assert len(own) == 1, f"vitrail {verb} --help has {len(own)} examples"
        assert own[0][-1][0] == verb, f"the example of vitrail {verb} ends with another verb"
        found[verb] = own[0]
    return found


def failures(examples: dict[str, list[list[str]]], folder: Path) -> dict[str, object]:
    """The examples that do not end well, run one after the other in empty folders by a process of their own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VITRAIL", "COLUMNS"))}
    source = str(Path(vitrail.__file__).parents[1])
    kept |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "PYTHONPATH": source, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", RUNNER, json.dumps(examples)]
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.rpartition("FOUND ")[2])
    return {verb: (code, done.stderr[-2000:]) for verb, code in found.items()}


def test_the_examples_in_the_help_run_on_a_fresh_machine(helps: dict[str, list[list[str]]], tmp_path: Path) -> None:
    cheap = {verb: commands for verb, commands in helps.items() if verb not in DEAR}
    assert failures(cheap, tmp_path) == {}


@pytest.mark.slow
def test_the_dear_examples_in_the_help_run_on_a_fresh_machine(
    helps: dict[str, list[list[str]]], tmp_path: Path
) -> None:
    assert failures({verb: helps[verb] for verb in DEAR}, tmp_path) == {}
