"""Text on pictures: fonts, and fitting any string into a given width without clipping or overlap."""

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from PIL import ImageDraw, ImageFont

INK = (34, 34, 34)
QUIET = (120, 120, 120)

# Good places to break a method's spec string or a file name: after these characters.
_PIECES = re.compile(r"[^ ,(/_-]*[ ,(/_-]|[^ ,(/_-]+")


@lru_cache(maxsize=32)
def font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Load DejaVu Sans, which matplotlib carries, so that sheets look the same on every machine."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def clean(text: str) -> str:
    """Make any string drawable on one line: white space becomes spaces, what cannot be drawn a replacement mark."""
    single = " ".join(text.split())
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in single)


def shorten(text: str, face: ImageFont.FreeTypeFont, room: float, *, middle: bool = False) -> str:
    """Cut the end off a text that is too long, or its middle: the end of a file name tells it from its neighbours."""
    text = clean(text)
    if face.getlength(text) <= room:
        return text
    for kept in range(min(len(text), int(room)) - 1, 0, -1):
        tail = kept // 2 if middle else 0
        shorter = text[: kept - tail] + "…" + text[len(text) - tail :]
        if face.getlength(shorter) <= room:
            return shorter
    return "…"


def wrap(text: str, face: ImageFont.FreeTypeFont, room: float) -> list[str]:
    """Break a text into lines no wider than the room, at spaces, commas and parentheses where possible."""
    lines = [""]
    for piece in _PIECES.findall(clean(text)):
        if face.getlength((lines[-1] + piece).rstrip()) <= room:
            lines[-1] += piece
            continue
        lines.append("")
        for character in piece:
            if face.getlength(lines[-1] + character) > room:
                lines.append("")
            lines[-1] += character
    return [line.strip() for line in lines if line.strip()]


def fit(
    text: str, room: float, sizes: Iterable[int], *, lines: int, bold: bool = False
) -> tuple[ImageFont.FreeTypeFont, list[str]]:
    """Wrap a text in the largest of the sizes that needs no more than so many lines, or else in the smallest."""
    for size in sizes:
        face = font(size, bold=bold)
        wrapped = wrap(text, face, room)
        if len(wrapped) <= lines:
            break
    return face, wrapped


def line_height(face: ImageFont.FreeTypeFont) -> int:
    """Return the distance between two lines of text."""
    return round(face.size * 1.35)


def write(
    draw: ImageDraw.ImageDraw,
    position: tuple[float, float],
    lines: Iterable[str],
    face: ImageFont.FreeTypeFont,
    *,
    colour: tuple[int, int, int] = INK,
    anchor: str = "la",
) -> None:
    """Draw lines of text below one another; the anchor is PIL's (la: from the left, ma: centred, ra: to the right)."""
    left, top = position
    for line in lines:
        draw.text((left, top), line, font=face, fill=colour, anchor=anchor)
        top += line_height(face)
