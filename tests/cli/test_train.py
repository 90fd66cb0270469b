"""``vitrail train`` and what it is told: every number that a flag cannot take is refused by the flag's name."""

from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from vitrail.cli import main
from vitrail.cli.train import Train

HINTS = get_type_hints(Train)
NUMBERS = [field.name for field in fields(Train) if {int, float} & {HINTS[field.name], *get_args(HINTS[field.name])}]
BAD = ("-1", "nan", "inf", "-inf", str(10**30), str(10**400), "0")
FINE = {("seed", "0")}


def test_every_number_is_tried() -> None:
    assert set(NUMBERS) >= {"limit", "steps", "batch", "rate", "curve", "cells", "channels", "seed", "look", "sheet"}


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_bad_number_is_refused_by_the_name_of_its_flag(
    name: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (name, value) in FINE:
        return
    words = ["--cells", value, value] if name == "cells" else [f"--{name}", value]
    try:
        code = main(["train", *words, "--out", str(tmp_path / "run"), "--device", "cpu"])
    except SystemExit as stopped:  # the parser's own refusal, of what is no number at all
        code = int(stopped.code or 0)
    said = capsys.readouterr()
    assert code == 2
    assert f"--{name}" in said.err + said.out
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()


def test_cells_too_small_for_the_model_are_refused_by_their_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", "scenes:8", "--cells", "7", "100", "--device", "cpu"]) == 2
    assert "--cells must be at most 72 for 144 x 144 pixels, but 100 was given" in capsys.readouterr().err
    assert main(["train", "--device", "nowhere"]) == 2
    assert "the device 'nowhere' cannot be used here" in capsys.readouterr().err
