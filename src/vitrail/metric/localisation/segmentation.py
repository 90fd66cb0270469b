"""A map as a segmentation: cut in two at its mean, against the object and the rest (Chefer et al. 2021)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.fields import number
from vitrail.metric.base import Metric, register, skip
from vitrail.metric.case import Case, Enlarge
from vitrail.metric.faithfulness.masked import unit
from vitrail.metric.localisation.measures import average_precision
from vitrail.metric.localisation.regions import Threshold, object_and_rest


def confusion(found: Tensor, objects: Tensor, rest: Tensor) -> Tensor:
    """(..., H, W) each -> (..., 4): points rightly found, wrongly found, missed, and rightly left out.

    Args:
        found: What the map takes for the object.
        objects: What is the object.
        rest: What is not. Points in neither do not count.
    """
    regions = (found & objects, found & rest, ~found & objects, ~found & rest)
    return torch.stack([region.sum((-2, -1)) for region in regions], -1).double()


def miou(counts: Tensor) -> Tensor:
    """(..., 4) -> (...): intersection over union, the mean of the object's and the rest's.

    One of them that is neither there nor found does not count.
    """
    hit, wrong, missed, left = counts.unbind(-1)
    inside = torch.stack([hit, left], -1)
    union = inside + (wrong + missed)[..., None]
    return (inside / union).nanmean(-1)


def pixel_accuracy(counts: Tensor) -> Tensor:
    """(..., 4) -> (...): the share of points on the right side."""
    return (counts[..., 0] + counts[..., 3]) / counts.sum(-1)


def f1_score(counts: Tensor) -> Tensor:
    """(..., 4) -> (...): the harmonic mean of precision and recall; 0 where there is neither object nor finding."""
    hit, wrong, missed, _ = counts.unbind(-1)
    return 2 * hit / (2 * hit + wrong + missed).clamp_min(1)


def two_class_precision(maps: Tensor, objects: Tensor, rest: Tensor) -> Tensor:
    """(B, H, W) maps from 0 to 1 -> (B,): average precision over the points of both classes in one list.

    Every point is there twice: its value speaks for the object, one minus its value for the rest. So it depends on the
    values, not on their order alone, and knowing nothing gives 0.5.
    """
    # What a constant map says of both is the same: nothing.
    opposite = torch.where(maps.flatten(1).any(1)[:, None, None], 1 - maps, maps)
    counted = objects | rest
    # What does not count comes last, where no true point is left to be found.
    both = [torch.where(counted, values, -torch.inf) for values in (opposite, maps)]
    return average_precision(torch.cat(both, 1), torch.cat([rest, objects], 1)).double()


@register("segmentation", "Chefer et al. 2021", higher_is_better=True, needs=["masks"])
@dataclass(frozen=True)
class Segmentation(Metric):
    """The map, brought to 0 to 1 and cut in two, as a segmentation of the object; images without one do not count.

    Attributes:
        score: ``miou``, the mean of the object's and the rest's intersection over union; ``pixel_accuracy``; ``map``,
            the average precision over the points of both classes in one list; ``f1`` of the object's points.
        level: Of all images together, ``dataset`` adds up their points for miou and pixel_accuracy, as the paper does,
            and ``image`` takes the mean of the images' numbers. The other two are always such a mean.
        f1: The ``true`` one of each picture, or the mean over its ``rows``, which the published code computes: a row
            without a point of the object counts as 0.
        threshold: ``mean``, of each map, or a number from 0 to 1.
        enlarge: How the map gets the picture's size.
    """

    score: Literal["miou", "pixel_accuracy", "map", "f1"] = "miou"
    level: Literal["dataset", "image"] = "dataset"
    f1: Literal["true", "rows"] = "true"
    threshold: Threshold = number("mean", low=0, high=1)
    enlarge: Enlarge = "auto"

    def __post_init__(self) -> None:
        if self.score == "map":
            self.refuse_unread("score=map", "cuts no map", ["threshold"])
        if self.score in ("map", "f1"):
            self.refuse_unread(f"score={self.score}", "is always a mean of the images' numbers", ["level"])
        if self.score != "f1":
            self.refuse_unread(f"score={self.score}", "has no F1", ["f1"], "use score=f1")

    @property
    def uncounted(self) -> str:
        return "they show no object in the part that the model sees"

    def measure(self, case: Case) -> Tensor:
        objects, rest = object_and_rest(case)
        empty = ~objects.flatten(1).any(1)
        maps = unit(case.heat("signed", self.enlarge))
        if self.score == "map":
            return skip(two_class_precision(maps, objects, rest), empty)
        # In float64: a mean must not depend on what else is in the batch.
        level = maps.double().mean((1, 2), keepdim=True) if self.threshold == "mean" else self.threshold
        found = maps > level
        if self.score != "f1":
            return skip(confusion(found, objects, rest), empty[:, None])
        if self.f1 == "true":
            return skip(f1_score(confusion(found, objects, rest)), empty)
        rows = (region[..., None, :] for region in (found, objects, rest))
        return skip(f1_score(confusion(*rows)).mean(1), empty)

    def of_each(self, measured: Tensor) -> Tensor:
        if self.score == "miou":
            return miou(measured)
        return pixel_accuracy(measured) if self.score == "pixel_accuracy" else measured

    def of_all(self, measured: Tensor) -> Tensor:
        if self.level == "image" or self.score in ("map", "f1"):
            return super().of_all(measured)
        # Sums over nothing are zeros, and those over each other NaN, as a mean of nothing is.
        return self.of_each(measured.nansum(0))
