"""From a spec string to a dataset."""

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from vitrail.data.annotated import coco_items, pets_items, voc_items
from vitrail.data.assets import asset_items
from vitrail.data.drawn import scene_items
from vitrail.data.imagenet import imagenet_items, imagenet_s_items
from vitrail.data.items import Dataset
from vitrail.data.mosaics import quad_items
from vitrail.data.optional import hub_items, segmentation_items
from vitrail.data.plain import csv_items, folder_items
from vitrail.errors import InputError


def _quads(argument: str, spec: str, *, learn: bool = False) -> Dataset:
    """``quads:SPEC`` and ``part-quads:SPEC``, where SPEC is any other spec."""
    if not argument:
        raise InputError(f"{spec}: write another dataset behind the colon, as in {spec.split(':')[0]}:scenes:100")
    return quad_items(dataset(argument, learn=learn), spec, parts=spec.strip().startswith("part-"))


KINDS: dict[str, Callable[[str, str], Dataset]] = {
    "imagenet": imagenet_items,
    "imagenet-s": imagenet_s_items,
    "imagenet-segmentation": segmentation_items,
    "coco": coco_items,
    "pets": pets_items,
    "voc": voc_items,
    "folder": folder_items,
    "csv": csv_items,
    "hf": hub_items,
    "scenes": scene_items,
    "assets": asset_items,
    "quads": _quads,
    "part-quads": _quads,
}
"""How each kind of dataset is read: (what stands behind the colon, the whole spec) -> dataset."""

TO_LEARN: dict[str, Callable[[str, str], Dataset]] = {
    "imagenet": partial(imagenet_items, learn=True),
    "imagenet-s": partial(imagenet_s_items, learn=True),
    "coco": partial(coco_items, learn=True),
    "hf": partial(hub_items, learn=True),
    "assets": partial(asset_items, learn=True),
    "voc": partial(voc_items, learn=True),
    "quads": partial(_quads, learn=True),
    "part-quads": partial(_quads, learn=True),
}
"""The same for those that have a part to learn from beside the one to judge by."""

TO_JUDGE = {"imagenet-segmentation"}
"""Those that have none."""


def dataset(spec: str, *, learn: bool = False) -> Dataset:
    """Read a spec string such as ``imagenet:/data/imagenet``, ``csv:photos.csv`` or ``scenes:500``.

    Folders are listed and tables read; no picture is opened.

    Args:
        spec: A kind of dataset, a colon, and where it is. See docs/data.md for the kinds.
        learn: Take the part that is there to learn from, and refuse one that explanations are judged by.

    Example:
        >>> data = dataset("scenes:28")
        >>> len(data), data.classes[data[0].label], data[0].mask().shape
        (28, 'shark', (144, 144))
    """
    kind, _, argument = spec.strip().partition(":")
    if learn and kind in TO_JUDGE:
        raise InputError(f"{spec} is there to judge explanations by; learn from other pictures such as folder:PHOTOS")
    if learn and kind in TO_LEARN:
        return TO_LEARN[kind](argument.strip(), spec)
    if kind in KINDS:
        return KINDS[kind](argument.strip(), spec)
    path = Path(spec).expanduser()
    if path.is_dir() or path.suffix == ".csv":
        raise InputError(f"the kind of dataset is missing before {spec}; did you mean {_kind_of(path)}:{spec}?")
    near = difflib.get_close_matches(kind.lower(), KINDS, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(KINDS)}"
    raise InputError(f"there is no kind of dataset {kind!r}; {hint}")


def _kind_of(path: Path) -> str:
    return "folder" if path.is_dir() else "csv"
