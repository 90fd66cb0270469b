"""Datasets: pictures with labels, boxes and masks, from the layouts in which they are handed around."""

from vitrail.data.assets import VARIABLE as ASSETS
from vitrail.data.items import Dataset, Item
from vitrail.data.kinds import KINDS, dataset
from vitrail.data.masks import BoxError, check_boxes, check_truth, is_input, masks_of
from vitrail.data.readers import PictureFile

__all__ = [
    "ASSETS",
    "KINDS",
    "BoxError",
    "Dataset",
    "Item",
    "PictureFile",
    "check_boxes",
    "check_truth",
    "dataset",
    "is_input",
    "masks_of",
]
