"""Parts that are figures in the paper: a panel for each column, over what changes."""

from collections import defaultdict

import numpy as np

from vitrail import show
from vitrail.bench.report.result import Cell, Section


def plot(section: Section, form: show.PlotForm = "png") -> bytes:
    """The figure of a sweep.

    Args:
        section: A part with a sweep.
        form: ``png`` or ``svg``.
    """
    assert section.sweep is not None, "only sweeps are drawn"
    return show.sweep(panels(section), across=section.sweep.axis, title=section.name, form=form)


def panels(section: Section) -> list[show.Panel]:
    """What is drawn: lines over the axis, and levels for the methods that have no place on it."""
    at = section.sweep.at if section.sweep else {}
    found = []
    for i, heading in enumerate(section.headings):
        lines: dict[str, list[tuple[float, Cell]]] = defaultdict(list)
        for row in section.rows:
            if row.label in at:
                name, place = at[row.label]
                lines[name].append((place, row.cells[i]))
        levels = {row.label: row.cells[i].value for row in section.rows if row.label not in at and row.cells[i].known}
        found.append(show.Panel(heading.name, tuple(_track(*line) for line in lines.items()), levels))
    return found


def _track(name: str, cells: list[tuple[float, Cell]]) -> show.Track:
    cells = sorted(cells, key=lambda pair: pair[0])
    places, found = np.array([place for place, _ in cells]), [cell for _, cell in cells]
    values, lows, highs = (np.array([getattr(cell, key) for cell in found]) for key in ("value", "low", "high"))
    published = np.array([np.nan if cell.published is None else cell.published for cell in found])
    return show.Track(name, places, values, lows, highs, published)
