"""Many images: datasets, the papers' tables as protocols, runs that any later run goes on from, and their reports."""

from vitrail.bench import recommend, report
from vitrail.bench.data import KINDS, Dataset, Item, dataset
from vitrail.bench.engines import Local, Ray
from vitrail.bench.filter import Filter
from vitrail.bench.load import from_dict, protocol, protocols, to_dict, with_explainer
from vitrail.bench.perform import narrowed, perform
from vitrail.bench.places import placed
from vitrail.bench.protocol import Column, Part, Protocol, Sweep
from vitrail.bench.recommendation import FLOOR, Candidate, Recommendation
from vitrail.bench.run import Bench, Engine, Plan, errors, run, scores
from vitrail.bench.store import Store

__all__ = [
    "FLOOR",
    "KINDS",
    "Bench",
    "Candidate",
    "Column",
    "Dataset",
    "Engine",
    "Filter",
    "Item",
    "Local",
    "Part",
    "Plan",
    "Protocol",
    "Ray",
    "Recommendation",
    "Store",
    "Sweep",
    "dataset",
    "errors",
    "from_dict",
    "narrowed",
    "perform",
    "placed",
    "protocol",
    "protocols",
    "recommend",
    "report",
    "run",
    "scores",
    "to_dict",
    "with_explainer",
]
