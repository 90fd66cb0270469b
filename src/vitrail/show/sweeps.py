"""A number over a parameter, as papers draw their ablations: a line a method, its interval, the paper's own points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Literal

import numpy as np

from vitrail.errors import InputError
from vitrail.show.curves import COLOURS, DASHES, INK, Numbers, dress

PlotForm = Literal["png", "svg"]

ACROSS = 3
"""Panels side by side."""

DECADES = 20
"""Where the largest place is more than so many times the smallest, a logarithmic axis keeps the small ones apart."""


@dataclass(frozen=True)
class Track:
    """One line.

    Attributes:
        name: What the legend calls it.
        places: (K,) along the bottom, in order.
        values: (K,) the numbers, NaN where there is none.
        lows: (K,) the lower ends of their intervals.
        highs: (K,) the upper ends.
        published: (K,) what the paper found, NaN where it says nothing.
    """

    name: str
    places: Numbers
    values: Numbers
    lows: Numbers
    highs: Numbers
    published: Numbers


@dataclass(frozen=True)
class Panel:
    """One drawing.

    Attributes:
        title: Above it.
        tracks: The lines.
        levels: Numbers that do not change along the axis, by name.
    """

    title: str
    tracks: Sequence[Track]
    levels: Mapping[str, float] = field(default_factory=dict)


def sweep(panels: Sequence[Panel], *, across: str, title: str = "", form: PlotForm = "png") -> bytes:
    """Panels side by side with one legend: lines with 95 % bands, hollow points for the paper's numbers.

    Args:
        panels: What is drawn.
        across: What the bottom axis is.
        title: Above all.
        form: ``png`` or ``svg``.

    Example:
        >>> at, values = np.array([1.0, 2.0]), np.array([0.5, 0.7])
        >>> track = Track("mda", at, values, values - 0.1, values + 0.1, np.array([0.6, np.nan]))
        >>> sweep([Panel("Ins", [track])], across="gamma")[1:4]
        b'PNG'
    """
    figure = drawn(panels, across=across, title=title)
    import matplotlib as mpl

    buffer = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "vitrail"}):  # the same run gives the same file
        figure.savefig(
            buffer,
            format=form,
            bbox_inches="tight",
            pad_inches=0.15,
            metadata={"Date": None} if form == "svg" else None,
        )
    return buffer.getvalue()


def drawn(panels: Sequence[Panel], *, across: str, title: str = "") -> Any:
    """The same as a matplotlib figure."""
    from matplotlib.figure import Figure  # no pyplot: no window, and nothing held after the drawing

    if not any(panel.tracks for panel in panels):
        raise InputError("there is no line to draw; a sweep needs methods that have a place on its axis")
    columns = min(len(panels), ACROSS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(0.6 + 3.9 * columns, 0.4 + 3.1 * rows), dpi=120, facecolor="white", layout="constrained")
    names = list(dict.fromkeys(name for panel in panels for name in (*(t.name for t in panel.tracks), *panel.levels)))
    style = {name: (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]) for i, name in enumerate(names)}
    known: dict[str, Any] = {}
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        for track in panel.tracks:
            known.setdefault(track.name, _draw(axes, track, *style[track.name]))
            if np.isfinite(track.published).any():
                colour = style[track.name][0]
                axes.plot(track.places, track.published, "o", color=colour, fillstyle="none", markersize=7)
        for name, level in panel.levels.items():
            known.setdefault(name, axes.axhline(level, color=style[name][0], linestyle=":", linewidth=1.4))
        places = sorted({float(place) for track in panel.tracks for place in track.places})
        if logarithmic(places):
            axes.set_xscale("log")
            axes.set_xticks(places, [f"{place:g}" for place in places])
            axes.minorticks_off()
        dress(axes, panel.title, across, "")
    if any(np.isfinite(track.published).any() for panel in panels for track in panel.tracks):
        known["the paper's"] = _hollow()
    figure.legend(
        known.values(), known.keys(), loc="outside lower center", ncols=min(len(known), 4), frameon=False, fontsize=9
    )
    figure.suptitle(title, fontsize=12, color=INK, x=0.01, ha="left")
    return figure


def logarithmic(places: Sequence[float]) -> bool:
    """Whether places are all positive and far apart.

    Example:
        >>> logarithmic([1, 10, 100]), logarithmic([0, 10, 100]), logarithmic([1, 2, 3])
        (True, False, False)
    """
    return bool(places) and min(places) > 0 and max(places) > DECADES * min(places)


def _draw(axes: Any, track: Track, colour: str, dash: str) -> Any:
    (line,) = axes.plot(
        track.places, track.values, dash, color=colour, linewidth=1.8, marker="o", markersize=3.5, label=track.name
    )
    axes.fill_between(track.places, track.lows, track.highs, color=colour, alpha=0.15, linewidth=0)
    return line


def _hollow() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="none", marker="o", color=INK, fillstyle="none", markersize=7)
