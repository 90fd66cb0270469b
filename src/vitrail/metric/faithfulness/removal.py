"""The answers when the model truly sees fewer patches: their tokens are taken away, not painted over.

A baseline instead of None paints pixels over, for models without tokens, and so that the curves of insertion and
deletion can be used again.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.fields import number, unseen
from vitrail.metric.base import Metric, register
from vitrail.metric.case import Answers, Case, Path, Sign, Walk, Whose
from vitrail.metric.faithfulness.curve import TENTHS, AreaRule, Curve, CurveMetric, hits
from vitrail.perturb import Baseline

ERASER = (0.01, 0.05, 0.1, 0.2, 0.5)
SKIPPLUS = "Lu et al. 2021, Mehri et al. 2024 (SkipPLUS)"


@dataclass(frozen=True)
class _Tokens(CurveMetric):
    """Something along a path of patches, from the whole picture on.

    Attributes:
        shares: The shares of patches shown or removed, rounded down; the whole picture is added.
        baseline: What stands where patches are hidden; None takes their tokens away.
        step: With a baseline: pixels at a time, instead of shares.
        area: How the curve becomes one number.
        sign: What of the map orders the patches.
        target: The class that counts.
    """

    answer: ClassVar[str] = "probability"
    """What is drawn, in words."""
    shares: tuple[float, ...] = number(TENTHS, low=0, high=1, most=1000)
    baseline: Baseline | None = None
    step: int | None = number(None, low=1, high=10**9)
    area: AreaRule = unseen("trapezoid", integral="with a baseline the path is 1 wide: the trapezoid's area")
    sign: Sign = "signed"
    target: Whose = "explained"

    def __post_init__(self) -> None:
        if self.baseline is None:
            why = "takes away patches, by their shares"
            self.refuse_unread("baseline=None", why, ["step"], "give a baseline, such as zero_norm")
        else:
            self.refuse_unread(
                f"baseline={self.baseline.spec}", "hides pixels, step by step", ["shares"], "give a step"
            )

    def _walk(self, case: Case, rising: bool) -> Walk:
        # With a baseline it is the path of insertion or deletion, whole, so that both can share it.
        shares = self.shares if self.baseline is None else None
        return case.walk(Path(rising, self.baseline, self.step, shares, self.sign))

    @abstractmethod
    def _values(self, case: Case, answers: Answers) -> Tensor:
        """(B, K) what is drawn over the shares."""

    def _along(self, case: Case, rising: bool) -> Curve:
        walk = self._walk(case, rising)
        fractions, values, density = walk.fractions, self._values(case, walk.answers), walk.density
        changed: tuple[int | None, int | None] = (1, None)
        if self.baseline is None:  # the whole picture, which costs no pass of its own
            whole = self._values(case, case.clean)
            end, full = fractions.new_full((1,), float(rising)), torch.ones_like(whole)
            parts = [(fractions, values, density), (end, whole, full)]
            first, last = parts if rising else reversed(parts)
            changed = (None, -1) if rising else changed
            fractions, values, density = (torch.cat(pair, -1) for pair in zip(first, last))
        return Curve(fractions, values, density, rising, walk.pictures, changed, self.answer)


class _Accuracy(_Tokens):
    answer = "accuracy"

    def _values(self, case: Case, answers: Answers) -> Tensor:
        return hits(case, answers, self.target)


class _Drop(_Tokens):
    answer = "probability lost"

    def _values(self, case: Case, answers: Answers) -> Tensor:
        return case.clean.probability[self.target] - answers.probability[self.target]


@register("insertion_accuracy", SKIPPLUS, higher_is_better=True, needs=["labels"])
@dataclass(frozen=True)
class InsertionAccuracy(_Accuracy):
    """Accuracy when only the highest patches are there."""

    target: Whose = "label"

    def curve(self, case: Case) -> Curve:
        return self._along(case, rising=True)


@register("deletion_accuracy", SKIPPLUS, higher_is_better=False, needs=["labels"])
@dataclass(frozen=True)
class DeletionAccuracy(_Accuracy):
    """Accuracy when the highest patches are taken away."""

    target: Whose = "label"

    def curve(self, case: Case) -> Curve:
        return self._along(case, rising=False)


@register("insertion_aopc", SKIPPLUS, higher_is_better=False)
@dataclass(frozen=True)
class InsertionAOPC(_Drop):
    """How much of the probability is missing when only the highest patches are there."""

    def curve(self, case: Case) -> Curve:
        return self._along(case, rising=True)


@register("deletion_aopc", "Samek et al. 2017, SkipPLUS", higher_is_better=True)
@dataclass(frozen=True)
class DeletionAOPC(_Drop):
    """How much of the probability goes when the highest patches are taken away."""

    def curve(self, case: Case) -> Curve:
        return self._along(case, rising=False)


@register("lodds", "Shrikumar et al. 2017, SkipPLUS", higher_is_better=True)
@dataclass(frozen=True)
class LogOdds(_Tokens):
    """How much of the log-probability goes when the highest patches are taken away."""

    answer = "log-probability lost"

    def _values(self, case: Case, answers: Answers) -> Tensor:
        whole, left = (x.probability[self.target].clamp_min(1e-12).log() for x in (case.clean, answers))
        return whole - left

    def curve(self, case: Case) -> Curve:
        return self._along(case, rising=False)


@dataclass(frozen=True)
class _Eraser(Metric):
    """The mean drop of the probability over some shares of patches, at least one patch each.

    Attributes:
        shares: The shares.
        baseline: What stands where patches are hidden; None takes their tokens away.
        sign: What of the map orders the patches.
        target: The class whose probability counts.
    """

    shares: tuple[float, ...] = number(ERASER, low=0, high=1, most=1000)
    baseline: Baseline | None = None
    sign: Sign = "signed"
    target: Whose = "explained"

    def _drop(self, case: Case, rising: bool) -> Tensor:
        rows, columns = case.view.grid_at(case.size)
        shares = tuple(max(share, 1 / (rows * columns)) for share in self.shares)
        walk = case.walk(Path(rising, self.baseline, None, shares, self.sign))
        return (case.clean.probability[self.target] - walk.answers.probability[self.target]).mean(1)


@register("comprehensiveness", "DeYoung et al. 2020 (ERASER)", higher_is_better=True)
@dataclass(frozen=True)
class Comprehensiveness(_Eraser):
    """How much of the probability goes with the highest patches, over 1, 5, 10, 20 and 50 % of them."""

    def measure(self, case: Case) -> Tensor:
        return self._drop(case, rising=False)


@register("sufficiency", "DeYoung et al. 2020 (ERASER)", higher_is_better=False)
@dataclass(frozen=True)
class Sufficiency(_Eraser):
    """How much of the probability is missing with the highest patches alone, over 1, 5, 10, 20 and 50 % of them."""

    def measure(self, case: Case) -> Tensor:
        return self._drop(case, rising=True)
