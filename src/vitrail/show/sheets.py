"""Many explanations on one page: comparison sheets (pictures by methods) and strips of maps alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from vitrail.errors import InputError
from vitrail.show import heat
from vitrail.show.legend import kinds, legend, overlay_bar, plain_bar, reading
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
    """One map of one picture.

    Attributes:
        heat: (h, w) finite values, at any resolution.
        note: a few words below it, such as the time taken.
        explained: the class that it explains.
        probability: the model's, for that class; None where there is none to tell.
    """

    heat: npt.NDArray[Any]
    note: str = ""
    explained: str = ""
    probability: float | None = None


@dataclass(frozen=True)
class Row:
    """One picture and its explanations.

    Attributes:
        picture: what the model saw.
        title: its name.
        predictions: (class, probability) pairs, best first; none where the cells' models differ.
        cells: one for each column of the sheet.
    """

    picture: Image.Image
    title: str
    predictions: tuple[tuple[str, float], ...]
    cells: tuple[Cell, ...]

    @property
    def explained(self) -> dict[str, float | None]:
        """The classes that the cells explain, with their probabilities."""
        return {cell.explained: cell.probability for cell in reversed(self.cells) if cell.explained}


@dataclass(frozen=True)
class Column:
    """The maps of one method.

    Attributes:
        name: what stands above them.
        signed: whether values below zero speak against the class; by default, as the numbers of all its maps look.
        mode: how its maps are enlarged, see :func:`heat.upsample`.
    """

    name: str
    signed: bool | None = None
    mode: heat.Mode | heat.Enlarge = "bilinear"


def sheet(rows: Sequence[Row], columns: Sequence[str | Column], *, title: str = "", footer: str = "") -> Image.Image:
    """Compare methods: one row a picture, one column a method, each map laid over its picture.

    Each map is scaled by itself; whether a column is drawn as signed is decided for the whole column, so that one
    colour means one thing in it. Where the cells of a row explain different classes, each says below it which.

    Args:
        rows: the pictures with their maps.
        columns: the methods, or their names alone.
        title: a line above the sheet.
        footer: lines in small grey letters below it.

    Raises:
        InputError: there is nothing to draw, a row does not have one cell a column, or a map cannot be drawn.

    Example:
        >>> cell = Cell(np.eye(2), explained="cat", probability=0.9)
        >>> sheet([Row(Image.new("RGB", (32, 32)), "a.png", (("cat", 0.9),), (cell,))], ["tis"]).mode
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
    drawn = [column if isinstance(column, Column) else Column(column) for column in columns]
    drawn = [_decided(column, [row.cells[index].heat for row in rows]) for index, column in enumerate(drawn)]
    scales = [heat.scale(cell.heat, signed=column.signed) for row in rows for cell, column in zip(row.cells, drawn)]
    width = GUTTER + 2 * GAP + CELL + len(drawn) * (GAP + CELL)
    captioned = any(len(row.explained) > 1 or (row.explained and not row.predictions) for row in rows)
    bold = any(row.explained and row.predictions for row in rows)
    sentence = reading(scales) + (" Bold: explained." if captioned else " Bold: the class explained.") * bold
    blocks = [(_paragraph(title, width, 20, INK), 18)] if title else []
    blocks.append((_header([column.name for column in drawn], width), 8))
    blocks += [(_drawn_row(row, drawn, width, captioned), 16) for row in rows]
    blocks.append((legend(kinds(scales), width, partial(overlay_bar, alpha=ALPHA), sentence), 6))
    blocks += [(_paragraph(line, width, 11, QUIET), 2) for line in footer.splitlines()]
    return _stacked(blocks, width)


def _decided(column: Column, heats: Sequence[npt.NDArray[Any]]) -> Column:
    return column if column.signed is not None else replace(column, signed=heat.speaks_against(*heats))


def strip(
    heats: npt.NDArray[Any],
    labels: Sequence[str],
    title: str = "",
    *,
    signed: bool | None = None,
    mode: heat.Mode | heat.Enlarge = "bilinear",
    footer: str = "",
) -> Image.Image:
    """Draw maps alone, side by side, for a notebook: at most 16, then says how many more there are.

    Args:
        heats: (batch, h, w) finite values.
        labels: one for each map, of one line or more.
        title: a line above the maps.
        signed: whether values below zero speak against the class; by default, as the numbers of all maps look.
        mode: how the maps are enlarged, see :func:`heat.upsample`.
        footer: lines in small grey letters below.

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
    chosen = heat.speaks_against(*heats) if signed is None else signed
    scales = [heat.scale(one, signed=chosen) for one in shown]
    height = _fitted(shown.shape[2], shown.shape[1], STRIP_CELL, 2 * STRIP_CELL)[1]
    across = min(len(shown), STRIP_COLUMNS)
    # Wide enough for the legend to be read, also under a single map.
    width = max(across * (STRIP_CELL + GAP) - GAP, 2 * STRIP_CELL + GAP)
    face = font(12)
    blocks = [(_paragraph(title, width, 14, INK), 10)] if title else []
    for start in range(0, len(shown), across):
        below = [label.split("\n") for label in labels[start : min(start + across, len(shown))]]
        written = max(map(len, below)) * line_height(face)
        line = Image.new("RGB", (width, height + 4 + written), "white")
        draw = ImageDraw.Draw(line)
        for index, words in enumerate(below):
            left = index * (STRIP_CELL + GAP)
            _paste_map(line, shown[start + index], (left, 0, STRIP_CELL, height), scales[start + index], mode)
            fitted = [shorten(word, face, STRIP_CELL, middle=True) for word in words]
            write(draw, (left + STRIP_CELL / 2, height + 4), fitted, face, anchor="ma")
        blocks.append((line, 10))
    sentence = reading(scales, "Each map is scaled by itself.")
    if len(heats) > len(shown):
        sentence = f"… and {len(heats) - len(shown)} more. {sentence}"
    blocks.append((legend(kinds(scales), width, plain_bar, sentence), 4 if footer else 0))
    blocks += [(_paragraph(line, width, 11, QUIET), 2) for line in footer.splitlines()]
    return _stacked(blocks, width, margin=GAP)


def percent(probability: float) -> str:
    """A probability in words that never claim more than it says.

    Example:
        >>> percent(0.953), percent(0.042), percent(1e-5), percent(0.9999)
        ('95%', '4.2%', '<0.1%', '>99.9%')
    """
    share = float(np.clip(np.nan_to_num(probability), 0, 1))
    if not np.isfinite(probability):
        return "?"
    if 0 < share < 0.0005 or 0.9995 < share < 1:
        return "<0.1%" if share < 0.5 else ">99.9%"
    return f"{share:.0%}" if 0.1 <= share < 0.995 or share in (0, 1) else f"{share:.1%}"


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


def _drawn_row(row: Row, columns: Sequence[Column], width: int, captioned: bool) -> Image.Image:
    size = _fitted(row.picture.width, row.picture.height, CELL, TALLEST)
    picture = row.picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    words = _description(row)
    face = font(12)
    noted = [
        [_caption(cell, face)] * captioned + [shorten(cell.note, face, CELL)] * bool(cell.note) for cell in row.cells
    ]
    lines = max(map(len, noted))
    below = lines * line_height(face) + 4 if lines else 0
    block = Image.new("RGB", (width, max(words.height, picture.height + below)), "white")
    draw = ImageDraw.Draw(block)
    block.paste(words, (0, 0))
    inset = (CELL - picture.width) // 2
    block.paste(picture, (_column_left(-1) + inset, 0))
    for index, (cell, column) in enumerate(zip(row.cells, columns)):
        left = _column_left(index)
        over = heat.overlay(picture, cell.heat, alpha=ALPHA, signed=column.signed, mode=column.mode)
        block.paste(over, (left + inset, 0))
        top = picture.height + 5
        write(draw, (left + CELL / 2, top), noted[index][: int(captioned)], face, anchor="ma")
        top += line_height(face) * captioned
        write(draw, (left + CELL / 2, top), noted[index][int(captioned) :], face, colour=QUIET, anchor="ma")
    return block


def _caption(cell: Cell, face: ImageFont.FreeTypeFont) -> str:
    """The class explained and its probability, however long its name."""
    said = "" if cell.probability is None else f"  {percent(cell.probability)}"
    return shorten(cell.explained, face, CELL - face.getlength(said)) + said


def _description(row: Row) -> Image.Image:
    """Draw a picture's name and the model's first predictions, with bars; the classes explained in bold and black."""
    regular, bold, name_face = font(12), font(12, bold=True), font(13)
    explained = row.explained
    shown: list[tuple[str, float | None]] = list(row.predictions[:SHOWN_PREDICTIONS])
    if row.predictions:
        first = {name for name, _ in shown}
        shown += [(name, probability) for name, probability in explained.items() if name not in first]
    step = line_height(regular) + 12
    block = Image.new("RGB", (GUTTER, line_height(name_face) + 10 + step * len(shown)), "white")
    draw = ImageDraw.Draw(block)
    write(draw, (0, 0), [shorten(row.title, name_face, GUTTER, middle=True)], name_face)
    top = line_height(name_face) + 10
    for name, probability in shown:
        face, colour = (bold, INK) if name in explained else (regular, QUIET)
        said = "" if probability is None else percent(probability)
        label = shorten(name, face, GUTTER - face.getlength(said) - GAP)
        write(draw, (0, top), [label], face, colour=colour)
        write(draw, (GUTTER, top), [said], face, colour=colour, anchor="ra")
        if probability is not None:
            share, bar = float(np.clip(np.nan_to_num(probability), 0, 1)), top + line_height(face) + 1
            draw.rectangle((0, bar, GUTTER - 1, bar + 3), fill=(238, 238, 238))
            if share * GUTTER >= 1:
                filled = INK if name in explained else (176, 176, 176)
                draw.rectangle((0, bar, round(share * GUTTER) - 1, bar + 3), fill=filled)
        top += step
    return block


def _paste_map(
    block: Image.Image,
    values: npt.NDArray[Any],
    box: tuple[int, int, int, int],
    chosen: heat.Scale,
    mode: heat.Mode | heat.Enlarge,
) -> None:
    left, top, width, height = box
    if chosen.empty:
        drawn = heat.worded(Image.new("RGB", (width, height), heat.BLANK))
    else:
        unit = chosen(heat.upsample(values, (height, width), mode))
        drawn = Image.fromarray(heat.colourise(unit, signed=chosen.signed, limit=1))
    block.paste(drawn, (left, top))
    ImageDraw.Draw(block).rectangle((left, top, left + width - 1, top + height - 1), outline=(200, 200, 200))
