"""From a spec string to a dataset."""

from collections.abc import Callable
from dataclasses import dataclass
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
from vitrail.registry import Registry


@dataclass(frozen=True)
class Kind:
    """A kind of dataset.

    Attributes:
        read: What stands behind the colon, and the whole spec -> the pictures.
        learn: The same for the part to learn from, where it has one beside that to judge by.
        to_judge: Whether explanations are judged by it, so that nothing may learn from it.
    """

    read: Callable[[str, str], Dataset]
    learn: Callable[[str, str], Dataset] | None = None
    to_judge: bool = False


def _quads(argument: str, spec: str, *, learn: bool = False) -> Dataset:
    """``quads:SPEC`` and ``part-quads:SPEC``, where SPEC is any other spec."""
    if not argument:
        raise InputError(f"{spec}: write another dataset behind the colon, as in {spec.split(':')[0]}:scenes:100")
    return quad_items(dataset(argument, learn=learn), spec, parts=spec.strip().startswith("part-"))


def _split(read: Callable[..., Dataset]) -> Kind:
    """A kind with a part to learn from."""
    return Kind(read, partial(read, learn=True))


KINDS: Registry[Kind] = Registry(
    "kind of dataset",
    "vitrail.datasets",
    adopt=lambda name, read: KINDS.enter(name, Kind(read)),
    tell=lambda name, kind: {"id": name, "learns": not kind.to_judge, "own_part_to_learn": kind.learn is not None},
)
"""How each kind of dataset is read. A plug-in gives a function: (what stands behind the colon, the spec) -> dataset."""

KINDS.enter("imagenet", _split(imagenet_items))
KINDS.enter("imagenet-s", _split(imagenet_s_items))
KINDS.enter("imagenet-segmentation", Kind(segmentation_items, to_judge=True))
KINDS.enter("coco", _split(coco_items))
KINDS.enter("pets", Kind(pets_items))
KINDS.enter("voc", _split(voc_items))
KINDS.enter("folder", Kind(folder_items))
KINDS.enter("csv", Kind(csv_items))
KINDS.enter("hf", _split(hub_items))
KINDS.enter("scenes", Kind(scene_items))
KINDS.enter("assets", _split(asset_items))
KINDS.enter("quads", _split(_quads))
KINDS.enter("part-quads", _split(_quads))


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
    if kind in KINDS:
        found = KINDS[kind]
        if learn and found.to_judge:
            raise InputError(
                f"{spec} is there to judge explanations by; learn from other pictures such as folder:PHOTOS"
            )
        return (found.learn if learn and found.learn else found.read)(argument.strip(), spec)
    path = Path(spec).expanduser()
    if path.is_dir() or path.suffix == ".csv":
        raise InputError(f"the kind of dataset is missing before {spec}; did you mean {_kind_of(path)}:{spec}?")
    near = KINDS.near(kind.lower())
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(KINDS)}"
    raise InputError(f"there is no kind of dataset {kind!r}; {hint}")


def _kind_of(path: Path) -> str:
    return "folder" if path.is_dir() else "csv"
