"""Does a map lie on the object? Localisation as metrics; images without a mask, or an empty one, do not count."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import InputError, option
from vitrail.fields import number
from vitrail.metric.base import Metric, register, skip
from vitrail.metric.case import Case, Enlarge
from vitrail.metric.localisation import measures
from vitrail.perturb import WIDEST


def object_and_rest(case: Case) -> tuple[Tensor, Tensor]:
    """(B, H, W) booleans: the object, and what counts as not the object."""
    if case.masks is None:
        raise InputError(f"where the objects are must be known; give {option('masks')} or {option('boxes')}")
    return case.masks == 1, case.masks == 0


@dataclass(frozen=True)
class _Localisation(Metric):
    """A map against a mask.

    Attributes:
        enlarge: How the map gets the picture's size.
    """

    enlarge: Enlarge = "auto"

    def _heat(self, case: Case, outside: float) -> Tensor:
        """(B, H, W) the maps, with a value where the masks do not count."""
        objects, rest = object_and_rest(case)
        return torch.where(objects | rest, case.heat("signed", self.enlarge), outside)

    @abstractmethod
    def _found(self, case: Case, objects: Tensor) -> Tensor:
        """(B,) the number of each image."""

    @property
    def uncounted(self) -> str:
        below = getattr(self, "below", None)
        large = f", or one that covers {below:g} of it or more" if below is not None else ""
        return f"they show no object in the part that the model sees{large}"

    def measure(self, case: Case) -> Tensor:
        objects, _ = object_and_rest(case)
        return skip(self._found(case, objects), ~objects.flatten(1).any(1))


@register("pointing_game", "Zhang et al. 2018", higher_is_better=True, needs=["masks"])
@dataclass(frozen=True)
class PointingGame(_Localisation):
    """Whether the highest point of the map lies on the object; of several equally high ones the share that does.

    Attributes:
        enlarge: How the map gets the picture's size.
        tolerance: A distance below so many pixels is a hit too; 15 in the first protocol, none in TIS's.
        below: Images whose object covers this share or more do not count; 0.5 in TIS's protocol.
    """

    tolerance: float = number(0.0, low=0, high=10_000)
    below: float | None = number(None, above=0, high=1)

    def _found(self, case: Case, objects: Tensor) -> Tensor:
        found = measures.pointing_game(self._heat(case, -torch.inf), objects, self.tolerance)
        large = objects.float().mean((1, 2)) >= (2 if self.below is None else self.below)
        return skip(found, large)


@register("energy_pointing_game", "Wang et al. 2020 (Score-CAM)", higher_is_better=True, needs=["masks"])
@dataclass(frozen=True)
class EnergyPointingGame(_Localisation):
    """The share of the map's absolute values that lies on the object; 0 for an empty map.

    Attributes:
        enlarge: How the map gets the picture's size.
        sign: Whether values against the target count too, as those for it do (``absolute``), or not (``positive``).
        below: Images whose object covers this share or more do not count.
    """

    sign: Literal["absolute", "positive"] = "absolute"
    below: float | None = number(None, above=0, high=1)

    def _found(self, case: Case, objects: Tensor) -> Tensor:
        heat = self._heat(case, 0)
        found = measures.energy_pointing_game(heat.relu() if self.sign == "positive" else heat, objects)
        return skip(found, objects.float().mean((1, 2)) >= (2 if self.below is None else self.below))


def _check_blur(metric: Metric, kernel: int) -> None:
    if kernel == 1:
        metric.refuse_unread("kernel=1", "does not blur", ["sigma"], "give a wider kernel")


@register("region_attribution", "VAR 2025", higher_is_better=True, needs=["masks"])
@dataclass(frozen=True)
class RegionAttribution(_Localisation):
    """The share of the positive part, blurred, that lies on the object; 0 for an empty map.

    Attributes:
        enlarge: How the map gets the picture's size.
        kernel: Width of the blur in pixels, odd; 1 for none.
        sigma: Its standard deviation, which the paper does not tell.
    """

    kernel: int = number(11, low=1, high=WIDEST, only="odd")
    sigma: float = number(2.0, above=0, high=1000)

    def __post_init__(self) -> None:
        _check_blur(self, self.kernel)

    def _found(self, case: Case, objects: Tensor) -> Tensor:
        return measures.region_attribution(self._heat(case, 0), objects, self.kernel, self.sigma)


Threshold = Literal["mean"] | float


@dataclass(frozen=True)
class _Overlap(_Localisation):
    """The points above a threshold against the object.

    Attributes:
        enlarge: How the map gets the picture's size.
        threshold: ``mean``, of each map, or a number.
        kernel: Width of a blur before, in pixels; 1 for none. With one the positive part alone counts, as VAR has it.
        sigma: Its standard deviation.
    """

    threshold: Threshold = number("mean", low=-1e30, high=1e30)
    kernel: int = number(1, low=1, high=WIDEST, only="odd")
    sigma: float = number(2.0, above=0, high=1000)

    def __post_init__(self) -> None:
        _check_blur(self, self.kernel)

    def _overlap(self, case: Case, objects: Tensor) -> measures.Overlap:
        heat = case.heat("signed", self.enlarge)
        if self.kernel > 1:
            heat = measures.blurred(heat.relu(), self.kernel, self.sigma)
        return measures.region_overlap(heat, objects, self.threshold, object_and_rest(case)[1] | objects)


@register("region_iou", "VAR 2025", higher_is_better=True, needs=["masks"])
@dataclass(frozen=True)
class RegionIoU(_Overlap):
    """Intersection over union of the object and the points above a threshold, image by image."""

    def _found(self, case: Case, objects: Tensor) -> Tensor:
        return self._overlap(case, objects).iou


@register("region_f1", "VAR 2025", higher_is_better=True, needs=["masks"])
@dataclass(frozen=True)
class RegionF1(_Overlap):
    """F1 of the points above a threshold, image by image."""

    def _found(self, case: Case, objects: Tensor) -> Tensor:
        return self._overlap(case, objects).f1


@register("relevance_rank", "Arras et al. 2022", higher_is_better=True, needs=["masks"])
@dataclass(frozen=True)
class RelevanceRank(_Localisation):
    """Of as many highest points as the object has, the share that lies on it."""

    def _found(self, case: Case, objects: Tensor) -> Tensor:
        return measures.relevance_rank(self._heat(case, -torch.inf), objects)


@register("average_precision", "Mehri et al. 2024 (SkipPLUS)", higher_is_better=True, needs=["masks"])
@dataclass(frozen=True)
class AveragePrecision(_Localisation):
    """Area under the precision-recall curve of the object's points, in steps; only the order of the map matters."""

    def _found(self, case: Case, objects: Tensor) -> Tensor:
        # What does not count comes last, where no true point is left to be found.
        return measures.average_precision(self._heat(case, -torch.inf), objects)
