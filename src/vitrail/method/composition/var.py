"""VAR: attributions as distributions over classes; places that speak for other classes as much are set to zero."""

import re
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import InputError, option
from vitrail.events import Passes
from vitrail.fields import number, value
from vitrail.method.base import Method, SharedPasses, State, register
from vitrail.method.batch import Batch, clean_logits
from vitrail.method.composition.plus import SkipPlus
from vitrail.method.enlargement import Enlargement
from vitrail.model import Target, View, class_index, full, widest


@register(
    "var",
    paper="Now you see Me! (VAR), under review",
    cost="K x the base; bases of gradients share their forward passes",
    needs=(),
)
@dataclass(frozen=True)
class VAR(Method):
    """The base map where the target's share of the attributions is above chance, weighted by that share.

    At every place the K class maps are turned into distributions over the classes, one for each temperature, and
    averaged. The target's map is multiplied by its share, and set to zero where the share is not above 1 / K.

    Attributes:
        base: The method whose class maps are compared.
        classes: Who competes: ``top5+worst`` (the five most probable classes, or another number of them, and the least
            probable one; fewer where the model has fewer), ``best_worst``, ``present`` (the classes that the picture
            shows, the target's `rivals`), or class numbers and names such as ``(3, wolf, 'arctic fox')``. The target
            always takes part; where it is alone there is nothing to compare, and the base map stays.
        temperatures: The softmax temperatures that are averaged over.
        normalise: ``none`` as in the paper; ``joint_absmax`` divides all class maps of an image by their common largest
            absolute value, ``per_class_absmax`` each by its own.
    """

    base: Method = SkipPlus()
    classes: str | tuple[int | str, ...] = number("top5+worst", low=0, high=10**9, most=1000)
    temperatures: tuple[float, ...] = number((1.0, 5.0, 100.0), above=0, high=1_000_000_000, most=100, stage="render")
    normalise: Literal["none", "joint_absmax", "per_class_absmax"] = value("none", stage="render")

    def __post_init__(self) -> None:
        if not self.base.tells_classes():
            raise InputError(
                f"var compares the maps of several classes, but {self.base.spec} gives the same map for every class; "
                f"use {self.base.spec} by itself, or var over a method that tells classes apart, such as gradcam or ixg"
            )
        if self.classes == "all_targets":
            raise InputError(
                "var(classes=all_targets) would depend on which images are explained together; name the classes "
                "instead, such as (3, 7) or (wolf, 'arctic fox')"
            )
        if isinstance(self.classes, str) and not _WORDS.fullmatch(self.classes):
            raise InputError(
                f"var's classes must be like top5+worst, top3, best_worst, present, (3, 7) or (wolf, 'arctic fox'), "
                f"but {self.classes!r} was given"
            )
        if isinstance(self.classes, tuple) and len(set(self.classes)) < len(self.classes):
            raise InputError(f"var's classes must be different ones, but {self.classes} was given")

    def shape(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        return self.base.shape(view, size)

    @property
    def enlargement(self) -> Enlargement:
        return self.base.enlargement

    def keeps_half(self) -> bool:
        return self.base.keeps_half()

    def tells_classes(self) -> bool:
        return self.base.tells_classes()

    @property
    def signed(self) -> bool:
        return self.base.signed

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        base, classes = self.base.passes(view, size), self._count(view)
        if isinstance(self.base, SharedPasses):  # one set of changed pictures for all classes
            return Passes(base.forwards + 1, base.backwards * classes)
        return Passes(base.forwards, base.backwards * classes)

    def _count(self, view: View) -> int:
        """About how many classes compete."""
        if isinstance(self.classes, tuple):
            return len(self.classes) + 1
        words = _WORDS.fullmatch(self.classes)
        assert words is not None
        most = int(words["top"] or 1) + bool(words["worst"] or self.classes == "best_worst")
        return min(most, view.num_classes)

    def search(self, view: View, batch: Batch) -> State:
        """The maps of all classes that compete, the target's first, and which classes these are."""
        named = self.classes
        classes = named if isinstance(named, str) else tuple(class_index(view, entry) for entry in named)
        with view.remembering(batch.images):
            # A clean pass of the base's own tells the clean logits too, from which the rivals are chosen.
            heats: list[Tensor] = [] if isinstance(self.base, SharedPasses) else [self.base.maps(view, batch)]
            target = batch.settle(view)
            if target.classes is None:
                raise InputError("var compares classes, so its target must be a class, not a function of the logits")
            rivals = competitors(classes, clean_logits(batch), target.classes, target.rivals)
            asked = rivals.clamp_min(0)  # images with fewer rivals ask about class 0 instead, and forget the answer
            targets = [target, *(Target(column) for column in asked.T[1:])]
            heats += self.base.maps_of(view, batch, targets[len(heats) :])
        return {"heats": full(torch.stack(heats, 1)), "classes": rivals.to(heats[0].device)}

    def render(self, state: State) -> Tensor:
        takes_part = (state["classes"] >= 0).T
        return share(state["heats"].transpose(0, 1), takes_part, self.temperatures, self.normalise)


_WORDS = re.compile(r"top(?P<top>[1-9]\d{0,8})(?P<worst>\+worst)?|best_worst|present")


def competitors(
    classes: str | tuple[int, ...], logits: Tensor, target: Tensor, present: Tensor | None = None
) -> Tensor:
    """(B, K) different class numbers, the target first; -1 where an image has fewer.

    Args:
        classes: Who competes, see `VAR`.
        logits: (B, classes) of the clean images.
        target: (B,) the classes explained.
        present: (B, any) other classes that the images show, -1 for none, where they are known.
    """
    count = logits.shape[1]
    if isinstance(classes, tuple):
        wanted = [list(classes)] * len(logits)
    elif classes == "present":
        if present is None:
            raise InputError(
                "var(classes=present) must be told which other classes the pictures show; "
                + option(
                    "rivals",
                    python="give a target with rivals (vitrail.model.Target), or measure with vitrail bench on a "
                    "dataset that knows them",
                )
            )
        wanted = [[c for c in row if c >= 0] for row in present.tolist()]
    else:
        words = _WORDS.fullmatch(classes)
        assert words is not None
        best = logits.topk(min(int(words["top"] or 1), count), 1).indices
        worst = logits.argmin(1, keepdim=True) if words["worst"] or classes == "best_worst" else best[:, :0]
        wanted = torch.cat([best, worst], 1).tolist()
    rows = [list(dict.fromkeys([int(first), *others])) for first, others in zip(target, wanted)]
    most = max(len(row) for row in rows)
    return torch.tensor([row + [-1] * (most - len(row)) for row in rows])


def share(heats: Tensor, takes_part: Tensor, temperatures: tuple[float, ...], normalise: str) -> Tensor:
    """(K, B, h, w) class maps, the target's first, and (K, B) who takes part -> (B, h, w).

    A share q is 1 / S with S the sum of exp((h_k - h_0) / t), and q - 1 / K is -E / (K S) with E = S - K the sum of
    expm1((h_k - h_0) / t). In this form nothing cancels where maps are small and every share lies near 1 / K.
    """
    given = heats.dtype
    heats = heats.to(widest(heats.device))
    absent = ~takes_part[:, :, None, None]
    if normalise != "none":
        size = heats.abs().masked_fill(absent, 0).amax((2, 3), keepdim=True)
        if normalise == "joint_absmax":
            size = size.amax(0, keepdim=True)
        heats = heats / size.clamp_min(torch.finfo(heats.dtype).tiny)
    competing = takes_part.sum(0).view(-1, 1, 1)
    ahead = heats - heats[0]
    target_share, above_chance = torch.zeros_like(heats[0]), torch.zeros_like(heats[0])
    for t in temperatures:
        excess = (ahead / t).expm1().masked_fill(absent, 0).sum(0)
        total = competing + excess
        target_share += 1 / total
        above_chance += torch.where(excess > competing, 1 / total - 1 / competing, -excess / (competing * total))
    # A target without rivals has all of the share, which is no more than chance: it is not in doubt, so it stays.
    kept = (above_chance > 0) | (competing == 1)
    return torch.where(kept, heats[0] * (target_share / len(temperatures)), 0).to(given)
