"""Ways to judge a map: what the model answers along it, where it lies, how spread out it is."""

from vitrail.metric.complexity import complexity, sparseness
from vitrail.metric.curve import Curve, deletion, insertion
from vitrail.metric.localisation import (
    average_precision,
    energy_pointing_game,
    pointing_game,
    region_attribution,
    region_overlap,
    relevance_rank,
)

__all__ = [
    "Curve",
    "average_precision",
    "complexity",
    "deletion",
    "energy_pointing_game",
    "insertion",
    "pointing_game",
    "region_attribution",
    "region_overlap",
    "relevance_rank",
    "sparseness",
]
