"""Pictures of explanations: overlays, comparison sheets, strips of maps, curves."""

from vitrail.show.curves import Line, mean_curves, response_curve
from vitrail.show.heat import Scale, colourise, overlay, scale, upsample
from vitrail.show.sheet import Cell, Row, sheet, strip
from vitrail.show.sweep import Panel, PlotForm, Track, sweep

__all__ = [
    "Cell",
    "Line",
    "Panel",
    "PlotForm",
    "Row",
    "Scale",
    "Track",
    "colourise",
    "mean_curves",
    "overlay",
    "response_curve",
    "scale",
    "sheet",
    "strip",
    "sweep",
    "upsample",
]
