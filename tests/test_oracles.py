"""Every method and metric has a test that compares it with a slow definition or with somebody else's code."""

from pathlib import Path

import pytest

from helpers.oracle import compared
from vitrail.method import METHODS
from vitrail.metric import METRICS

MARKS = [mark for file in sorted(Path(__file__).parent.rglob("test_*.py")) for mark in compared(file)]


@pytest.mark.parametrize("kind", [METHODS, METRICS], ids=["methods", "metrics"])
def test_everything_is_compared(kind: dict[str, type]) -> None:
    missing = sorted(kind.keys() - {name for name, _ in MARKS})
    assert not missing, f"no test has the mark @oracle (tests/helpers/oracle.py) for {', '.join(missing)}"


def test_marks_name_what_there_is_and_stand_on_tests() -> None:
    assert not METHODS.keys() & METRICS.keys()
    assert not [mark for mark in MARKS if mark[0] not in {*METHODS, *METRICS} or not mark[1].startswith("test_")]


def test_the_walk_reads_marks_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "test_new.py"
    file.write_text('@oracle("one", "other")\n@pytest.mark.slow\ndef test_it():\n    pass\n\n\ndef test_more(): ...\n')
    assert list(compared(file)) == [("one", "test_it"), ("other", "test_it")]
