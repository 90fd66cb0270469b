"""``vitrail scenes``: pictures, masks and a table that agree, also where scenes were drawn before."""

import csv
from pathlib import Path

from vitrail import cli


def drawn(folder: Path, count: int) -> list[str]:
    """The pictures that the table names, once so many scenes are drawn."""
    assert cli.main(["scenes", "--count", str(count), "--out", str(folder), "--quiet"]) == 0
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        return [row["file"] for row in csv.DictReader(file)]


def test_fewer_scenes_than_before_leave_none_of_those(tmp_path: Path) -> None:
    drawn(tmp_path, 4)
    for own in ("pictures/mine.png", "pictures/077.png", "masks/more.txt"):
        (tmp_path / own).touch()
    assert drawn(tmp_path, 2) == ["pictures/000.png", "pictures/001.png"]
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {
        "labels.csv",
        *(f"{folder}/{name}.png" for folder in ("pictures", "masks") for name in ("000", "001")),
        *("pictures/mine.png", "pictures/077.png", "masks/more.txt"),
    }, "what vitrail did not draw stays"


def test_a_table_of_another_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "007.png").touch()
    (tmp_path / "labels.csv").write_text("file,class\npictures/007.png,1\n", encoding="utf-8")
    drawn(tmp_path, 1)
    assert (tmp_path / "pictures" / "007.png").is_file()
