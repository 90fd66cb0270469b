"""The tests stand where the source does: folder by folder, family by family, and none is too long to be read."""

from pathlib import Path

import pytest

import vitrail

SOURCE, TESTS = Path(vitrail.__file__).parent, Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))

MOST = 450
"""Lines of a file: a longer one holds more than one idea."""


def folder(file: Path) -> Path:
    return file.parent.relative_to(TESTS)


def test_every_test_lies_in_a_folder_of_the_source() -> None:
    assert len(FILES) > 100
    strange = sorted({str(folder(file)) for file in FILES if not (SOURCE / folder(file) / "__init__.py").is_file()})
    assert not strange, f"src/vitrail has no such folders: {', '.join(strange)}"


@pytest.mark.parametrize("room", ["method", "metric"])
def test_every_family_has_a_folder_of_tests(room: str) -> None:
    families = {door.parent.relative_to(SOURCE) for door in (SOURCE / room).glob("*/__init__.py")}
    assert len(families) > 4
    missing = families - {folder(file) for file in FILES}
    assert not missing, f"no test lies in {', '.join(sorted(map(str, missing)))}"


def test_files_are_short_enough_to_be_read() -> None:
    long = {
        str(file.relative_to(TESTS)): lines for file in FILES if (lines := len(file.read_text().splitlines())) > MOST
    }
    assert not long, f"split by idea: {long}"
