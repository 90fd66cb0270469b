"""What the colours mean, in words: drawn once under a sheet or a strip of maps."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from PIL import Image, ImageDraw

from vitrail.show import heat
from vitrail.show.lettering import QUIET, font, line_height, wrap, write

BAR = (132, 12)
SPACE = 8
WORDS = {False: ("low", "high evidence"), True: ("against", "for the class")}


def plain_bar(signed: bool) -> Image.Image:
    """Draw the colours of a map drawn alone."""
    return Image.fromarray(heat.colourise(_ramp(signed), signed=signed, limit=1))


def overlay_bar(signed: bool, alpha: float) -> Image.Image:
    """Draw the colours of a map over a picture, as they look on a light grey one."""
    return heat.overlay(Image.new("RGB", BAR, (236, 236, 236)), _ramp(signed), alpha=alpha, signed=signed, limit=1)


def _ramp(signed: bool) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.broadcast_to(np.linspace(-1.0 if signed else 0.0, 1.0, BAR[0]), (BAR[1], BAR[0]))


def kinds(scales: Sequence[heat.Scale]) -> set[bool]:
    """The kinds of map that have colours (True: signed)."""
    return {scale.signed for scale in scales if not scale.empty}


def reading(scales: Sequence[heat.Scale], first: str = "") -> str:
    """How the colours of some maps are read."""
    said = [first or "Each map is scaled by itself: compare places within a map, not colours between maps."]
    if any(scale.cut for scale in scales):
        said.append("In maps with a value for every pixel, the strongest pixels share one colour.")
    if any(scale.empty for scale in scales):
        said.append(f"Grey, {heat.NOTHING}: the map has the same value everywhere.")
    return " ".join(said)


def legend(occur: Collection[bool], room: int, bar: Callable[[bool], Image.Image], sentence: str) -> Image.Image:
    """Draw colour bars with their words, then a sentence, in as many lines as the room needs.

    Args:
        occur: the kinds of map that have colours (True: signed); none where all maps are empty.
        room: the width, in pixels, of the picture returned.
        bar: draws the colours of a kind.
        sentence: how to read the colours.
    """
    face = font(12)
    height = line_height(face) + 4
    canvas = Image.new("RGB", (room, height * (len(WORDS) + len(wrap(sentence, face, room)) + 1)), "white")
    draw = ImageDraw.Draw(canvas)
    left, top = 0.0, 0
    for signed in sorted(set(occur)):
        before, after = WORDS[signed]
        width = face.getlength(before) + SPACE + BAR[0] + SPACE + face.getlength(after)
        if left > 0 and left + width > room:
            left, top = 0.0, top + height
        write(draw, (left, top), [before], face, colour=QUIET)
        start = round(left + face.getlength(before) + SPACE)
        canvas.paste(bar(signed), (start, top + 2))
        # Without a frame the pale end of a bar is lost on the white page.
        draw.rectangle((start, top + 2, start + BAR[0] - 1, top + 1 + BAR[1]), outline=(200, 200, 200))
        write(draw, (start + BAR[0] + SPACE, top), [after], face, colour=QUIET)
        left += width + 4 * SPACE
    if left + face.getlength(sentence) > room:
        left, top = 0.0, top + height
    lines = wrap(sentence, face, room - left)
    write(draw, (left, top), lines, face, colour=QUIET)
    return canvas.crop((0, 0, room, top + max(1, len(lines)) * line_height(face) + 4))
