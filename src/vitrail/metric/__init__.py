"""Ways to judge a map: where it lies, and how spread out it is."""

from vitrail.metric.complexity import complexity, sparseness
from vitrail.metric.localisation import (
    average_precision,
    energy_pointing_game,
    pointing_game,
    region_attribution,
    region_overlap,
    relevance_rank,
)

__all__ = [
    "average_precision",
    "complexity",
    "energy_pointing_game",
    "pointing_game",
    "region_attribution",
    "region_overlap",
    "relevance_rank",
    "sparseness",
]
