"""Pictures and masks in files, and the small texts that lie beside them."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageDraw

from vitrail.data.items import Box, Mask
from vitrail.errors import InputError
from vitrail.model import pictures

FINE = 4
"""Polygons are drawn so many times larger: PIL paints every pixel that an outline touches, which makes objects fat."""


def size_of(path: Path) -> str:
    """What a fingerprint says of a file."""
    try:
        return str(path.stat().st_size)
    except OSError:
        return "missing"


@dataclass(frozen=True)
class PictureFile:
    """A picture in a file of its own."""

    path: Path

    def open(self) -> Path:
        """The path: opening it is left to `vitrail.model.pictures`, which knows what can go wrong."""
        return self.path

    def stamp(self) -> str:
        """The file's size."""
        return size_of(self.path)


@dataclass(frozen=True)
class MaskFile:
    """A mask as users have them: 1 the object, 0 the rest, 255 does not count; or a black and white picture."""

    path: Path

    def read(self) -> Mask:
        """(H, W) int8."""
        values = _pixels(self.path)
        known = set(np.unique(values).tolist())
        if values.ndim != 2 or not known <= {0, 1, 255}:
            raise InputError(
                f"the mask {self.path} must have one channel of 1 (the object), 0 (the rest) and 255 (does not "
                f"count), but it is {values.shape} and holds {', '.join(map(str, sorted(known)[:6]))}"
            )
        return _split(values, (255,), ()) if known <= {0, 255} else _split(values, (1,), (255,))

    def stamp(self) -> str:
        """The file's size."""
        return size_of(self.path)


@dataclass(frozen=True)
class IdFile:
    """A picture whose pixels are class numbers.

    Attributes:
        path: The file.
        objects: The numbers that are the object.
        ignored: The numbers that do not count.
        colour: The number is R + 256 G, as in ImageNet-S, instead of a grey value or an index into a palette.
    """

    path: Path
    objects: tuple[int, ...]
    ignored: tuple[int, ...] = ()
    colour: bool = False

    def read(self) -> Mask:
        """(H, W) int8."""
        values = _pixels(self.path)
        if values.ndim != (3 if self.colour else 2):
            kind = "a colour picture" if self.colour else "a picture of one channel"
            raise InputError(
                f"the mask {self.path} must be {kind}, but its pixels are {values.shape}; download it again"
            )
        if self.colour:
            values = values[..., 0].astype(np.int64) + 256 * values[..., 1].astype(np.int64)
        return _split(values, self.objects, self.ignored)

    def stamp(self) -> str:
        """The file's size, and which numbers are meant."""
        return f"{size_of(self.path)} {self.objects} {self.ignored}"


@dataclass(frozen=True)
class Polygons:
    """Outlines of objects, as fractions of the picture.

    Attributes:
        picture: The picture's file, which knows its size.
        outlines: x y pairs, one after the other, of each polygon.
    """

    picture: Path
    outlines: tuple[tuple[float, ...], ...]

    def read(self) -> Mask:
        """(H, W) int8."""
        width, height = pictures.read(self.picture).size
        scale = np.array([width, height])
        return filled((np.array(outline).reshape(-1, 2) * scale for outline in self.outlines), (height, width))

    def stamp(self) -> str:
        """The outlines themselves."""
        return repr(self.outlines)


def filled(polygons: Iterable[np.ndarray], size: tuple[int, int]) -> Mask:
    """(H, W) int8: 1 where polygons cover half of a pixel; each is (points, 2) in pixels from the upper left corner."""
    height, width = size
    canvas = Image.new("L", (width * FINE, height * FINE))
    pen = ImageDraw.Draw(canvas)
    for points in polygons:
        # PIL counts from the centre of the first pixel.
        pen.polygon([(float(x), float(y)) for x, y in points * FINE - 0.5], fill=255)
    shares = np.array(canvas.reduce(FINE))
    return np.asarray(shares >= 128, np.int8)


def _pixels(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as file:
            return np.array(file)
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"the mask {path} cannot be read ({error}); download or copy it again") from error


def _split(values: np.ndarray, objects: tuple[int, ...], ignored: tuple[int, ...]) -> Mask:
    mask = np.isin(values, objects).astype(np.int8)
    mask[np.isin(values, ignored)] = -1
    return mask


def boxes_of(text: str, where: str) -> tuple[Box, ...] | None:
    """Boxes from ``x0 y0 x1 y1;x0 y0 x1 y1``; None from an empty text."""
    found: list[Box] = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        try:
            x0, y0, x1, y1 = (float(number) for number in re.split(r"[\s,]+", part))
        except ValueError:
            raise InputError(
                f"{where}: a box must be four numbers, x0 y0 x1 y1, and several must be separated by ';', but {part!r} "
                "was given"
            ) from None
        if x0 > x1 or y0 > y1:
            raise InputError(
                f"{where}: the box {part!r} is turned round; write x0 y0 x1 y1, the upper left corner first"
            )
        found.append((x0, y0, x1, y1))
    return tuple(found) or None


def annotated(path: Path) -> Iterator[tuple[str, Box]]:
    """Name and box of each object in an annotation file of PASCAL VOC's kind, which ImageNet uses too."""
    try:
        tree = ElementTree.parse(path)
        for thing in tree.iter("object"):
            corners = [float(thing.findtext(f"bndbox/{side}") or "nan") for side in ("xmin", "ymin", "xmax", "ymax")]
            yield thing.findtext("name") or "", (corners[0], corners[1], corners[2], corners[3])
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise InputError(f"the annotation {path} cannot be read ({error}); download it again") from error


def folder_of(path: str, spec: str) -> Path:
    """A folder that a spec string names."""
    found = Path(path).expanduser().absolute()
    if not path or not found.is_dir():
        given = f"there is no folder {path}" if path else "no folder was given"
        raise InputError(f"{spec}: {given}; write the folder behind the colon, as in {spec.split(':')[0]}:/data/here")
    return found


def file_of(path: str, spec: str) -> Path:
    """A file that a spec string names."""
    found = Path(path).expanduser().absolute()
    if not path or not found.is_file():
        given = f"there is no file {path}" if path else "no file was given"
        raise InputError(f"{spec}: {given}; write the file behind the colon, as in {spec.split(':')[0]}:/data/here")
    return found


def first_of(root: Path, places: Iterable[str], fits: Callable[[Path], bool] = Path.is_dir) -> Path | None:
    """The first of some places under a folder that is there."""
    return next((root / place for place in places if fits(root / place)), None)


def pictures_in(folder: Path) -> list[Path]:
    """The picture files in a folder, sorted by name; none, where there are none."""
    found = (path for path in folder.iterdir() if path.suffix.lower() in pictures.EXTENSIONS)
    return sorted(path for path in found if not path.name.startswith("."))
