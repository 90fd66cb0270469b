"""Pictures of explanations: overlays, comparison sheets, strips of maps, curves."""

from vitrail.show.curves import Line, mean_curves, response_curve
from vitrail.show.heat import Scale, Style, colourise, overlay, scale, upsample
from vitrail.show.sheets import Cell, Column, Row, percent, sheet, strip
from vitrail.show.sweeps import Panel, PlotForm, Track, sweep

__all__ = [
    "Cell",
    "Column",
    "Line",
    "Panel",
    "PlotForm",
    "Row",
    "Scale",
    "Style",
    "Track",
    "colourise",
    "mean_curves",
    "overlay",
    "percent",
    "response_curve",
    "scale",
    "sheet",
    "strip",
    "sweep",
    "upsample",
]
