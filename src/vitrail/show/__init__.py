"""Pictures of explanations: overlays, comparison sheets, strips of maps."""

from vitrail.show.heat import Scale, colourise, overlay, scale, upsample
from vitrail.show.sheet import Cell, Row, sheet, strip

__all__ = ["Cell", "Row", "Scale", "colourise", "overlay", "scale", "sheet", "strip", "upsample"]
