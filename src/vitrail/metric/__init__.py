"""Ways to judge a map: what the model answers along it, where it lies, how spread out and how steady it is."""

from vitrail.metric import curve, masked, regions, tokens
from vitrail.metric.base import METRICS, Metric, describe, metrics, parse, register
from vitrail.metric.case import Case, Path
from vitrail.metric.complexity import complexity, sparseness
from vitrail.metric.curve import Curve, CurveMetric
from vitrail.metric.localisation import (
    average_precision,
    energy_pointing_game,
    pointing_game,
    region_attribution,
    region_overlap,
    relevance_rank,
)
from vitrail.metric.presets import PRESETS, Preset, expand

__all__ = [
    "METRICS",
    "PRESETS",
    "Case",
    "Curve",
    "CurveMetric",
    "Metric",
    "Path",
    "Preset",
    "average_precision",
    "complexity",
    "curve",
    "describe",
    "energy_pointing_game",
    "expand",
    "masked",
    "metrics",
    "parse",
    "pointing_game",
    "region_attribution",
    "region_overlap",
    "regions",
    "register",
    "relevance_rank",
    "sparseness",
    "tokens",
]
