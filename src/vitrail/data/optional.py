"""Datasets that need a library of their own: ImageNet-Segmentation (h5py) and the Hugging Face hub (datasets)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.classes import imagenet_names, wordnet_ids
from vitrail.data.items import Dataset, Item, Mask
from vitrail.data.readers import file_of, size_of
from vitrail.errors import InputError

SPLITS = ("validation", "val", "test", "train")


def needed(module: str, spec: str) -> Any:
    """A library that only some datasets need."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{spec}: the library {module} is needed to read it; pip install 'vitrail[bench]'") from None


# --------------------------------------------------------------------------------------------- ImageNet-Segmentation


@dataclass(frozen=True)
class Cell:
    """One picture, and its mask, in a MATLAB file of version 7.3.

    Attributes:
        path: The file.
        row: Which picture.
    """

    path: Path
    row: int

    def open(self) -> Image.Image:
        """The picture."""
        with opened(self.path) as file:
            # MATLAB stores columns first: (channels, width, height).
            pixels = np.array(file[file["value/img"][self.row, 0]])
        pixels = pixels.transpose(2, 1, 0) if pixels.ndim == 3 else pixels.T
        return Image.fromarray(np.ascontiguousarray(pixels))

    def read(self) -> Mask:
        """(H, W) int8: what the first of the annotators calls the object."""
        with opened(self.path) as file:
            annotators = file[file["value/gt"][self.row, 0]]
            return (np.array(file[annotators[0, 0]]).T > 0).astype(np.int8)

    def stamp(self) -> str:
        """The size of the whole file, and which row."""
        return f"{size_of(self.path)} {self.row}"


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The HDF5 file, closed again: an open one cannot be sent to another process."""
    library = needed("h5py", str(path))
    try:
        with library.File(path, "r") as file:
            yield file
    except (OSError, KeyError, IndexError) as error:
        raise InputError(
            f"{path} is not ImageNet-Segmentation's gtsegs_ijcv.mat ({error}); download it again"
        ) from error


def segmentation_items(argument: str, spec: str) -> Dataset:
    """``imagenet-segmentation:FILE.mat``: gtsegs_ijcv.mat, 4,276 pictures of 445 classes with masks.

    Classes that ImageNet-1k does not have get no label.
    """
    needed("h5py", spec)
    path = file_of(argument, spec)
    with opened(path) as file:
        targets = file.get("value/target")
        count = len(file["value/img"])
        wnids = [
            "" if targets is None else "".join(map(chr, np.array(file[targets[i, 0]]).ravel())) for i in range(count)
        ]
    items = (
        Item(f"{i:04d}", Cell(path, i), wordnet_ids().get(wnid), region=Cell(path, i)) for i, wnid in enumerate(wnids)
    )
    return Dataset(spec, tuple(items), imagenet_names())


# ----------------------------------------------------------------------------------------------------- Hugging Face


@dataclass(frozen=True)
class Row:
    """A picture of a dataset of the hub.

    Attributes:
        name: The dataset's name.
        split: Its part.
        column: The column of pictures.
        row: Which picture.
        made: The library's own fingerprint of the part.
    """

    name: str
    split: str
    column: str
    row: int
    made: str

    def open(self) -> Image.Image:
        """The picture."""
        picture = _table(self.name, self.split)[self.row][self.column]
        assert isinstance(picture, Image.Image)
        return picture

    def stamp(self) -> str:
        """The library's own fingerprint, and which row."""
        return f"{self.made} {self.row}"


@lru_cache(maxsize=2)
def _table(name: str, split: str) -> Any:
    return needed("datasets", f"hf:{name}").load_dataset(name, split=split)


def hub_items(argument: str, spec: str, *, learn: bool = False) -> Dataset:
    """``hf:NAME`` or ``hf:NAME,split=SPLIT``: its first column of pictures, and the first column of classes.

    Without a split the validation part is taken, else test, else train; to learn from, train alone. A dataset of 1,000
    classes is taken for ImageNet; of others the class numbers must be the model's.
    """
    name, _, option = (text.strip() for text in argument.partition(","))
    key, _, split = (text.strip() for text in option.partition("="))
    if not name or (option and (key != "split" or not split)):
        raise InputError(f"{spec}: write hf:NAME or hf:NAME,split=validation; {argument!r} was given")
    library = needed("datasets", spec)
    try:
        known = library.get_dataset_split_names(name)
        if learn and not split and "train" not in known:
            raise InputError(f"{spec} has no train split to learn from, only {', '.join(known)}; add ,split= and one")
        split = split or ("train" if learn else "") or next((one for one in SPLITS if one in known), known[0])
        table = _table(name, split)
    except InputError:
        raise
    except Exception as error:  # the hub, the network, a script: the library raises nearly anything
        raise InputError(f"{spec}: it cannot be loaded ({error}); check the name, the split and the network") from error
    kinds = {column: type(feature).__name__ for column, feature in table.features.items()}
    pictured = next((column for column, kind in kinds.items() if kind == "Image"), None)
    if pictured is None:
        raise InputError(f"{spec}: it has no column of pictures, only {', '.join(kinds)}; give another dataset")
    classed = next((column for column, kind in kinds.items() if kind == "ClassLabel"), None)
    labels = table[classed] if classed is not None else [None] * len(table)
    names = tuple(table.features[classed].names) if classed is not None else None
    made = str(table._fingerprint)
    items = (
        # Some test parts hide their classes behind -1.
        Item(f"{split}/{i}", Row(name, split, pictured, i, made), label if label is not None and label >= 0 else None)
        for i, label in enumerate(labels)
    )
    return Dataset(spec, tuple(items), imagenet_names() if names is not None and len(names) == 1000 else names)
