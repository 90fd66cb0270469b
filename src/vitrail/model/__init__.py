"""What is looked at: one view over every classifier."""

from vitrail.model.anatomy import Layout
from vitrail.model.inputs import Preprocess, sources_of
from vitrail.model.rules import FROZEN, TRUE, Rule
from vitrail.model.sources import load, zero_shot
from vitrail.model.tap import Tap
from vitrail.model.target import Likeness, Target, TargetLike, representation, resolve
from vitrail.model.view import Need, Precision, Trace, View

__all__ = [
    "FROZEN",
    "TRUE",
    "Layout",
    "Likeness",
    "Need",
    "Precision",
    "Preprocess",
    "Rule",
    "Tap",
    "Target",
    "TargetLike",
    "Trace",
    "View",
    "load",
    "representation",
    "resolve",
    "sources_of",
    "zero_shot",
]
