"""Many images: the papers' tables as protocols, runs that any later run goes on from, and their reports."""

from vitrail.bench import recommend, report
from vitrail.bench.engines import Local, Ray
from vitrail.bench.filter import Filter
from vitrail.bench.places import placed
from vitrail.bench.protocol import Column, Part, Protocol, Sweep
from vitrail.bench.protocol_files import PROTOCOLS, protocols, read_protocol, with_explainer
from vitrail.bench.protocol_json import from_dict, to_dict
from vitrail.bench.runner import Bench, Engine, Plan, run
from vitrail.bench.store import Store
from vitrail.bench.stored import errors, scores
from vitrail.bench.tables import narrowed, perform

__all__ = [
    "PROTOCOLS",
    "Bench",
    "Column",
    "Engine",
    "Filter",
    "Local",
    "Part",
    "Plan",
    "Protocol",
    "Ray",
    "Store",
    "Sweep",
    "errors",
    "from_dict",
    "narrowed",
    "perform",
    "placed",
    "protocols",
    "read_protocol",
    "recommend",
    "report",
    "run",
    "scores",
    "to_dict",
    "with_explainer",
]
