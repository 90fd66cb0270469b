"""The small folders of real pictures that the environment variable VITRAIL_ASSETS names."""

import difflib
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from vitrail.data.classes import COCO, COCO80, imagenet_names, meaning, others
from vitrail.data.imagenet import judged
from vitrail.data.items import Dataset, Item
from vitrail.data.plain import table_of
from vitrail.data.readers import IdFile, PictureFile, Polygons, boxes_of, pictures_in
from vitrail.errors import InputError

VARIABLE = "VITRAIL_ASSETS"


def asset_items(argument: str, spec: str, *, learn: bool = False) -> Dataset:
    """``assets:imagenet_val``, ``assets:imagenet_train``, ``assets:pets`` or ``assets:coco128``."""
    if learn and judged(argument):
        raise InputError(f"{spec} is there to judge explanations by; learn from other pictures such as folder:PHOTOS")
    if argument not in READERS:
        near = difflib.get_close_matches(argument, READERS, n=1, cutoff=0.4)
        hint = f"did you mean assets:{near[0]}?" if near else f"there are {', '.join(READERS)}"
        raise InputError(f"{spec}: there is no asset {argument!r}; {hint}")
    root = os.environ.get(VARIABLE, "")
    if not root:
        raise InputError(f"{spec}: set the environment variable {VARIABLE} to the folder that holds data/{argument}")
    folder = (Path(root).expanduser() / "data" / argument).absolute()
    if not (folder / "images").is_dir():
        raise InputError(f"{spec}: {VARIABLE} is {root}, but there is no folder {folder / 'images'}; set it to another")
    items = READERS[argument](folder, spec)
    if not items:
        raise InputError(f"{spec}: there is no picture in {folder / 'images'}; copy the folder again")
    return Dataset(spec, tuple(items), imagenet_names())


def _tabled(folder: Path, spec: str) -> list[Item]:
    """labels.csv: file, class and perhaps boxes_xyxy; where there are masks: 0 the rest, 1 the object, 255 border."""
    items = []
    for number, row in table_of(folder / "labels.csv", spec, ("file", "class")):
        path, where = folder / "images" / row["file"], f"{folder / 'labels.csv'}, line {number}"
        if not row["class"].isdecimal():
            raise InputError(
                f"{where}: the class must be a number, but {row['class']!r} was given; copy the file again"
            )
        mask = folder / "masks" / f"{path.stem}.png"
        items.append(
            Item(
                row["file"],
                PictureFile(path),
                int(row["class"]),
                boxes_of(row.get("boxes_xyxy", ""), where),
                IdFile(mask, (1,), (255,)) if mask.parent.is_dir() else None,
            )
        )
    return items


def _outlined(folder: Path, spec: str) -> list[Item]:
    """labels/*.txt: COCO's class, counted to 80, and a polygon; one item for each class that ImageNet has."""
    items = []
    for path in pictures_in(folder / "images"):
        outlines = defaultdict(list)
        file = folder / "labels" / f"{path.stem}.txt"
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            try:
                name, outline = COCO80[int(line.split()[0])], tuple(float(number) for number in line.split()[1:])
            except (ValueError, IndexError):
                raise InputError(
                    f"{spec}: {file} must hold a class and x y pairs, but {line[:40]!r} was found"
                ) from None
            if len(outline) >= 6 and len(outline) % 2 == 0:
                outlines[name].append(outline)
        for name in COCO:
            if name in outlines:
                label, accepted = meaning(COCO[name])
                region = Polygons(path, tuple(outlines[name]))
                items.append(
                    Item(
                        f"{path.name} {name}",
                        PictureFile(path),
                        label,
                        region=region,
                        accepted=accepted,
                        present=others(name, outlines, COCO),
                    )
                )
    return items


READERS: dict[str, Callable[[Path, str], list[Item]]] = {
    "imagenet_val": _tabled,
    "imagenet_train": _tabled,
    "pets": _tabled,
    "coco128": _outlined,
}
