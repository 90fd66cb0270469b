"""The answer to a picture seen through its map: bright where the map is high, faded to a baseline where it is low."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.metric.base import Metric, register
from vitrail.metric.case import Case, Enlarge, Sign, Whose
from vitrail.perturb import Baseline, PixelCanvas, ZeroNorm


@dataclass(frozen=True)
class _Masked(Metric):
    """One probability before, one through the map.

    Attributes:
        baseline: What the picture fades to: ``zero_norm`` where the map multiplies model inputs, as most code has it,
            ``black_pixel`` where it multiplies the picture.
        sign: What of the map counts, before it is brought to 0 to 1.
        target: The class whose probability counts.
        enlarge: How the map gets the picture's size.
    """

    baseline: Baseline = ZeroNorm()
    sign: Sign = "signed"
    target: Whose = "explained"
    enlarge: Enlarge = "auto"

    def _before_and_after(self, case: Case) -> tuple[Tensor, Tensor]:
        def ask() -> dict[Whose, Tensor]:
            heat = unit(case.heat(self.sign, self.enlarge)).flatten(1)
            canvas = PixelCanvas(case.view, case.images, [case.fill(self.baseline)])
            return case.ask(canvas, lambda which, _: heat[which], 1).probability

        case.classes(self.target)
        after = case.once(("masked", self.baseline, self.sign, self.enlarge), ask)
        return case.clean.probability[self.target][:, 0], after[self.target][:, 0]


def unit(maps: Tensor) -> Tensor:
    """(B, H, W) each brought to 0 to 1; a constant one to zeros."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return torch.where(high > low, (maps - low) / (high - low), 0)


@register("average_drop", "Chattopadhay et al. 2018 (Grad-CAM++)", higher_is_better=False)
@dataclass(frozen=True)
class AverageDrop(_Masked):
    """Per cent of the probability that is lost when the picture is seen through its map. A white map loses nothing."""

    def measure(self, case: Case) -> Tensor:
        before, after = self._before_and_after(case)
        return 100 * (before - after).relu() / before.clamp_min(1e-12)


@register("increase_in_confidence", "Chattopadhay et al. 2018 (Grad-CAM++)", higher_is_better=True)
@dataclass(frozen=True)
class IncreaseInConfidence(_Masked):
    """Per cent of the pictures that the model is surer of when it sees them through their maps."""

    def measure(self, case: Case) -> Tensor:
        before, after = self._before_and_after(case)
        return 100 * (after > before).double()


@register("average_gain", "Zhang et al. 2023 (Opti-CAM)", higher_is_better=True)
@dataclass(frozen=True)
class AverageGain(_Masked):
    """Per cent of what was missing to certainty that is won when the picture is seen through its map."""

    def measure(self, case: Case) -> Tensor:
        before, after = self._before_and_after(case)
        return 100 * (after - before).relu() / (1 - before).clamp_min(1e-12)
