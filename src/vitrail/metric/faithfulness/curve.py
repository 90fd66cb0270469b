"""Insertion, deletion and their kin: show or hide a picture in the order of a map, and measure the curve of answers."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from vitrail.errors import InputError
from vitrail.fields import number, unseen
from vitrail.metric.base import Metric, register
from vitrail.metric.case import Answers, Case, Enlarge, Path, Sign, Whose
from vitrail.metric.similarity import spearman
from vitrail.perturb import Baseline, BlackPixel, RiseBlur, Score, ZeroNorm

AreaRule = Literal["trapezoid", "mean", "integral"]
"""``trapezoid`` over all points, divided by the width (RISE); ``mean`` of all points but the first (AHA, TIS);
``integral`` the trapezoid as it is (SkipPLUS)."""

TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, eq=False)
class Curve:
    """The answers along an order of pixels or patches, for B images at K points.

    Attributes:
        fractions: (K,) the share of pixels shown (insertion) or removed (deletion).
        responses: (B, K) the model's answers.
        density: (B, K) the share of the map in the pixels shown, or still there.
        rising: Whether the picture appears (insertion) or goes (deletion).
        pictures: A point's number -> (B, 3, H, W) what the model saw there, where that can still be told.
        changed: First and last point of those that the rule ``mean`` counts: all but the one where nothing is changed.
        answer: What the answers are, in words.
    """

    fractions: Tensor
    responses: Tensor
    density: Tensor
    rising: bool
    pictures: Callable[[int], Tensor] | None = None
    changed: tuple[int | None, int | None] = (1, None)
    answer: str = "probability"

    def __len__(self) -> int:
        return len(self.responses)

    def area(self, rule: AreaRule = "trapezoid") -> Tensor:
        """(B,) the area under the curve."""
        if rule == "mean":
            return self.responses[:, slice(*self.changed)].mean(1)
        found = torch.trapezoid(self.responses, self.fractions, dim=1)
        return found if rule == "integral" else found / (self.fractions[-1] - self.fractions[0])

    def monotone(self) -> "Curve":
        """The responses between those of the empty and the whole picture, from 0 to 1, and never turning back (MDA).

        Where the whole picture answers no more than the empty one there is no way between them: a straight line.
        """
        first, last = self.responses[:, :1], self.responses[:, -1:]
        nothing, whole = (first, last) if self.rising else (last, first)
        shares = ((self.responses - nothing) / (whole - nothing)).clamp(0, 1)
        shares = (shares.cummax(1) if self.rising else shares.cummin(1)).values
        line = self.fractions if self.rising else 1 - self.fractions
        answer = f"{self.answer}, normalised and never turning back"
        return replace(self, responses=torch.where(whole > nothing, shares, line), answer=answer)

    def penalty(self) -> Tensor:
        """(B, K): how far the monotone responses lie from the density, MAS's alignment penalty."""
        return (self.monotone().responses - self.density).abs()

    def aligned(self, compat: Literal["paper", "authors"] = "authors") -> "Curve":
        """Magnitude-aligned scores (MAS): the monotone responses, worsened by their distance from the density.

        Args:
            compat: ``paper`` leaves them at that, between -1 and 2; ``authors`` clips them to 0..1 and then stretches
                each curve to 0..1, as the published code does.
        """
        responses, penalty = self.monotone().responses, self.penalty()
        scores = responses - penalty if self.rising else responses + penalty
        answer = f"{self.answer}, normalised and aligned with the map"
        if compat == "paper":
            return replace(self, responses=scores, answer=answer)
        scores = scores.clamp(0, 1)
        low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
        line = self.fractions if self.rising else 1 - self.fractions
        return replace(self, responses=torch.where(high > low, (scores - low) / (high - low), line), answer=answer)

    def draw(
        self,
        i: int = 0,
        *,
        title: str = "",
        at: Sequence[float] = (),
        restore: Callable[[Tensor], Image.Image] | None = None,
    ) -> Image.Image:
        """Image ``i``: the monotone response, the map's density and the penalty between them (MDA figure 1d).

        Args:
            i: Which of the images.
            title: Above the drawing.
            at: Shares of the picture at which what the model saw is drawn below the curve.
            restore: Makes a picture of a model input, such as ``view.preprocess.restore``; needed with ``at``.
        """
        from vitrail import show

        if at and (self.pictures is None or restore is None):
            raise InputError("pictures along a curve need a fresh curve, not a stored one, and a way to restore them")
        seen = []
        for share in at:
            k = int((self.fractions - share).abs().argmin())
            assert self.pictures is not None
            assert restore is not None
            seen.append((float(self.fractions[k]), restore(self.pictures(k)[i])))
        return show.response_curve(
            self.fractions.cpu().numpy(),
            self.monotone().responses[i].cpu().numpy(),
            self.density[i].cpu().numpy(),
            title=title,
            across=f"share of the picture {'shown' if self.rising else 'removed'}",
            pictures=seen,
        )

    def stored(self) -> "Curve":
        """The numbers alone, on the CPU."""
        numbers = {name: getattr(self, name).cpu() for name in ("fractions", "responses", "density")}
        return replace(self, **numbers, pictures=None)


def joined(curves: Sequence[Curve]) -> Curve:
    """The curves of several batches of images as one."""
    first = curves[0]
    return replace(
        first,
        responses=torch.cat([curve.responses for curve in curves]),
        density=torch.cat([curve.density for curve in curves]),
        pictures=None,
    )


class CurveMetric(Metric):
    """A metric that is the area under a curve."""

    area: AreaRule

    @abstractmethod
    def curve(self, case: Case) -> Curve:
        """The curve of every image."""

    def measure(self, case: Case) -> Tensor:
        return self.curve(case).area(self.area)


@dataclass(frozen=True)
class _Pixels(CurveMetric):
    """The target's answer along a path of pixels.

    Attributes:
        baseline: What the picture appears over, or leaves behind.
        step: Pixels at a time, a 224th of them by default.
        area: How the curve becomes one number.
        sign: What of the map orders the pixels.
        target: The class whose answer counts.
        score: Its probability or its logit.
        enlarge: How the map gets the picture's size.
    """

    baseline: Baseline = ZeroNorm()
    step: int | None = number(None, low=1, high=10**9)
    area: AreaRule = unseen("trapezoid", integral="a path over the whole picture is 1 wide: the trapezoid's area")
    sign: Sign = "signed"
    target: Whose = "explained"
    score: Score = "probability"
    enlarge: Enlarge = "auto"

    def _along(self, case: Case, rising: bool) -> Curve:
        path = Path(rising, self.baseline, self.step, sign=self.sign, enlarge=self.enlarge)
        return curve_along(case, path, self.target, self.score)


def curve_along(case: Case, path: Path, target: Whose, score: Score) -> Curve:
    """What the model says of one class along a path."""
    case.classes(target)
    walk = case.walk(path)
    answers = walk.answers.probability if score == "probability" else walk.answers.logit
    own = case.classes(target).function is not None or case.view.num_classes == 1  # a user's function, or a likeness
    answer = "answer" if own else score
    return Curve(walk.fractions, answers[target], walk.density, path.rising, walk.pictures, answer=answer)


@register("insertion", "Petsiuk et al. 2018", higher_is_better=True)
@dataclass(frozen=True)
class Insertion(_Pixels):
    """The target's answer while the picture appears, the highest points of the map first.

    Attributes:
        baseline: What it appears over.
        step: Pixels at a time, a 224th of them by default.
        area: How the curve becomes one number.
        sign: What of the map orders the pixels.
        target: The class whose answer counts.
        score: Its probability or its logit.
        enlarge: How the map gets the picture's size.
        monotone: From 0 to 1, never turning back, as MDA's tables have it.
    """

    baseline: Baseline = RiseBlur()
    monotone: bool = False

    def curve(self, case: Case) -> Curve:
        curve = self._along(case, rising=True)
        return curve.monotone() if self.monotone else curve


@register("deletion", "Petsiuk et al. 2018", higher_is_better=False)
@dataclass(frozen=True)
class Deletion(_Pixels):
    """The target's answer while the picture goes, the highest points of the map first.

    Attributes:
        baseline: What is left behind.
        step: Pixels at a time, a 224th of them by default.
        area: How the curve becomes one number.
        sign: What of the map orders the pixels.
        target: The class whose answer counts.
        score: Its probability or its logit.
        enlarge: How the map gets the picture's size.
        monotone: From 1 to 0, never turning back, as MDA's tables have it.
    """

    monotone: bool = False

    def curve(self, case: Case) -> Curve:
        curve = self._along(case, rising=False)
        return curve.monotone() if self.monotone else curve


@register("mas_insertion", "Walker et al. 2024 (MAS)", higher_is_better=True)
@dataclass(frozen=True)
class MASInsertion(_Pixels):
    """Insertion, made monotone, minus its distance from the share of the map shown so far.

    Attributes:
        baseline: What it appears over.
        step: Pixels at a time, a 224th of them by default.
        area: How the curve becomes one number.
        sign: What of the map orders the pixels, and is weighed.
        target: The class whose answer counts.
        score: Its probability or its logit.
        enlarge: How the map gets the picture's size.
        compat: ``authors`` clips the scores to 0..1 and stretches each curve to 0..1, as the code behind the published
            numbers does; ``paper`` does neither, as the formula has it.
    """

    baseline: Baseline = RiseBlur()
    compat: Literal["paper", "authors"] = "authors"

    def curve(self, case: Case) -> Curve:
        return self._along(case, rising=True).aligned(self.compat)


@register("mas_deletion", "Walker et al. 2024 (MAS)", higher_is_better=False)
@dataclass(frozen=True)
class MASDeletion(_Pixels):
    """Deletion, made monotone, plus its distance from the share of the map that is left.

    Attributes:
        baseline: What is left behind.
        step: Pixels at a time, a 224th of them by default.
        area: How the curve becomes one number.
        sign: What of the map orders the pixels, and is weighed.
        target: The class whose answer counts.
        score: Its probability or its logit.
        enlarge: How the map gets the picture's size.
        compat: ``authors`` clips the scores to 0..1 and stretches each curve to 0..1, as the code behind the published
            numbers does; ``paper`` does neither, as the formula has it.
    """

    compat: Literal["paper", "authors"] = "authors"

    def curve(self, case: Case) -> Curve:
        return self._along(case, rising=False).aligned(self.compat)


@register("monotonicity", "Walker et al. 2025 (MDA)", higher_is_better=True)
@dataclass(frozen=True)
class Monotonicity(_Pixels):
    """Spearman's correlation of the answers along insertion (or, turned, deletion) with the pixels shown.

    Attributes:
        baseline: What the picture appears over, or leaves behind.
        way: Insertion, MDA's positive form, or deletion, its negative one.
    """

    baseline: Baseline = RiseBlur()
    way: Literal["insertion", "deletion"] = "insertion"

    def __post_init__(self) -> None:
        self.refuse_unread(f"way={self.way}", "is a correlation, not an area", ["area"])

    def curve(self, case: Case) -> Curve:
        return self._along(case, rising=self.way == "insertion")

    def measure(self, case: Case) -> Tensor:
        curve = self.curve(case)
        line = curve.fractions if curve.rising else -curve.fractions
        return spearman(curve.responses, line.expand_as(curve.responses))


@dataclass(frozen=True)
class _Accuracy(CurveMetric):
    """Whether the model still gives a class while the picture goes.

    Attributes:
        baseline: What it is painted over with.
        shares: The shares of the pixels that are painted over.
        area: How the curve becomes one number.
        sign: What of the map orders the pixels.
        target: The class.
        enlarge: How the map gets the picture's size.
    """

    baseline: Baseline = BlackPixel()
    shares: tuple[float, ...] = number(TENTHS, low=0, high=1, most=1000)
    area: AreaRule = "trapezoid"
    sign: Sign = "signed"
    target: Whose = "label"
    enlarge: Enlarge = "auto"

    def _along(self, case: Case, lowest_first: bool) -> Curve:
        path = Path(False, self.baseline, None, self.shares, self.sign, lowest_first, self.enlarge)
        walk = case.walk(path)
        found = hits(case, walk.answers, self.target)
        return Curve(walk.fractions, found, walk.density, False, walk.pictures, answer="accuracy")


def hits(case: Case, answers: Answers, target: Whose) -> Tensor:
    """(B, K): 1 where the model gives the class, 0 where it does not."""
    classes = case.classes(target).classes
    if classes is None:
        raise InputError(
            "accuracy needs a class, but a function of the logits was explained; use a metric with (target=label)"
        )
    return (answers.winner == classes[:, None]).double()


@register("positive_perturbation", "Chefer et al. 2021", higher_is_better=False, needs=["labels"])
@dataclass(frozen=True)
class PositivePerturbation(_Accuracy):
    """Accuracy while the highest points of the map are painted black, a tenth to nine tenths of the picture."""

    def curve(self, case: Case) -> Curve:
        return self._along(case, lowest_first=False)


@register("negative_perturbation", "Chefer et al. 2021", higher_is_better=True, needs=["labels"])
@dataclass(frozen=True)
class NegativePerturbation(_Accuracy):
    """Accuracy while the lowest points of the map are painted black, a tenth to nine tenths of the picture."""

    def curve(self, case: Case) -> Curve:
        return self._along(case, lowest_first=True)
