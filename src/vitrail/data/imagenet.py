"""ImageNet in the layouts it is handed around in, and ImageNet-S."""

import re
from collections.abc import Iterator
from pathlib import Path

from vitrail.data.classes import imagenet_names, wordnet_ids
from vitrail.data.items import Box, Dataset, Item
from vitrail.data.plain import table_of
from vitrail.data.readers import IdFile, PictureFile, annotated, first_of, folder_of, pictures_in
from vitrail.errors import InputError

PLACES = ("", "val", "validation", "train", "ILSVRC/Data/CLS-LOC/val", "Data/CLS-LOC/val")
LEARNED = ("train", "ILSVRC/Data/CLS-LOC/train", "Data/CLS-LOC/train", "")
"""Where pictures to learn from lie; in ROOT itself only as class folders."""

JUDGED = {"val", "validation", "test"}
"""Words in the names of folders with pictures that explanations are judged by."""

ANNOTATIONS = ("Annotations/CLS-LOC", "ILSVRC/Annotations/CLS-LOC", "Annotations", "bbox")
DEVKITS = ("", "data", "devkit", "devkit/data", "ILSVRC2012_devkit_t12/data")
SOLUTION, TRUTH, META = "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
SUBSETS = (50, 300, 919)
"""How many classes ImageNet-S has in its three sizes."""


def imagenet_items(argument: str, spec: str, *, learn: bool = False) -> Dataset:
    """``imagenet:ROOT``: class folders, or a flat folder with the labels of Kaggle or of the development kit.

    The pictures lie in ROOT or in val/, train/ or ILSVRC/Data/CLS-LOC/val/ in it. Boxes come from LOC_val_solution.csv
    or, where that is not there, from the XML files in Annotations/. To learn from, only those of train/ are taken, or
    class folders in ROOT, unless ROOT is val/ itself.
    """
    root = folder_of(argument, spec)
    solution = first_of(root, (SOLUTION, f"../{SOLUTION}"), Path.is_file)
    solved = {} if solution is None else _solved(solution, spec)
    for place in LEARNED if learn else PLACES:
        folder = root / place
        if not folder.is_dir() or (learn and judged(folder.resolve().name)):
            continue
        classes = class_folders(folder)
        if classes:
            found = [(wnid, path) for wnid in classes for path in pictures_in(folder / wnid)]
            if found:
                boxes = _boxes(root, solved, folder, found)
                items = (
                    Item(f"{wnid}/{path.name}", PictureFile(path), wordnet_ids()[wnid], box)
                    for (wnid, path), box in zip(found, boxes)
                )
                return Dataset(spec, tuple(items), imagenet_names())
        elif (paths := pictures_in(folder)) and not learn:
            found = [(wnid, path) for path, wnid in zip(paths, _flat_labels(root, paths, solved, spec))]
            boxes = _boxes(root, solved, folder, found)
            items = (
                Item(path.name, PictureFile(path), wordnet_ids()[wnid], box) for (wnid, path), box in zip(found, boxes)
            )
            return Dataset(spec, tuple(items), imagenet_names())
    if learn:
        raise InputError(
            f"{spec} has no train split (class folders in train/ or ILSVRC/Data/CLS-LOC/train/), and val is there to "
            f"judge explanations by; add train/, or learn from other pictures such as folder:PHOTOS"
        )
    raise InputError(
        f"{spec}: there is no picture in {root}; give the folder that holds val/ or class folders such as n01440764"
    )


def judged(name: str) -> bool:
    """Whether a folder's name says that its pictures are there to judge by.

    Example:
        >>> judged("ILSVRC2012_img_val"), judged("imagenet_train"), judged("values")
        (True, False, False)
    """
    return not JUDGED.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def class_folders(folder: Path) -> list[str]:
    """The folders in a folder that are called by a WordNet id of ImageNet, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.name in wordnet_ids() and path.is_dir())


def _solved(table: Path, spec: str) -> dict[str, list[tuple[str, Box]]]:
    """Kaggle's answers: for each picture, by the name of its file, WordNet ids with their boxes."""
    found = {}
    for number, row in table_of(table, spec, ("ImageId", "PredictionString")):
        words = row["PredictionString"].split()
        try:
            found[row["ImageId"]] = [
                (words[i], (float(words[i + 1]), float(words[i + 2]), float(words[i + 3]), float(words[i + 4])))
                for i in range(0, len(words), 5)
            ]
        except (IndexError, ValueError):
            raise InputError(
                f"{table}, line {number}: each object must be a WordNet id and four numbers; download the file again"
            ) from None
    return found


def _flat_labels(root: Path, paths: list[Path], solved: dict[str, list[tuple[str, Box]]], spec: str) -> list[str]:
    """The WordNet id of each of the validation pictures in one folder."""
    if solved:
        unknown = [path.name for path in paths if not solved.get(path.stem)]
        if unknown:
            raise InputError(
                f"{spec}: {SOLUTION} says nothing of {unknown[0]} ({len(unknown)} such); move it elsewhere"
            )
        found = [solved[path.stem][0][0] for path in paths]
    else:
        kit = first_of(root, DEVKITS, lambda folder: (folder / TRUTH).is_file() and (folder / META).is_file())
        if kit is None:
            raise InputError(
                f"{spec}: the pictures are not in class folders, so their labels are needed; put {SOLUTION}, or "
                f"{TRUTH} and {META} of the development kit, into {root}"
            )
        ids = _kit_ids(kit / META)
        answers = (kit / TRUTH).read_text(encoding="utf-8").split()
        # The kit's answers have no names: answer k is that of ILSVRC2012_val_0000000k, so part of the pictures is fine.
        places = [int(tail) if (tail := path.stem.rpartition("_")[2]).isdecimal() else 0 for path in paths]
        wrong = [path.name for path, place in zip(paths, places) if not 1 <= place <= len(answers)]
        if wrong:
            raise InputError(
                f"{spec}: {TRUTH} has {len(answers)} answers, none for {wrong[0]}; keep the names of the validation "
                "pictures, such as ILSVRC2012_val_00000001.JPEG"
            )
        found = [ids.get(answers[place - 1], answers[place - 1]) for place in places]
    strange = next((wnid for wnid in found if wnid not in wordnet_ids()), None)
    if strange is not None:
        raise InputError(f"{spec}: {strange} is no class of ImageNet-1k; check the file with the labels")
    return found


def _kit_ids(meta: Path) -> dict[str, str]:
    """The development kit's own class numbers -> WordNet ids."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        synsets = loadmat(meta, squeeze_me=True)["synsets"]
        return {str(int(number)): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"])}
    except (OSError, ValueError, KeyError, TypeError, IndexError, NotImplementedError, MatReadError) as error:
        raise InputError(f"{meta} is not the file of the ILSVRC2012 kit ({error}); download the kit again") from error


def _boxes(
    root: Path, solved: dict[str, list[tuple[str, Box]]], folder: Path, found: list[tuple[str, Path]]
) -> Iterator[tuple[Box, ...] | None]:
    """The boxes of each picture's own class, where they are known."""
    names = [f"{place}/{split}" for place in ANNOTATIONS for split in (folder.name, "val", ".")]
    notes = first_of(root, names, lambda place: place.is_dir())
    for wnid, path in found:
        things = solved.get(path.stem, [])
        if not things and notes is not None:
            file = first_of(notes, (f"{path.stem}.xml", f"{wnid}/{path.stem}.xml"), Path.is_file)
            things = [] if file is None else list(annotated(file))
        yield tuple(box for name, box in things if name == wnid) or None


def imagenet_s_items(argument: str, spec: str, *, learn: bool = False) -> Dataset:
    """``imagenet-s:ROOT``: class folders in validation/, masks in validation-segmentation/ (or train-semi and test).

    A pixel's class is R + 256 G: 0 is the rest, 1000 does not count, and k is the k-th class folder. So all class
    folders must be there, 50, 300 or 919; or else a text file with their names, one on each line, in ROOT.
    """
    root = folder_of(argument, spec)
    splits = ("train-semi",) if learn else ("validation", "train-semi", "test")
    split = first_of(root, splits, lambda p: p.is_dir() and _segmented(p).is_dir())
    if split is None and learn:
        raise InputError(f"{spec} has no train-semi with its masks, and the rest is there to judge by; unpack it")
    if split is None:
        raise InputError(f"{spec}: {root} must hold the folders validation and validation-segmentation")
    numbers = {wnid: i for i, wnid in enumerate(_subset(root, split, spec), start=1)}
    items = []
    for wnid in class_folders(split):
        for path in pictures_in(split / wnid):
            mask = _segmented(split) / wnid / f"{path.stem}.png"
            if mask.is_file():
                region = IdFile(mask, (numbers[wnid],), (1000,), colour=True)
                items.append(Item(f"{wnid}/{path.name}", PictureFile(path), wordnet_ids()[wnid], region=region))
    if not items:
        raise InputError(f"{spec}: no picture in {split} has a mask in {_segmented(split)}; unpack both")
    return Dataset(spec, tuple(items), imagenet_names())


def _segmented(split: Path) -> Path:
    return split.with_name(f"{split.name}-segmentation")


def _subset(root: Path, split: Path, spec: str) -> list[str]:
    """The classes of an ImageNet-S in the order of their numbers."""
    present = class_folders(split)
    for file in sorted(root.glob("*.txt")):
        listed = [word for word in file.read_text(encoding="utf-8").split() if word in wordnet_ids()]
        if set(present) <= set(listed):
            return listed
    if len(present) not in SUBSETS:
        raise InputError(
            f"{spec}: {split} has {len(present)} class folders, but the numbers in the masks count all of "
            f"{', '.join(map(str, SUBSETS))}; unpack all, or put a text file with all WordNet ids in order into {root}"
        )
    return present
