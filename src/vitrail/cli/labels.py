"""The file of ``--labels``: a CSV with a line for every picture, or one for each class that a picture shows."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.model import Target, View

BOXES = ("boxes", "boxes_xyxy")
"""What the column with the boxes may be called."""

Class = int | str


def read_labels(path: Path, names: Sequence[str]) -> list[list[dict[str, str]]]:
    """The lines of each picture, in the file's order.

    Args:
        path: The file.
        names: The pictures' file names.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV ({error})") from error
    if not rows or not {"file", "class"} <= rows[0].keys():
        raise InputError(f"{path} must have a first line with the columns file and class, and a line a picture")
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if not row["file"] or not row["class"]:
            raise InputError(f"{path} has a line without a file or a class; give both in every line")
        found.setdefault(Path(row["file"]).name, []).append(row)
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"{path} says nothing of {missing[0]} ({len(missing)} pictures in all)")
    return [found[name] for name in names]


def class_of(row: dict[str, str]) -> Class:
    """The class of a line: a number, or a name."""
    wanted = row["class"].strip()
    return int(wanted) if wanted.isdecimal() else wanted


def boxes_of(row: dict[str, str], path: Path) -> list[tuple[float, ...]] | None:
    """``1 2 30 40; 5 6 7 8`` -> two boxes; None where the file has no column for them."""
    column = next((name for name in BOXES if name in row), None)
    if column is None:
        return None
    text = row[column] or ""
    try:
        boxes = [tuple(map(float, box.split())) for box in text.split(";") if box.strip()]
    except ValueError as error:
        raise InputError(f"{path} has boxes that cannot be read: {text!r}; write x0 y0 x1 y1; ...") from error
    if any(len(box) != 4 for box in boxes):
        raise InputError(f"{path} has a box without four numbers: {text!r}; write x0 y0 x1 y1; ...")
    return boxes


def beside(view: "View", classes: Sequence[Class], others: Sequence[Sequence[Class]]) -> "Target | list[Class]":
    """A target that knows which other classes each picture shows; without any, the classes as they were given.

    Args:
        view: The model.
        classes: What is explained of each picture.
        others: What its other lines say.
    """
    import torch

    from vitrail.model import Target, class_index

    most = max(map(len, others), default=0)
    if not most:
        return list(classes)
    known = [[class_index(view, one) for one in own] for own in others]
    rivals = torch.tensor([own + [-1] * (most - len(own)) for own in known])
    return Target(torch.tensor([class_index(view, one) for one in classes]), rivals=rivals)
