"""Where a protocol's pictures are: what the papers used, how to get it, and what stands in for it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitrail.bench.protocol import Part, Protocol
from vitrail.data import ASSETS
from vitrail.errors import InputError, option


@dataclass(frozen=True)
class Wanted:
    """Pictures that a protocol names by their kind alone, such as ``imagenet``: only the user knows where they are.

    Attributes:
        what: What they are.
        how: How to get them.
        asset: The small set of them below ``VITRAIL_ASSETS``.
    """

    what: str
    how: str
    asset: str


WANTED = {
    "imagenet": Wanted(
        "ImageNet's validation pictures",
        "get ILSVRC2012_img_val.tar and the development kit from image-net.org, or the set from Kaggle",
        "imagenet_val",
    ),
    "pets": Wanted(
        "the Oxford-IIIT Pet pictures",
        "get images.tar.gz and annotations.tar.gz from robots.ox.ac.uk/~vgg/data/pets",
        "pets",
    ),
    "coco": Wanted(
        "COCO's validation pictures",
        "get val2017.zip and annotations_trainval2017.zip from cocodataset.org",
        "coco128",
    ),
}
"""Docs/data.md says the same at length."""

MOSAICS = ("quads", "part-quads")

SCENES = "scenes:500,seed=3"
"""What the embedded models are shown instead: scenes that no network of vitrail's has learned from."""

FITTED = (
    "The embedded model is shown drawn scenes. Two filters are left out: pictures that the model still recognises when "
    "they are blurred take part, because it recognises every scene then; and each class may have any number of "
    "pictures, because there are only 14 classes."
)
"""What the note of a protocol says besides."""


def placed(protocol: Protocol, given: Sequence[str] = ()) -> Protocol:
    """A protocol with its parts' pictures found: those given, or else, for parts that do not say where, what is there.

    A set of the same kind as a part asks for goes there, inside the mosaics where the part has mosaics. A set of no
    kind that is asked for goes into all other parts. Nothing given, the embedded models are shown scenes, and a machine
    with ``VITRAIL_ASSETS`` has its small sets.

    Args:
        protocol: What is to be run.
        given: Specs of data, such as ``imagenet:/data/imagenet``, one of each kind.

    Example:
        >>> from vitrail.bench import read_protocol
        >>> table = placed(read_protocol("var/table1"), ["imagenet:/data/imagenet"])
        >>> [part.data for part in table.parts][:2]
        ['quads:imagenet:/data/imagenet', 'part-quads:imagenet:/data/imagenet']
    """
    asked = {_kind(part.data) for part in protocol.parts}
    known: dict[str, str] = {}
    for spec in given:
        if _open(spec) is not None:
            raise InputError(
                f"{option('data', spec)} does not say where the pictures are; write the folder: {spec.strip()}:FOLDER"
            )
        kind = _kind(spec) if _kind(spec) in asked else ""
        if kind in known:
            raise InputError(
                f"{known[kind]} and {spec} are both for {protocol.name}'s {kind or 'pictures'}; "
                f"give {option('data')} one of them"
            )
        known[kind] = spec
    found = tuple(_placed(part, known) for part in protocol.parts)
    idle = next((spec for spec in given if not any(_inner(spec) in part.data for part in found)), None)
    if idle is not None:
        raise InputError(f"no part of {protocol.name} takes {idle}; it asks for {' and '.join(sorted(asked))}")
    fitted = any(one.filter != part.filter for one, part in zip(found, protocol.parts))
    note = f"{protocol.note} {FITTED}".strip() if fitted else protocol.note
    return replace(protocol, parts=found, note=note)


def require(protocol: Protocol) -> None:
    """Say how to get the pictures of a part that does not say where they are."""
    lacking = {_inner(part.data): wanted for part in protocol.parts if (wanted := _open(part.data)) is not None}
    if not lacking:
        return
    idle = [part.name for part in protocol.parts if _open(part.data) is not None]
    where = protocol.name
    if len(idle) < len(protocol.parts):
        where = f"part{'s' if len(idle) > 1 else ''} {' and '.join(idle)} of {protocol.name}"
    needs = "; and ".join(f"{wanted.what}: {wanted.how}" for wanted in lacking.values())
    folders = tuple(f"{kind}:FOLDER" for kind in lacking)
    raise InputError(
        f"{where} need{'s' if len(idle) == 1 or where == protocol.name else ''} {needs}; then add "
        f"{option('data', folders if len(folders) > 1 else folders[0])} (docs/data.md says more); to try it on drawn "
        f"scenes, without a download, use {option('model', 'demo')}"
    )


def _placed(part: Part, known: dict[str, str]) -> Part:
    kind, opened = _kind(part.data), _open(part.data)
    embedded = part.model.partition("/")[0] == "demo"
    spec = known.get(kind) or known.get("")
    if spec is None and opened is not None:
        if embedded:
            spec = f"{SCENES},objects=2" if kind == "coco" else SCENES
        elif os.environ.get(ASSETS):
            spec = f"assets:{opened.asset}"
    if spec is None:
        return part
    mosaic = part.data.partition(":")[0]
    whole = f"{mosaic}:{spec}" if mosaic in MOSAICS and spec.partition(":")[0] not in MOSAICS else spec
    chosen = replace(part.filter, blurs=False, per_class=None) if embedded and opened else part.filter
    return replace(part, data=whole, filter=chosen)


def _inner(spec: str) -> str:
    """A spec without the mosaics around it."""
    kind, _, rest = spec.strip().partition(":")
    return rest.strip() if kind in MOSAICS else spec.strip()


def _kind(spec: str) -> str:
    """What kind of pictures a spec is about; a set of the assets is of the kind that it is part of."""
    kind, _, rest = _inner(spec).partition(":")
    if kind == "assets":
        return next((kind for kind, wanted in WANTED.items() if wanted.asset == rest), kind)
    return kind


def _open(spec: str) -> Wanted | None:
    """What a spec asks for that does not say where it is."""
    return WANTED.get(_inner(spec))
