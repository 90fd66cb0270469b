"""AIC and SIC as metrics: the area under a performance information curve, see `pic`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.fields import number, random_seed, unseen
from vitrail.method import checksum
from vitrail.metric.base import Metric, register
from vitrail.metric.case import Case, Enlarge, Sign, Whose
from vitrail.metric.faithfulness import pic
from vitrail.metric.faithfulness.bokeh import Bools, Bytes, Floats

XRAI = "Kapishnikov et al. 2019 (XRAI)"


@dataclass(frozen=True)
class _Information(Metric):
    """What the model answers against the information in a partly blurred picture.

    Images that the model is not sure of, or whose blurred picture it answers as high, do not count.

    Attributes:
        aggregate: The curve of all images, point by point: ``mean``, or ``median`` as in the authors' code.
        least: Images whose whole picture has a lower probability do not count.
        thresholds: The shares of pixels shown.
        share: The share of random pixels shown from the start, the same for all methods.
        seed: Another seed draws others.
        sign: What of the map orders the pixels.
        target: The class whose answer counts.
        enlarge: How the map gets the picture's size.
    """

    answer: ClassVar[Literal["sic", "aic"]]
    aggregate: Literal["mean", "median"] = "mean"
    least: float = number(0.8, low=0, high=1)
    thresholds: tuple[float, ...] = number(pic.THRESHOLDS, low=0, high=1, most=1000)
    share: float = number(0.01, low=0, high=1)
    seed: int = random_seed()
    sign: Sign = "signed"
    target: Whose = "predicted"
    enlarge: Enlarge = "auto"

    @property
    def uncounted(self) -> str:
        return (
            "their whole picture is answered too low, or their blurred one is answered as high or takes as many bytes"
        )

    def measure(self, case: Case) -> Tensor:
        """(B, points): the curves."""
        key = (self.least, self.thresholds, self.share, self.seed, self.sign, self.target, self.enlarge)
        found = case.once(
            ("information", *key),
            lambda: pic.information_curves(*self._asked(case), thresholds=self.thresholds, least=self.least),
        )
        return torch.from_numpy(found[self.answer].values)

    def _asked(self, case: Case) -> tuple[Bytes, Floats, Bools, pic.Ask]:
        """What the curves are made of: the pictures, the enlarged maps, the pixels shown from the start, the model."""
        classes = case.classes(self.target).classes
        if classes is None:
            raise InputError(f"{self.id} needs a class, but a function of the logits was explained")
        restore = case.view.preprocess.restore
        pictures = np.stack([np.asarray(restore(image)) for image in case.images])
        keys = checksum(case.images).abs().tolist()
        masks = np.stack([pic.random_mask(case.size, (self.seed % 2**64, key), self.share) for key in keys])
        heat = case.heat(self.sign, self.enlarge).float().cpu().numpy()
        return pictures, heat, masks, pic.asker(case.view, classes.cpu())

    def of_each(self, measured: Tensor) -> Tensor:
        return torch.from_numpy(pic.area(measured.numpy()))

    def of_all(self, measured: Tensor) -> Tensor:
        return torch.tensor(pic.aggregate(measured.numpy(), self.aggregate).area)


@register("aic", XRAI, higher_is_better=True)
@dataclass(frozen=True)
class AIC(_Information):
    """Whether the class is predicted, against the information in a picture of the map's highest points.

    Attributes:
        brief: Make and compress only the pictures that decide a curve: a third of the time where SIC is not asked for,
            and the same curves but for some ten-thousandths in a few of them; see `pic.brief_curves`.
    """

    answer: ClassVar[Literal["sic", "aic"]] = "aic"
    brief: bool = unseen(False, true="the same curves, but for some ten-thousandths in a few of them")

    def __post_init__(self) -> None:
        why = "asks whether the class is the predicted one, not how probable it is"
        self.refuse_unread(f"brief={self.brief}", why, ["least"], "use sic")

    def measure(self, case: Case) -> Tensor:
        """(B, points): the curves."""
        if not self.brief:
            return super().measure(case)
        found = pic.brief_curves(*self._asked(case), thresholds=self.thresholds, least=self.least)
        return torch.from_numpy(found.values)


@register("sic", XRAI, higher_is_better=True)
@dataclass(frozen=True)
class SIC(_Information):
    """The class's share of its clean probability, against the information in a picture of the map's highest points."""

    answer: ClassVar[Literal["sic", "aic"]] = "sic"
