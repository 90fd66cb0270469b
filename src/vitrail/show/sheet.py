"""Many explanations on one page: comparison sheets (pictures by methods) and strips of maps alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from vitrail.errors import InputError
from vitrail.show import heat
from vitrail.show.legend import legend, overlay_bar, plain_bar
from vitrail.show.lettering import INK, QUIET, fit, font, line_height, shorten, wrap, write

MARGIN = 32
CELL = 240
TALLEST = 340
GAP = 10
GUTTER = 212
ALPHA = 0.65
SHOWN_PREDICTIONS = 3

STRIP_CELL = 150
STRIP_COLUMNS = 8
STRIP_SHOWN = 16


@dataclass(frozen=True)
class Cell:
    """One method's map of one picture.

    Attributes:
        heat: (h, w) finite values, at any resolution.
        note: a few words below it, such as the time taken.
    """

    heat: npt.NDArray[Any]
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One picture and its explanations.

    Attributes:
        picture: what the model saw.
        title: its name.
        predictions: (class, probability) pairs, best first.
        explained: the class that the maps explain.
        cells: one for each column of the sheet.
    """

    picture: Image.Image
    title: str
    predictions: tuple[tuple[str, float], ...]
    explained: str
    cells: tuple[Cell, ...]


def sheet(rows: Sequence[Row], columns: Sequence[str], *, title: str = "", footer: str = "") -> Image.Image:
    """Compare methods: one row a picture, one column a method, each map laid over its picture.

    Each map is scaled by itself; whether a column is drawn as signed is decided for the whole column, so that one
    colour means one thing in it.

    Args:
        rows: the pictures with their maps.
        columns: the methods' names.
        title: a line above the sheet.
        footer: a line in small grey letters below it.

    Raises:
        InputError: there is nothing to draw, a row does not have one cell a column, or a map cannot be drawn.

    Example:
        >>> row = Row(Image.new("RGB", (32, 32)), "a.png", (("cat", 0.9),), "cat", (Cell(np.eye(2)),))
        >>> sheet([row], ["tis"]).mode
        'RGB'
    """
    if not rows or not columns:
        raise InputError(f"A sheet needs at least one row and one column; given {len(rows)} and {len(columns)}.")
    for row in rows:
        if len(row.cells) != len(columns):
            raise InputError(
                f"Every row of a sheet needs one cell a column: {row.title!r} has {len(row.cells)} cells for "
                f"{len(columns)} columns."
            )
    signed = [any(heat.scale(row.cells[index].heat).signed for row in rows) for index in range(len(columns))]
    width = GUTTER + 2 * GAP + CELL + len(columns) * (GAP + CELL)
    sentence = "Each map is scaled by itself: compare places within a map, not colours between maps."
    if any(row.explained for row in rows):
        sentence += " Bold: the class explained."
    blocks = [(_paragraph(title, width, 20, INK), 18)] if title else []
    blocks.append((_header(columns, width), 8))
    blocks += [(_drawn_row(row, signed, width), 16) for row in rows]
    blocks.append((legend(signed, width, partial(overlay_bar, alpha=ALPHA), sentence), 6))
    if footer:
        blocks.append((_paragraph(footer, width, 11, QUIET), 0))
    return _stacked(blocks, width)


def strip(heats: npt.NDArray[Any], labels: Sequence[str], title: str = "") -> Image.Image:
    """Draw maps alone, side by side, for a notebook: at most 16, then says how many more there are.

    Args:
        heats: (batch, h, w) finite values.
        labels: one for each map.
        title: a line above the maps.

    Raises:
        InputError: there is no map, the labels do not match, or a map cannot be drawn.

    Example:
        >>> strip(np.zeros((2, 7, 7)), ["cat", "dog"]).mode
        'RGB'
    """
    if np.ndim(heats) != 3 or len(heats) == 0 or len(labels) != len(heats):
        raise InputError(
            f"A strip needs maps of shape (batch, height, width) and a label for each; given shape "
            f"{np.shape(heats)} and {len(labels)} labels."
        )
    shown = np.asarray(heats)[:STRIP_SHOWN]
    signed = any(heat.scale(one).signed for one in shown)
    height = _fitted(shown.shape[2], shown.shape[1], STRIP_CELL, 2 * STRIP_CELL)[1]
    across = min(len(shown), STRIP_COLUMNS)
    # Wide enough for the legend to be read, also under a single map.
    width = max(across * (STRIP_CELL + GAP) - GAP, 2 * STRIP_CELL + GAP)
    face = font(12)
    blocks = [(_paragraph(title, width, 14, INK), 10)] if title else []
    for start in range(0, len(shown), across):
        line = Image.new("RGB", (width, height + 4 + line_height(face)), "white")
        draw = ImageDraw.Draw(line)
        for index in range(start, min(start + across, len(shown))):
            left = (index - start) * (STRIP_CELL + GAP)
            _paste_map(line, shown[index], (left, 0, STRIP_CELL, height), signed)
            label = shorten(labels[index], face, STRIP_CELL)
            write(draw, (left + STRIP_CELL / 2, height + 4), [label], face, anchor="ma")
        blocks.append((line, 10))
    sentence = "Each map is scaled by itself."
    if len(heats) > len(shown):
        sentence = f"… and {len(heats) - len(shown)} more. {sentence}"
    blocks.append((legend([signed], width, plain_bar, sentence), 0))
    return _stacked(blocks, width, margin=GAP)


def _stacked(blocks: Sequence[tuple[Image.Image, int]], width: int, margin: int = MARGIN) -> Image.Image:
    height = sum(block.height + gap for block, gap in blocks)
    page = Image.new("RGB", (width + 2 * margin, height + 2 * margin), "white")
    top = margin
    for block, gap in blocks:
        page.paste(block, (margin, top))
        top += block.height + gap
    return page


def _paragraph(text: str, width: int, size: int, colour: tuple[int, int, int]) -> Image.Image:
    face = font(size)
    lines = wrap(text, face, width)
    block = Image.new("RGB", (width, max(1, len(lines)) * line_height(face)), "white")
    write(ImageDraw.Draw(block), (0, 0), lines, face, colour=colour)
    return block


def _column_left(index: int) -> int:
    """Return where a method's column starts; the picture itself stands in column -1."""
    return GUTTER + 2 * GAP + (index + 1) * (CELL + GAP)


def _header(columns: Sequence[str], width: int) -> Image.Image:
    fitted = [fit(name, CELL - 2 * GAP, (15, 14, 13, 12), lines=2, bold=True) for name in columns]
    height = max(len(lines) * line_height(face) for face, lines in fitted) + 2
    block = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(block)
    for index, (face, lines) in enumerate(fitted):
        top = height - len(lines) * line_height(face)
        write(draw, (_column_left(index) + CELL / 2, top), lines, face, anchor="ma")
    return block


def _fitted(width: int, height: int, widest: int, tallest: int) -> tuple[int, int]:
    factor = min(widest / width, tallest / height)
    return max(1, round(width * factor)), max(1, round(height * factor))


def _drawn_row(row: Row, signed: Sequence[bool], width: int) -> Image.Image:
    size = _fitted(row.picture.width, row.picture.height, CELL, TALLEST)
    picture = row.picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    words = _description(row)
    face = font(12)
    noted = line_height(face) + 4 if any(cell.note for cell in row.cells) else 0
    block = Image.new("RGB", (width, max(words.height, picture.height + noted)), "white")
    draw = ImageDraw.Draw(block)
    block.paste(words, (0, 0))
    inset = (CELL - picture.width) // 2
    block.paste(picture, (_column_left(-1) + inset, 0))
    for index, cell in enumerate(row.cells):
        left = _column_left(index)
        block.paste(heat.overlay(picture, cell.heat, alpha=ALPHA, signed=signed[index]), (left + inset, 0))
        note = shorten(cell.note, face, CELL)
        write(draw, (left + CELL / 2, picture.height + 5), [note], face, colour=QUIET, anchor="ma")
    return block


def _description(row: Row) -> Image.Image:
    """Draw a picture's name and the model's first predictions, with bars; the explained class in bold and black."""
    regular, bold, name_face = font(12), font(12, bold=True), font(13)
    shown = list(row.predictions[:SHOWN_PREDICTIONS])
    shown += [pair for pair in row.predictions[SHOWN_PREDICTIONS:] if pair[0] == row.explained]
    step = line_height(regular) + 12
    block = Image.new("RGB", (GUTTER, line_height(name_face) + 10 + step * (len(shown) + 1)), "white")
    draw = ImageDraw.Draw(block)
    write(draw, (0, 0), [shorten(row.title, name_face, GUTTER, middle=True)], name_face)
    top = line_height(name_face) + 10
    for name, probability in shown:
        explained = name == row.explained
        face, colour = (bold, INK) if explained else (regular, QUIET)
        share = float(np.clip(np.nan_to_num(probability), 0, 1))
        percent = f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if np.isfinite(probability) else "?"
        label = shorten(name, face, GUTTER - face.getlength(percent) - GAP)
        write(draw, (0, top), [label], face, colour=colour)
        write(draw, (GUTTER, top), [percent], face, colour=colour, anchor="ra")
        bar = top + line_height(face) + 1
        draw.rectangle((0, bar, GUTTER - 1, bar + 3), fill=(238, 238, 238))
        if share * GUTTER >= 1:
            draw.rectangle((0, bar, round(share * GUTTER) - 1, bar + 3), fill=INK if explained else (176, 176, 176))
        top += step
    if row.explained and all(name != row.explained for name, _ in shown):
        write(draw, (0, top), [shorten(row.explained, bold, GUTTER)], bold)
        top += step
    return block.crop((0, 0, GUTTER, top))


def _paste_map(block: Image.Image, values: npt.NDArray[Any], box: tuple[int, int, int, int], signed: bool) -> None:
    left, top, width, height = box
    chosen = heat.scale(values, signed=signed)
    colours = heat.colourise(chosen(heat.upsample(values, (height, width))), signed=signed, limit=1)
    block.paste(Image.fromarray(colours), (left, top))
    ImageDraw.Draw(block).rectangle((left, top, left + width - 1, top + height - 1), outline=(200, 200, 200))
