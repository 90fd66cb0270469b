"""Ways to judge a map: what the model answers along it, where it lies, how spread out and how steady it is."""

from vitrail.metric import (  # each enters its metrics in the registry
    curve,
    grid,
    information,
    irof,
    masked,
    randomisation,
    regions,
    road,
    segmentation,
    sensitivity,
    subsets,
    tokens,
)
from vitrail.metric.base import METRICS, Metric, describe, metrics, parse, register
from vitrail.metric.case import Case, Path, Pool
from vitrail.metric.complexity import complexity, sparseness
from vitrail.metric.curve import Curve, CurveMetric
from vitrail.metric.judge import evaluate, score
from vitrail.metric.localisation import (
    average_precision,
    energy_pointing_game,
    pointing_game,
    region_attribution,
    region_overlap,
    relevance_rank,
)
from vitrail.metric.presets import PRESETS, Preset, Wanted, expand, lacks, refuse_unlabelled, wanted
from vitrail.metric.scores import Score, Scores
from vitrail.metric.statistics import Difference, Numbers, friedman, interval, paired_bootstrap
from vitrail.metric.truth import BoxError, masks_of

__all__ = [
    "METRICS",
    "PRESETS",
    "BoxError",
    "Case",
    "Curve",
    "CurveMetric",
    "Difference",
    "Metric",
    "Numbers",
    "Path",
    "Pool",
    "Preset",
    "Score",
    "Scores",
    "Wanted",
    "average_precision",
    "complexity",
    "curve",
    "describe",
    "energy_pointing_game",
    "evaluate",
    "expand",
    "friedman",
    "grid",
    "information",
    "interval",
    "irof",
    "lacks",
    "masked",
    "masks_of",
    "metrics",
    "paired_bootstrap",
    "parse",
    "pointing_game",
    "randomisation",
    "refuse_unlabelled",
    "region_attribution",
    "region_overlap",
    "regions",
    "register",
    "relevance_rank",
    "road",
    "score",
    "segmentation",
    "sensitivity",
    "sparseness",
    "subsets",
    "tokens",
    "wanted",
]
