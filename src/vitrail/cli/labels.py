"""The file of ``--labels``: a CSV with a line for every picture, or one for each class that a picture shows."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.errors import InputError, option

if TYPE_CHECKING:
    from vitrail.model import Target, View

BOXES = ("boxes", "boxes_xyxy")
"""What the column with the boxes may be called."""

Class = int | str


@dataclass(frozen=True)
class Labelled:
    """A line of the file.

    Attributes:
        where: The file and the line, as messages call it.
        cells: Column -> what stands there.
    """

    where: str
    cells: dict[str, str]

    @property
    def given(self) -> Class:
        """The class: a number, or a name."""
        wanted = self.cells["class"].strip()
        return int(wanted) if wanted.isdecimal() else wanted

    def boxes(self) -> list[tuple[float, ...]] | None:
        """``1 2 30 40; 5 6 7 8`` -> two boxes; None where the file has no column for them."""
        column = next((name for name in BOXES if name in self.cells), None)
        if column is None:
            return None
        text = self.cells[column] or ""
        try:
            found = [tuple(map(float, box.split())) for box in text.split(";") if box.strip()]
        except ValueError as error:
            raise InputError(f"{self.where} has boxes that cannot be read: {text!r}; write x0 y0 x1 y1; ...") from error
        for box in found:
            if len(box) != 4:
                raise InputError(f"{self.where} has a box without four numbers: {text!r}; write x0 y0 x1 y1; ...")
            if not (box[0] < box[2] and box[1] < box[3]):
                said = " ".join(f"{number:g}" for number in box)
                raise InputError(
                    f"{self.where} has the box {said}, which holds no pixel; write x0 y0 x1 y1, the upper left corner "
                    "and the lower right one"
                )
        return found


def read_labels(path: Path, names: Sequence[str]) -> list[list[Labelled]]:
    """The lines of each picture, in the file's order.

    Args:
        path: The file.
        names: The pictures' file names.
    """
    if not path.exists():
        raise InputError(f"there is no file {path}; give {option('labels')} a CSV file with the columns file and class")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            head = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV ({error})") from error
    if not rows or not {"file", "class"} <= set(head):
        raise InputError(f"{path} must have a first line with the columns file and class, and a line a picture")
    found: dict[str, list[Labelled]] = {}
    for number, row in rows:
        line = Labelled(f"{path}, line {number}", row)
        if not row["file"] or not row["class"]:
            raise InputError(f"{line.where} has no file or no class; give both in every line")
        found.setdefault(Path(row["file"]).name, []).append(line)
    missing = [name for name in dict.fromkeys(names) if name not in found]
    if missing:
        count = len(set(names))
        which = f"{len(missing)} of the {count} pictures, {missing[0]} first" if count > 1 else missing[0]
        raise InputError(f"{path} says nothing of {which}; give every picture a line")
    return [found[name] for name in names]


def beside(view: "View", lines: Sequence[Labelled], others: Sequence[Sequence[Labelled]]) -> "Target | list[Class]":
    """A target that knows which other classes each picture shows; without any, the classes as they were given.

    Args:
        view: The model.
        lines: What is explained of each picture.
        others: Its other lines.
    """
    import torch

    from vitrail.model import Target, class_index, resolve

    classes = [line.given for line in lines]
    try:
        resolve(view, classes, len(classes))
    except InputError:
        for line in lines:
            try:
                resolve(view, line.given, 1)
            except InputError as error:
                raise InputError(f"{line.where}: {error}") from error
        raise
    most = max(map(len, others), default=0)
    if not most:
        return classes
    known = [[class_index(view, one.given) for one in own] for own in others]
    rivals = torch.tensor([own + [-1] * (most - len(own)) for own in known])
    return Target(torch.tensor([class_index(view, one) for one in classes]), rivals=rivals)
