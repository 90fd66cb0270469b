"""Curves as the papers draw them: mean curves of several methods, one curve with its parts, pictures along the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitrail.errors import InputError

Numbers = npt.NDArray[Any]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5539", "#000000")
"""Told apart by eyes of all kinds (Okabe and Ito)."""
DASHES = ("-", "--", "-.", ":")
INK, GRID = "#22262b", "#e3e6ea"


@dataclass(frozen=True)
class Line:
    """The curves of one method.

    Attributes:
        name: What the legend calls it.
        fractions: (K,) along the bottom.
        values: (N, K) one curve an image.
        score: The number behind the name.
        band: (K,) and (K,), the ends of the mean's interval.
    """

    name: str
    fractions: Numbers
    values: Numbers
    score: float | None = None
    band: tuple[Numbers, Numbers] | None = None


def mean_curves(lines: Sequence[Line], *, title: str = "", across: str = "", up: str = "response") -> Image.Image:
    """The mean curve of each method, with the interval of the mean as a band where it is given.

    Args:
        lines: One a method.
        title: Above the drawing.
        across: What the bottom axis is.
        up: What the left axis is.

    Example:
        >>> mean_curves([Line("tis", np.linspace(0, 1, 5), np.random.rand(3, 5))]).mode
        'RGB'
    """
    if not lines:
        raise InputError("there is no curve to draw; give at least one")
    figure, axes = _figure(7.2, 4.6)
    for i, line in enumerate(lines):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        name = line.name if line.score is None else f"{line.name}  {line.score:.3f}"
        axes.plot(line.fractions, np.nanmean(line.values, 0), dash, color=colour, linewidth=1.8, label=name)
        if line.band is not None:
            axes.fill_between(line.fractions, *line.band, color=colour, alpha=0.15, linewidth=0)
    dress(axes, title, across, up)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return _picture(figure)


def response_curve(
    fractions: Numbers,
    response: Numbers,
    density: Numbers | None = None,
    *,
    title: str = "",
    across: str = "",
    pictures: Sequence[tuple[float, Image.Image]] = (),
) -> Image.Image:
    """One image's curve: the model's response, the map's density and the penalty between them (MDA figure 1d).

    Args:
        fractions: (K,) along the bottom.
        response: (K,) the model's response.
        density: (K,) the share of the map; with it the distance between both is filled.
        title: Above the drawing.
        across: What the bottom axis is.
        pictures: What the model saw at some fractions, drawn below the curve.
    """
    figure, axes = _figure(7.2, 4.6 + (1.5 if pictures else 0))
    if pictures:
        axes.set_position((0.1, 0.36, 0.86, 0.56))
    axes.plot(fractions, response, color=COLOURS[0], linewidth=2, label="model response")
    if density is not None:
        axes.plot(fractions, density, "--", color=COLOURS[1], linewidth=1.6, label="density response")
        axes.fill_between(
            fractions, response, density, color=COLOURS[3], alpha=0.22, linewidth=0, label="alignment penalty"
        )
    dress(axes, title, across, "response")
    axes.legend(frameon=False, fontsize=9)
    width = 0.86 / max(len(pictures), 1)
    for i, (fraction, picture) in enumerate(pictures):
        below = figure.add_axes((0.1 + i * width, 0.02, width * 0.94, 0.2))
        below.imshow(np.asarray(picture))
        below.set_title(f"{fraction:.0%}", fontsize=8, color=INK, pad=3)
        below.axis("off")
        axes.axvline(fraction, color=INK, linewidth=0.6, alpha=0.35)
    return _picture(figure)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # no pyplot: no window, and nothing held after the drawing

    figure = Figure(figsize=(width, height), dpi=120, facecolor="white")
    return figure, figure.add_subplot()


def dress(axes: Any, title: str, across: str, up: str) -> None:
    """Title, names of the axes, and quiet lines."""
    axes.set_title(title, fontsize=11, color=INK, loc="left")
    axes.set_xlabel(across, fontsize=9, color=INK)
    axes.set_ylabel(up, fontsize=9, color=INK)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _picture(figure: Any) -> Image.Image:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.15)
    return Image.open(buffer).convert("RGB")
