"""Sheets and strips: everything asked for is on the page, and nothing runs over its edge."""

import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import InputError
from vitrail.show import Cell, Column, Row, colourise, heat, lettering, sheet, strip
from vitrail.show.legend import reading
from vitrail.show.sheets import ALPHA, CELL, GAP, GUTTER, MARGIN, percent

PREDICTIONS = (("tabby cat", 0.7), ("lynx", 0.2), ("hen-of-the-woods, Polyporus frondosus", 0.04), ("sofa", 0.01))
LONG = "var(skipplus(ixg), classes=top5)"


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def bump(offset: float = 0.0) -> np.ndarray:
    row, column = np.mgrid[:14, :14] / 14
    return np.exp(-((row - 0.4) ** 2 + (column - 0.6) ** 2) / 0.05) + offset


def row(cells: int, *, size=(120, 90), title="cat.jpg", predictions=PREDICTIONS, explained="lynx", note="", heat=None):
    picture = Image.new("RGB", size, (60, 120, 90))
    return Row(
        picture,
        title,
        predictions,
        tuple(
            Cell(bump() if heat is None else heat, note, explained, dict(predictions).get(explained))
            for _ in range(cells)
        ),
    )


def same(first: Image.Image, second: Image.Image) -> bool:
    return first.size == second.size and (np.asarray(first) == np.asarray(second)).all()


def margins_are_white(page: Image.Image, margin: int) -> bool:
    pixels = np.asarray(page)
    edges = (pixels[:margin], pixels[-margin:], pixels[:, :margin], pixels[:, -margin:])
    return all((edge == 255).all() for edge in edges)


def columns_of(page: Image.Image) -> list[int]:
    return [MARGIN + GUTTER + 2 * GAP + index * (CELL + GAP) for index in range((page.width - MARGIN - GUTTER) // CELL)]


def test_size_grows_with_rows_and_columns():
    one = sheet([row(1)], ["a"])
    assert sheet([row(1)] * 2, ["a"]).height > one.height + 150
    assert sheet([row(1)] * 2, ["a"]).width == one.width
    assert sheet([row(3)], ["a", "b", "c"]).width == one.width + 2 * (CELL + GAP)
    for rows, columns in ((20, 1), (2, 12)):
        assert margins_are_white(sheet([row(columns)] * rows, [LONG] * columns), MARGIN)


def test_row_height_follows_the_picture():
    heights = [sheet([row(1, size=size)], ["a"]).height for size in ((300, 150), (150, 150), (150, 200), (100, 9000))]
    assert all(first < second for first, second in pairwise(heights[:3]))
    assert heights[3] < 700


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (2000, 3)])
@pytest.mark.parametrize("text", ["", "x" * 150, "Ünï 梵高 🎉\n\t\udcff\0 \u202e", "a b " * 80])
def test_nothing_runs_over_the_edge(size, text):
    predictions = ((text, 0.5), ("b", float("nan")), ("c", 7.0))
    rows = [row(2, size=size, title=text, predictions=predictions, explained=text, note=text)]
    page = sheet(rows, [text, "tis"], title=text, footer=text)
    assert margins_are_white(page, MARGIN)
    # Above the legend the gaps between columns stay empty from top to bottom: no text runs into its neighbour.
    untitled = np.asarray(sheet(rows, [text, "tis"]))[: -MARGIN - 60]
    for left in columns_of(page):
        assert (untitled[:, left - GAP : left] == 255).all()


def test_long_headers_stay_in_their_column():
    plain, long = sheet([row(3)], ["a", "b", "c"]), sheet([row(3)], ["a", "y" * 90, "c"])
    grown = long.height - plain.height
    assert grown > 0
    left = columns_of(long)[2]
    header = np.asarray(long)[: MARGIN + grown + 20].copy()
    assert (header[:, left : left + CELL] < 128).any()
    header[:, left : left + CELL] = 255
    header[:, left - CELL - GAP : left - GAP] = 255
    header[:, left + CELL + GAP :] = 255
    assert (header == 255).all()


@pytest.mark.parametrize(
    ("changed", "region"),
    [
        ({"columns": ["tia"]}, "header"),
        ({"title": "A title"}, "anywhere"),
        ({"footer": "a footer"}, "anywhere"),
        ({"row": {"title": "dog.jpg"}}, "gutter"),
        ({"row": {"explained": "tabby cat"}}, "gutter"),
        ({"row": {"explained": "not among them"}}, "gutter"),
        ({"row": {"explained": "sofa"}}, "gutter"),
        ({"row": {"predictions": PREDICTIONS[:2]}}, "gutter"),
        ({"row": {"predictions": (("tabby cat", 0.6), *PREDICTIONS[1:])}}, "gutter"),
        ({"row": {"note": "0.8 s"}}, "anywhere"),
    ],
)
def test_every_word_is_drawn(changed, region):
    plain = sheet([row(1)], ["tis"])
    page = sheet(
        [row(1, **changed.get("row", {}))],
        changed.get("columns", ["tis"]),
        title=changed.get("title", ""),
        footer=changed.get("footer", ""),
    )
    assert not same(plain, page)
    if region == "anywhere":
        assert page.height > plain.height
        return
    left, right = (0, MARGIN + GUTTER) if region == "gutter" else (columns_of(page)[1], page.width)
    height = min(plain.height, page.height)
    assert (np.asarray(plain)[:height, left:right] != np.asarray(page)[:height, left:right]).any()


def test_bars_are_as_long_as_the_probabilities():
    page = np.asarray(sheet([row(1, predictions=(("a", 0.5), ("b", 0.25)), explained="a")], ["x"]))
    gutter = page[:, MARGIN : MARGIN + GUTTER]
    black, grey = (gutter == 34).all(-1).sum(1), (gutter == 176).all(-1).sum(1)
    assert black.max() == GUTTER // 2
    assert grey.max() == GUTTER // 4


def test_small_pictures_are_enlarged():
    page = np.asarray(sheet([row(1, size=(144, 144))], ["x"]))
    left = MARGIN + GUTTER + 2 * GAP
    assert (page[MARGIN + 100, left : left + CELL] == (60, 120, 90)).all()


def test_the_legend_names_the_kinds_of_map_that_occur():
    unsigned, signed = row(1), row(1, heat=bump(-0.5))
    both = Row(unsigned.picture, "", PREDICTIONS, (unsigned.cells[0], signed.cells[0]))
    pages = [np.asarray(sheet([one], ["a"] * len(one.cells))) for one in (unsigned, signed, both)]
    legends = [page[-MARGIN - 60 : -MARGIN, MARGIN : MARGIN + 500] for page in pages]
    colourful = [(np.ptp(legend.astype(int), axis=-1) > 30).sum() for legend in legends]
    assert min(colourful) > 200
    assert colourful[2] == pytest.approx(colourful[0] + colourful[1], rel=0.1)


def test_a_column_is_signed_for_all_its_rows_or_none():
    sparse = np.zeros((14, 14))
    sparse[13, 13] = 1
    mostly = row(1, heat=sparse)
    left = MARGIN + GUTTER + 2 * GAP + CELL + GAP
    place = (left + 50, MARGIN + 60)
    for rows, column, signed in (
        ([mostly], "a", False),
        ([mostly, row(1, heat=bump(-0.5))], "a", True),
        ([mostly], Column("a", signed=True), True),
        ([mostly, row(1, heat=bump(-0.5))], Column("a", signed=False), False),
    ):
        drawn = sheet(rows, [column]).getpixel(place)
        assert (drawn[0] > 120) == signed, "signed: the picture greyed and light; unsigned: greyed"


def test_wrong_sheets_are_refused_in_a_sentence():
    with pytest.raises(InputError, match="at least one"):
        sheet([], ["a"])
    with pytest.raises(InputError, match="at least one"):
        sheet([row(0)], [])
    with pytest.raises(InputError, match=r"'cat\.jpg' has 2 cells for 1 columns"):
        sheet([row(2)], ["a"])
    with pytest.raises(InputError, match="NaN"):
        sheet([row(1, heat=np.full((3, 3), np.nan))], ["a"])


def test_strip_draws_each_map():
    heats = np.stack([bump(), bump()[::-1], bump().T])
    page = strip(heats, ["a", "b", "c"])
    pixels = np.asarray(page)
    assert margins_are_white(page, GAP)
    peak = colourise(bump()).reshape(-1, 3).max(0)
    assert (np.abs(pixels.astype(int) - peak).max(-1) < 30).sum() > 100
    assert not same(page, strip(heats[::-1], ["a", "b", "c"]))
    assert not same(page, strip(heats, ["a", "b", "d"]))
    assert strip(heats, ["a", "b", "c"], "title").height > page.height


def test_strip_wraps_and_says_how_many_more():
    sizes = [strip(np.ones((count, 7, 7)), ["x" * 80] * count).size for count in (1, 8, 9, 16, 40)]
    assert sizes[1][0] == sizes[2][0] == sizes[3][0] == sizes[4][0]
    assert sizes[1][1] < sizes[2][1] == sizes[3][1] == sizes[4][1]
    heats = np.ones((40, 7, 7))
    assert not same(strip(heats[:16], [""] * 16), strip(heats, [""] * 40))
    assert not same(strip(heats[:39], [""] * 39), strip(heats, [""] * 40))


def test_wrong_strips_are_refused_in_a_sentence():
    for heats, labels in ((np.ones((2, 7, 7)), ["a"]), (np.ones((7, 7)), ["a"]), (np.ones((0, 7, 7)), [])):
        with pytest.raises(InputError, match="strip"):
            strip(heats, labels)


@pytest.mark.parametrize("text", [LONG, "x" * 200, "a b c " * 40, "", "one"])
def test_wrapping_loses_nothing_and_keeps_to_the_room(text):
    face = lettering.font(12)
    lines = lettering.wrap(text, face, 120)
    assert all(face.getlength(line) <= 120 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_wrapping_breaks_a_spec_string_at_its_commas():
    face = lettering.font(15, bold=True)
    assert lettering.wrap(LONG, face, 220) == ["var(skipplus(ixg),", "classes=top5)"]


def test_shortening_keeps_both_ends_of_a_name():
    face = lettering.font(12)
    name = "a very long name of a picture taken on holiday 0042.jpeg"
    short = lettering.shorten(name, face, 150, middle=True)
    assert face.getlength(short) <= 150
    assert short.startswith("a very")
    assert short.endswith("042.jpeg")
    assert lettering.shorten(name, face, 150).endswith("…")
    assert lettering.shorten("short", face, 150) == "short"
    assert lettering.shorten(name, face, 0) == "…"


# ------------------------------------------------------------------------------- what is drawn follows the numbers


def of(*cells: Cell, predictions=PREDICTIONS, title="cat.jpg") -> Row:
    return Row(Image.new("RGB", (120, 120), (60, 120, 90)), title, predictions, cells)


def gutter(page: Image.Image) -> np.ndarray:
    return np.asarray(page)[:, MARGIN : MARGIN + GUTTER]


def column(page: Image.Image, index: int) -> np.ndarray:
    left = columns_of(page)[index + 1]
    return np.asarray(page)[:, left : left + CELL]


def test_four_cells_of_four_classes_each_say_their_own():
    names = [name for name, _ in PREDICTIONS]
    cells = [Cell(bump(), explained=name, probability=share) for name, share in PREDICTIONS]
    page = sheet([of(*cells)], ["ig"] * 4)
    for k in range(4):
        for other in (replace(cells[k], explained="crocodile"), replace(cells[k], probability=0.123)):
            changed = sheet([of(*cells[:k], other, *cells[k + 1 :])], ["ig"] * 4)
            for j in range(4):
                height = min(page.height, changed.height)
                differs = not (column(page, j)[:height] == column(changed, j)[:height]).all()
                if height == page.height == changed.height:
                    assert differs == (j == k), f"{names[k]} is said in column {k} alone"
                else:
                    assert j != k or differs
    alone = sheet([of(*[cells[1]] * 4)], ["ig"] * 4)
    assert page.height > alone.height, "where all cells explain one class, the gutter says it once"


@pytest.mark.parametrize("explained", ["sofa", "not among the predictions"])
def test_an_explained_class_outside_the_top_three_has_its_probability(explained):
    said = [sheet([of(Cell(bump(), explained=explained, probability=p))], ["x"]) for p in (0.002, 0.03, None)]
    assert len({page.size for page in said}) == 1
    assert not same(said[0], said[1])
    assert not same(said[0], said[2])
    bars = [(gutter(page) == 34).all(-1).sum(1).max() for page in said]
    assert bars[1] >= round(0.03 * GUTTER)


def test_percentages_never_claim_more_than_there_is():
    shares = [0, 1e-9, 4e-4, 0.006, 0.0949, 0.12, 0.994, 0.9951, 0.9996, 1]
    said = ["0%", "<0.1%", "<0.1%", "0.6%", "9.5%", "12%", "99%", "99.5%", ">99.9%", "100%"]
    assert [percent(share) for share in shares] == said
    assert percent(float("nan")) == "?"


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e30])
@pytest.mark.parametrize("signed", [True, False])
def test_empty_maps_are_grey_with_a_word_and_no_colour_bar(value, signed):
    flat = np.full((14, 14), value, np.float32)
    pages = [
        sheet([of(Cell(flat))], [Column("x", signed=signed)]),
        strip(flat[None], ["x"], signed=signed),
    ]
    for page in pages:
        drawn = np.asarray(page).astype(int)
        place = drawn[:, columns_of(page)[1] :] if page is pages[0] else drawn
        assert np.ptp(place, axis=-1).max() <= 40 * (page is pages[0]), "no colour but the picture's, half greyed"
        assert (np.ptp(drawn[-MARGIN - 60 :], axis=-1) == 0).all(), "nor in the legend"
    blank = Image.new("RGB", (CELL, CELL), (90, 90, 90))
    worded = np.asarray(heat.overlay(blank, flat, alpha=ALPHA, signed=signed)).astype(int)
    assert (worded == 255).all(-1).any()
    assert (worded < 60).all(-1).any(), "a dark word on white"
    assert "no evidence" in reading([heat.scale(flat, signed=signed)])
    full = heat.overlay(blank, np.eye(2), signed=signed)
    assert not same(full, Image.fromarray(worded.astype(np.uint8)))


def test_the_legend_speaks_of_what_is_drawn():
    spiky = np.zeros((128, 128))
    spiky[5, 5], spiky[60:, 60:] = 1, 0.1
    assert "share one colour" in reading([heat.scale(spiky)])
    assert "share one colour" not in reading([heat.scale(bump())])
    assert "no evidence" not in reading([heat.scale(bump())])


def test_cells_are_enlarged_as_their_method_wants():
    sparse = np.zeros((4, 4))
    sparse[1, 1] = 1
    whole, smooth = (
        np.asarray(sheet([of(Cell(sparse))], [Column("mda", signed=True, mode=mode)]))
        for mode in ("nearest", "bilinear")
    )
    left = MARGIN + GUTTER + 2 * GAP + CELL + GAP
    drawn = whole[MARGIN:, left : left + CELL].astype(int)
    red = drawn[..., 0] > drawn[..., 2] + 50
    _, columns = np.nonzero(red[20 : CELL + 20])
    assert CELL // 4 - 2 <= np.ptp(columns) + 1 <= CELL // 4 + 2
    assert not (whole == smooth).all()
    strips = [strip(sparse[None], ["a"], mode=mode) for mode in ("nearest", "bilinear")]
    assert not same(*strips)


def test_strips_have_labels_of_more_lines_and_a_footer():
    plain = strip(np.stack([bump()] * 2), ["a", "b"])
    two = strip(np.stack([bump()] * 2), ["a\nwhale 95%", "b"])
    assert two.height > plain.height
    assert strip(np.stack([bump()] * 2), ["a", "b"], footer="Note 1: few masks.").height > plain.height
    for page in (plain, two):
        assert margins_are_white(page, GAP)
