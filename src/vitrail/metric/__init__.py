"""Ways to judge a map: a folder for each family, a file for each idea.

`base` says what a metric is, `case` what it is given, and `judge` is the way in, `evaluate`.
"""

from vitrail.metric.base import METRICS, Metric, describe, metrics, parse, register
from vitrail.metric.case import Case, Path, Pool
from vitrail.metric.complexity.spread import sparseness
from vitrail.metric.faithfulness.curve import Curve, CurveMetric
from vitrail.metric.judge import evaluate, score
from vitrail.metric.localisation.measures import (
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
from vitrail.spec import import_families

__all__ = [
    "METRICS",
    "PRESETS",
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
    "describe",
    "energy_pointing_game",
    "evaluate",
    "expand",
    "friedman",
    "interval",
    "lacks",
    "metrics",
    "paired_bootstrap",
    "parse",
    "pointing_game",
    "refuse_unlabelled",
    "region_attribution",
    "region_overlap",
    "register",
    "relevance_rank",
    "score",
    "sparseness",
    "wanted",
]

import_families(__name__, __path__)
