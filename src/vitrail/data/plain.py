"""A user's own pictures: a folder of them, or a table."""

import csv
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from vitrail.data.classes import class_index, imagenet_names, wordnet_ids
from vitrail.data.items import Dataset, Item
from vitrail.data.readers import MaskFile, PictureFile, boxes_of, file_of, folder_of, pictures_in
from vitrail.errors import InputError


def folder_items(argument: str, spec: str) -> Dataset:
    """``folder:DIR``: pictures in one folder, without labels; or one folder for each class.

    Folders that are all called by a number or all by a WordNet id say the class themselves. Others are counted in the
    order of their names, as torchvision's ``ImageFolder`` does.
    """
    root = folder_of(argument, spec)
    loose = pictures_in(root)
    if loose:
        return Dataset(spec, tuple(Item(path.name, PictureFile(path)) for path in loose))
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    held = {folder: pictures_in(folder) for folder in folders}
    if not any(held.values()):
        raise InputError(f"{spec}: there is no picture in {root}, nor in the folders in it; give another folder")
    labels, classes = _folder_classes([folder.name for folder in folders])
    items = (
        Item(f"{folder.name}/{path.name}", PictureFile(path), labels[folder.name])
        for folder, paths in held.items()
        for path in paths
    )
    return Dataset(spec, tuple(items), classes)


def _folder_classes(names: list[str]) -> tuple[dict[str, int], tuple[str, ...] | None]:
    if all(name.isdecimal() for name in names):
        return {name: int(name) for name in names}, None
    if all(name.startswith("n") and name[1:].isdecimal() for name in names) and set(names) <= wordnet_ids().keys():
        return {name: wordnet_ids()[name] for name in names}, imagenet_names()
    return {name: i for i, name in enumerate(names)}, tuple(names)


def csv_items(argument: str, spec: str) -> Dataset:
    """``csv:FILE``: columns file, and where known class, boxes and mask; paths are relative to the table.

    Where a picture stands in several rows, it shows the classes of all of them, and a picture with one row no other.
    Boxes are ``x0 y0 x1 y1``, several separated by ``;``. Masks are pictures of 1 (the object), 0 (the rest) and 255
    (does not count), or black and white.
    """
    table = file_of(argument, spec)
    rows = table_of(table, spec, ("file",))
    items, seen = [], Counter[str]()
    shown: dict[str, dict[int, None]] = defaultdict(dict)  # the classes of each picture, in the order of their rows
    for number, row in rows:
        where, name = f"{spec}, line {number}", row["file"]
        if not name:
            raise InputError(f"{where}: the column file is empty; give the path of a picture, or delete the line")
        seen[name] += 1
        given, mask = row.get("class", ""), row.get("mask", "")
        label = class_index(given, where) if given else None
        if label is not None:
            shown[name][label] = None
        items.append(
            Item(
                name if seen[name] == 1 else f"{name}#{seen[name]}",
                PictureFile(_beside(table, name, where)),
                label,
                boxes_of(row.get("boxes", ""), where),
                MaskFile(_beside(table, mask, where)) if mask else None,
            )
        )
    if max(seen.values()) > 1:  # a table that names a picture twice says what each shows
        for i, (_, row) in enumerate(rows):
            items[i] = replace(items[i], present=tuple((c,) for c in shown[row["file"]] if c != items[i].label))
    # A name is ImageNet's; numbers alone may be any model's.
    named = any(row.get("class", "") and not row["class"].isdecimal() for _, row in rows)
    return Dataset(spec, tuple(items), imagenet_names() if named else None)


def _beside(table: Path, name: str, where: str) -> Path:
    path = table.parent / Path(name).expanduser()
    if not path.is_file():
        raise InputError(f"{where}: there is no file {path}; paths are relative to the folder of the table")
    return path


def table_of(path: Path, spec: str, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """Line number and cells of each row of a table; refused where a column is missing or no row is there."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True, restval="")
            head = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = head
            missing = [name for name in columns if name not in head]
            if missing:
                raise InputError(
                    f"{spec}: {path.name} has no column {' and '.join(missing)}; its first line must name the columns, "
                    f"but it is {', '.join(head) or 'empty'}"
                )
            rows = [
                (reader.line_num, {key: (cell or "").strip() for key, cell in row.items() if key is not None})
                for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{spec}: {path} cannot be read as a table ({error}); give a CSV file in UTF-8") from error
    if not rows:
        raise InputError(f"{spec}: {path} has no rows; give one line for each picture")
    return rows
