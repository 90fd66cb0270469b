"""What is looked at: one view over every classifier."""

from vitrail.model import pictures
from vitrail.model.anatomy.hooks import Hooks
from vitrail.model.anatomy.parts import BlockParts
from vitrail.model.anatomy.watch import Layout
from vitrail.model.inputs import Preprocess, sources_of
from vitrail.model.memory import in_parts, is_out_of_memory
from vitrail.model.rules.backward import FROZEN, GUIDED, TRUE, Rule
from vitrail.model.rules.relevance import Entry, Relevance, relevances, trace_pixels, trace_tokens
from vitrail.model.rules.tap import Tap
from vitrail.model.sources.names import load, usable
from vitrail.model.sources.open_clip import zero_shot
from vitrail.model.sources.source import SOURCES
from vitrail.model.target import Likeness, Target, TargetLike, class_index, representation, resolve
from vitrail.model.trace import Need, Precision, Trace, full, is_finite, widest
from vitrail.model.view import View

__all__ = [
    "FROZEN",
    "GUIDED",
    "SOURCES",
    "TRUE",
    "BlockParts",
    "Entry",
    "Hooks",
    "Layout",
    "Likeness",
    "Need",
    "Precision",
    "Preprocess",
    "Relevance",
    "Rule",
    "Tap",
    "Target",
    "TargetLike",
    "Trace",
    "View",
    "class_index",
    "full",
    "in_parts",
    "is_finite",
    "is_out_of_memory",
    "load",
    "pictures",
    "relevances",
    "representation",
    "resolve",
    "sources_of",
    "trace_pixels",
    "trace_tokens",
    "usable",
    "widest",
    "zero_shot",
]
