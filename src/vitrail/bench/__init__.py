"""Many images: datasets with what is known of each picture, runs that any later run goes on from, and their store."""

from vitrail.bench.data import KINDS, Dataset, Item, dataset
from vitrail.bench.run import Bench, Plan, errors, run, scores
from vitrail.bench.store import Store

__all__ = ["KINDS", "Bench", "Dataset", "Item", "Plan", "Store", "dataset", "errors", "run", "scores"]
