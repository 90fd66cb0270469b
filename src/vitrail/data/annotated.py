"""Datasets that show where the objects are: COCO, Oxford-IIIT Pet and PASCAL VOC."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.classes import COCO, PETS, VOC, VOC_NAMES, imagenet_names, meaning, others
from vitrail.data.items import Box, Dataset, Item, Mask
from vitrail.data.readers import (
    IdFile,
    PictureFile,
    annotated,
    filled,
    first_of,
    folder_of,
    pictures_in,
)
from vitrail.errors import InputError

# ------------------------------------------------------------------------------------------------------------- COCO


@dataclass(frozen=True)
class CocoMask:
    """The objects of one class in a picture of COCO.

    Attributes:
        size: Height and width of the picture.
        outlines: x y pairs of each polygon of each object, in pixels.
        objects: Objects given as runs instead, as (counts) or a compressed text.
        crowds: Regions of many objects, given as runs; they do not count.
    """

    size: tuple[int, int]
    outlines: tuple[tuple[float, ...], ...]
    objects: tuple[tuple[int, ...] | str, ...] = ()
    crowds: tuple[tuple[int, ...] | str, ...] = ()

    def read(self) -> Mask:
        """(H, W) int8."""
        mask = filled((np.array(outline).reshape(-1, 2) for outline in self.outlines), self.size)
        for runs in self.objects:
            mask[unrolled(runs, self.size)] = 1
        for runs in self.crowds:
            mask[unrolled(runs, self.size) & (mask == 0)] = -1
        return mask

    def stamp(self) -> str:
        """The outlines themselves."""
        return repr((self.size, self.outlines, self.objects, self.crowds))


def unrolled(runs: tuple[int, ...] | str, size: tuple[int, int]) -> np.ndarray:
    """(H, W) bool from COCO's runs: so many pixels off, so many on, and so forth, column after column."""
    if isinstance(runs, str):
        try:
            from pycocotools import mask
        except ImportError:
            raise InputError(
                "a mask of this COCO file is compressed, and pycocotools is needed to read it; "
                "pip install 'vitrail[bench]'"
            ) from None
        return np.asarray(mask.decode({"size": list(size), "counts": runs})).astype(bool)
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    if len(flat) != size[0] * size[1]:
        raise InputError(
            f"a mask of this COCO file has {len(flat)} pixels, not {size[0]} x {size[1]}; download it again"
        )
    return flat.reshape(size[::-1]).T


def coco_items(argument: str, spec: str, *, learn: bool = False) -> Dataset:
    """``coco:ROOT``: annotations/instances_val2017.json and val2017/*.jpg; one item for each (picture, class).

    The classes are those of the table `COCO`. Regions of crowds do not count.
    """
    root = folder_of(argument, spec)
    splits = ("train2017", "train2014") if learn else ("val2017", "val2014", "train2017", "train2014")
    split = next((split for split in splits if _instances(root, split).is_file()), None)
    if split is None and learn:
        raise InputError(f"{spec} has no {_instances(root, 'train2017')}, and val is there to judge by; unpack it")
    if split is None:
        raise InputError(f"{spec}: there is no {_instances(root, 'val2017')}; unpack COCO's annotations there")
    folder = first_of(root, (split, f"images/{split}", "images"))
    if folder is None:
        raise InputError(f"{spec}: there is no folder {root / split}; unpack COCO's pictures there")
    file = _instances(root, split)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        names = {category["id"]: category["name"] for category in content["categories"]}
        images = {image["id"]: image for image in content["images"]}
        things: dict[int, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        for thing in content["annotations"]:
            if names[thing["category_id"]] in COCO:
                things[thing["image_id"]][names[thing["category_id"]]].append(thing)
        items = [
            _coco_item(folder, images[image], name, things[image])
            for image in sorted(things, key=lambda image: str(images[image]["file_name"]))
            for name in sorted(things[image])
            if not all(thing.get("iscrowd") for thing in things[image][name])
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{spec}: {file} cannot be read ({error!r}); download it again") from error
    if not items:
        raise InputError(f"{spec}: {file} shows no object of a class that ImageNet has; give another folder")
    absent = next((item for item in items if item.source.stamp() == "missing"), None)
    if absent is not None:
        raise InputError(f"{spec}: there is no picture {absent.source.open()}; unpack all of {split}")
    return Dataset(spec, tuple(items), imagenet_names())


def _instances(root: Path, split: str) -> Path:
    return root / "annotations" / f"instances_{split}.json"


def _coco_item(folder: Path, image: dict[str, Any], name: str, things: dict[str, list[dict[str, Any]]]) -> Item:
    outlines: list[tuple[float, ...]] = []
    objects: list[tuple[int, ...] | str] = []
    crowds: list[tuple[int, ...] | str] = []
    boxes: list[Box] = []
    for thing in things[name]:
        shape = thing["segmentation"]
        if isinstance(shape, dict):
            runs = shape["counts"] if isinstance(shape["counts"], str) else tuple(shape["counts"])
            (crowds if thing.get("iscrowd") else objects).append(runs)
        else:
            outlines.extend(tuple(map(float, outline)) for outline in shape if len(outline) >= 6)
        if not thing.get("iscrowd"):
            x, y, width, height = map(float, thing["bbox"])
            boxes.append((x, y, x + width, y + height))
    label, accepted = meaning(COCO[name])
    region = CocoMask((image["height"], image["width"]), tuple(outlines), tuple(objects), tuple(crowds))
    source = PictureFile(folder / image["file_name"])
    present = others(name, things, COCO)
    return Item(f"{image['file_name']} {name}", source, label, tuple(boxes), region, accepted, present)


# ------------------------------------------------------------------------------------------------------------- Pets


def pets_items(argument: str, spec: str) -> Dataset:
    """``pets:ROOT``: images/*.jpg and annotations/trimaps/*.png; breeds that ImageNet does not have are left out.

    In a trimap 1 is the animal, 2 the background, and 3 the border, which does not count.
    """
    root = folder_of(argument, spec)
    images, trimaps = root / "images", root / "annotations" / "trimaps"
    for needed in (images, trimaps):
        if not needed.is_dir():
            raise InputError(f"{spec}: there is no folder {needed}; unpack images.tar.gz and annotations.tar.gz there")
    items = []
    for path in pictures_in(images):
        label, trimap = PETS.get(path.stem.rpartition("_")[0]), trimaps / f"{path.stem}.png"
        if label is not None and trimap.is_file():
            items.append(Item(path.name, PictureFile(path), label, region=IdFile(trimap, (1,), (3,))))
    if not items:
        raise InputError(
            f"{spec}: no picture in {images} has a breed of ImageNet and a trimap; pictures must be called like "
            "beagle_1.jpg"
        )
    return Dataset(spec, tuple(items), imagenet_names())


# -------------------------------------------------------------------------------------------------------------- VOC


def voc_items(argument: str, spec: str, *, learn: bool = False) -> Dataset:
    """``voc:ROOT``: JPEGImages, SegmentationClass and Annotations; one item for each (picture, class).

    The classes are those of the table `VOC`. The pictures are those of ImageSets/Segmentation/val.txt where that is
    there, else all that have a mask. Which classes a picture shows is read from its XML file. To learn from, those of
    train.txt are taken.
    """
    given = folder_of(argument, spec)
    places = ("", "VOC2012", "VOCdevkit/VOC2012", "VOC2007", "VOCdevkit/VOC2007")
    root = first_of(given, places, lambda path: (path / "SegmentationClass").is_dir())
    if root is None or not (root / "Annotations").is_dir() or not (root / "JPEGImages").is_dir():
        raise InputError(f"{spec}: {root or given} must hold the folders JPEGImages, SegmentationClass and Annotations")
    listed = root / "ImageSets" / "Segmentation" / ("train.txt" if learn else "val.txt")
    if learn and not listed.is_file():
        raise InputError(f"{spec} has no {listed.relative_to(root)}, and the others are there to judge by; add it")
    stems = (
        listed.read_text(encoding="utf-8").split()
        if listed.is_file()
        else [path.stem for path in pictures_in(root / "SegmentationClass")]
    )
    items = []
    for stem in stems:
        path, mask = root / "JPEGImages" / f"{stem}.jpg", root / "SegmentationClass" / f"{stem}.png"
        for needed in (path, mask):
            if not needed.is_file():
                raise InputError(f"{spec}: there is no file {needed}; unpack all of VOC")
        things = list(annotated(root / "Annotations" / f"{stem}.xml"))
        for name in VOC:
            boxes = tuple(box for called, box in things if called == name)
            if boxes:
                label, accepted = meaning(VOC[name])
                region = IdFile(mask, (VOC_NAMES.index(name) + 1,), (255,))
                present = others(name, (called for called, _ in things), VOC)
                items.append(Item(f"{path.name} {name}", PictureFile(path), label, boxes, region, accepted, present))
    if not items:
        raise InputError(f"{spec}: no picture in {root} shows a class that ImageNet has; give another folder")
    return Dataset(spec, tuple(items), imagenet_names())
