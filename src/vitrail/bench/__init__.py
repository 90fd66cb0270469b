"""Many images: datasets, the papers' tables as protocols, runs that any later run goes on from, and their reports."""

from vitrail.bench.data import KINDS, Dataset, Item, dataset
from vitrail.bench.engines import Local, Ray
from vitrail.bench.filter import Filter
from vitrail.bench.load import protocol, protocols
from vitrail.bench.perform import narrowed, perform
from vitrail.bench.protocol import Column, Part, Protocol, Sweep
from vitrail.bench.run import Bench, Engine, Plan, errors, run, scores
from vitrail.bench.store import Store

__all__ = [
    "KINDS",
    "Bench",
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
    "Store",
    "Sweep",
    "dataset",
    "errors",
    "narrowed",
    "perform",
    "protocol",
    "protocols",
    "run",
    "scores",
]
