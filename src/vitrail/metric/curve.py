"""Insertion and deletion: the model's answer while a picture appears, or goes, the highest points of a map first."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.model import Target, TargetLike, View, load, resolve
from vitrail.perturb import Baseline, PixelCanvas, Responder, Score, order_of, ranks_of
from vitrail.perturb import baseline as baseline_of

AreaRule = Literal["trapezoid", "mean"]
"""``trapezoid`` over all points, divided by the width (RISE); ``mean`` of all points but the first (AHA, TIS)."""


@dataclass(frozen=True, eq=False)
class Curve:
    """The answers along an order of pixels, for B images at K + 1 steps.

    Attributes:
        fractions: (K + 1,) the share of pixels shown (insertion) or removed (deletion).
        responses: (B, K + 1) the model's answers.
        density: (B, K + 1) the share of the map's absolute values in the pixels shown, or still there.
        rising: Whether the picture appears (insertion) or goes (deletion).
    """

    fractions: Tensor
    responses: Tensor
    density: Tensor
    rising: bool

    def area(self, rule: AreaRule = "trapezoid") -> Tensor:
        """(B,) the area under the curve."""
        if rule == "mean":
            return self.responses[:, 1:].mean(1)
        return torch.trapezoid(self.responses, self.fractions, dim=1) / (self.fractions[-1] - self.fractions[0])

    def monotone(self) -> "Curve":
        """The responses between those of the empty and the whole picture, from 0 to 1, and never turning back (MDA).

        Where the whole picture answers no more than the empty one there is no way between them: a straight line.
        """
        first, last = self.responses[:, :1], self.responses[:, -1:]
        nothing, whole = (first, last) if self.rising else (last, first)
        shares = ((self.responses - nothing) / (whole - nothing)).clamp(0, 1)
        shares = (shares.cummax(1) if self.rising else shares.cummin(1)).values
        line = self.fractions if self.rising else 1 - self.fractions
        return replace(self, responses=torch.where(whole > nothing, shares, line))

    def aligned(self) -> "Curve":
        """Magnitude-aligned scores (MAS): the monotone responses, worsened by their distance from the density."""
        responses = self.monotone().responses
        penalty = (responses - self.density).abs()
        scores = (responses - penalty if self.rising else responses + penalty).clamp(0, 1)
        low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
        line = self.fractions if self.rising else 1 - self.fractions
        return replace(self, responses=torch.where(high > low, (scores - low) / (high - low), line))


def insertion(model: Any, images: Tensor, maps: Tensor, target: TargetLike = None, **how: Any) -> Curve:
    """The answers while the picture appears over a blurred one, the highest points first. Higher is better.

    Args:
        model: A module, a view or a name.
        images: (B, 3, H, W) model inputs.
        maps: (B, H, W), enlarged to the images' size; of equal points the upper left one comes first.
        target: What was explained, the predicted class by default.
        how: ``baseline="rise_blur(11, 5)"``, ``step`` pixels at a time (a 224th of them by default), ``score``.

    Example:
        >>> import vitrail
        >>> view = vitrail.load("demo")
        >>> images = view.preprocess.batch([vitrail.scenes.make(7).pil])
        >>> found = vitrail.explain(view, images, "decompx")
        >>> insertion(view, images, found.upsample(), step=5184).responses.shape
        torch.Size([1, 5])
    """
    return _curve(model, images, maps, target, True, **({"baseline": "rise_blur(11, 5)"} | how))


def deletion(model: Any, images: Tensor, maps: Tensor, target: TargetLike = None, **how: Any) -> Curve:
    """The answers while the picture goes, the highest points first. Lower is better.

    Args:
        model: A module, a view or a name.
        images: (B, 3, H, W) model inputs.
        maps: (B, H, W), enlarged to the images' size; of equal points the upper left one goes first.
        target: What was explained, the predicted class by default.
        how: ``baseline="zero_norm"``, ``step`` pixels at a time (a 224th of them by default), ``score``.
    """
    return _curve(model, images, maps, target, False, **({"baseline": "zero_norm"} | how))


def _curve(
    model: Any,
    images: Tensor,
    maps: Tensor,
    target: TargetLike,
    rising: bool,
    baseline: str | Baseline,
    step: int | None = None,
    score: Score = "probability",
) -> Curve:
    view, wanted = resolve(load(model), target, len(images))
    images = images.to(view.device, view.dtype)
    if maps.shape != (len(images), *images.shape[2:]):
        raise InputError(
            f"there must be one map of {images.shape[2]} x {images.shape[3]} an image, but {tuple(maps.shape)} was "
            "given; enlarge maps with Explanation.upsample"
        )
    pixels = images[0, 0].numel()
    step = -(-pixels // 224) if step is None else step
    if step < 1:
        raise InputError(f"a step must be 1 pixel or more, but {step} was given")
    wanted = _predicted(view, images) if wanted is None else wanted
    fill = baseline_of(baseline).fill(view, images, wanted)
    ask = Responder(PixelCanvas(view, images, [fill]), wanted, score)
    flat = maps.to(view.device).flatten(1)
    order = order_of(flat)
    ranks = ranks_of(order)
    counts = torch.arange(0, pixels + step, step, device=view.device).clamp_max(pixels)
    which = torch.arange(len(images), device=view.device).repeat_interleave(len(counts))
    k = counts.repeat(len(images))[:, None]
    responses = ask(which, lambda part: (ranks[which[part]] < k[part]) == rising)
    mass = flat.abs().double().gather(1, order).cumsum(1)
    share = torch.cat([mass.new_zeros(len(mass), 1), mass / mass[:, -1:].clamp_min(1e-300)], 1)[:, counts]
    return Curve(
        fractions=counts.double() / pixels,
        responses=responses.view(len(images), -1).double(),
        density=share if rising else 1 - share,
        rising=rising,
    )


def _predicted(view: View, images: Tensor) -> Target:
    with torch.no_grad():
        return Target(view.logits(images).argmax(1))
