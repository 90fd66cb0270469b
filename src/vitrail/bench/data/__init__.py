"""Datasets: pictures with labels, boxes and masks, from the layouts in which they are handed around."""

from vitrail.bench.data.items import Dataset, Item
from vitrail.bench.data.kinds import KINDS, dataset

__all__ = ["KINDS", "Dataset", "Item", "dataset"]
