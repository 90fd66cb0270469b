"""Less is more: regions in the order in which a submodular function wants them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import number
from vitrail.method.base import Method, register
from vitrail.method.batch import Batch
from vitrail.method.cells import filled
from vitrail.model import Target, View, full, representation, widest
from vitrail.perturb import Baseline, BlackPixel, Responder, cell_canvas, grid_labels, order_of, ranks_of


@register(
    "less_is_more",
    paper="Chen et al. 2024",
    cost="regions x (regions + 2) forwards",
    needs=(),
)
@dataclass(frozen=True)
class LessIsMore(Method):
    """Regions in the order of a greedy search: each time the one that does most for the regions already chosen.

    What a set of regions is worth is a sum of four parts: how confident the model is on the set alone (1 - entropy /
    log classes); how different its regions are (the sum of each one's angle / pi to the nearest other one, between the
    model's representations of single regions); p(target) on the set alone; 1 - p(target) on the rest. The map tells the
    order: 1 for the region chosen first, then less and less.

    The authors cut images into superpixels; here regions are the cells of a grid, made of whole patches.

    Attributes:
        regions: Rows and columns of the grid of regions, never finer than the model's own.
        weights: Of confidence, difference, p on the set and 1 - p on the rest.
        baseline: What hides the other regions.
    """

    regions: tuple[int, int] = number((7, 7), low=1, high=32)
    weights: tuple[float, float, float, float] = number((0.0, 0.05, 1.0, 1.0), low=0, high=1_000_000)
    baseline: Baseline = BlackPixel()

    def __post_init__(self) -> None:
        if self.regions == (1, 1):
            raise InputError("less_is_more puts at least 2 regions in order, but regions=(1, 1) was given")
        if max(self.weights) == 0:
            raise InputError(f"less_is_more needs a weight above 0, but weights={self.weights} was given")

    def grid(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of regions for inputs of ``size``."""
        rows, columns = view.grid_at(size)
        return min(self.regions[0], rows), min(self.regions[1], columns)

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        regions = math.prod(self.grid(view, size))
        asked = bool(self.weights[0] or self.weights[2]) + bool(self.weights[3])
        # Sets of 1 to all but one region, each with every region that is left, once or twice; and the regions alone.
        return Passes(asked * (regions * (regions + 1) // 2 - 1) + regions * bool(self.weights[1]) + 1)

    def maps(self, view: View, batch: Batch) -> Tensor:
        order = self.order(view, batch)
        ranks = ranks_of(order).to(full(batch.images).dtype)
        return (1 - ranks / order.shape[1])[:, self._labels(view, batch)]

    def _labels(self, view: View, batch: Batch) -> Tensor:
        """(rows, columns): the region of every cell of the model's own grid."""
        return grid_labels(view.grid_at(batch.size), self.grid(view, batch.size)).to(batch.images.device)

    def order(self, view: View, batch: Batch) -> Tensor:
        """(B, regions): the regions, the first one chosen first."""
        target, cells = batch.settle(view), self._labels(view, batch).flatten()
        fill = filled(view, [batch], self.baseline)
        count = math.prod(self.grid(view, batch.size))
        angles = self._angles(view, batch, fill, count) if self.weights[1] else None
        canvas = cell_canvas(view, batch.images, [fill])
        alone = Responder(canvas, target, read=self._alone(target.to(view.device)))
        rest = Responder(canvas, target, heard=[batch.heard])
        alone.heard = () if self.weights[3] else (batch.heard,)
        chosen = torch.zeros(len(batch), count, dtype=torch.bool, device=cells.device)
        order: list[Tensor] = []
        for left in range(count, 1, -1):
            tried = (~chosen).nonzero()[:, 1].view(len(batch), left)
            sets = (chosen[:, None] | F.one_hot(tried, count).bool())[:, :, cells]
            worth = torch.zeros((), device=cells.device)
            if angles is not None:
                worth = worth + self.weights[1] * differences(angles, chosen, tried)
            if self.weights[0] or self.weights[2]:
                worth = worth + alone.each(sets)
            if self.weights[3]:
                worth = worth - self.weights[3] * rest.each(~sets)
            best = tried.gather(1, order_of(worth)[:, :1])
            chosen.scatter_(1, best, True)
            order.append(best)
        return torch.cat([*order, (~chosen).nonzero()[:, 1:]], 1)

    def _alone(self, target: Target) -> Callable[[Tensor, Tensor], Tensor]:
        """What a set of regions is worth by itself: weighted confidence and probability."""

        def read(logits: Tensor, which: Tensor) -> Tensor:
            worth = self.weights[2] * target.take(which).probability(logits.to(widest(logits.device)))
            if not self.weights[0]:
                return worth
            entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
            certainty = 1 - entropy / math.log(max(2, logits.shape[1]))
            return worth + self.weights[0] * certainty

        return read

    def _angles(self, view: View, batch: Batch, fill: Tensor, count: int) -> Tensor:
        """(B, regions, regions): the angles / pi between what the model makes of single regions."""
        pixels = self._labels(view, batch).flatten()[grid_labels(batch.size, view.grid_at(batch.size)).to(fill.device)]

        def single(part: slice) -> Tensor:
            shown = torch.arange(count, device=fill.device)[part, None, None, None, None] == pixels
            images = torch.where(shown, batch.images, fill).flatten(0, 1)
            view.meter.begin(len(images))
            seen = full(representation(view, images))
            return seen.view(-1, len(batch), seen.shape[1])

        seen = F.normalize(torch.cat(list(batch.in_parts(count, single))).transpose(0, 1), dim=2)
        angles: Tensor = (seen @ seen.transpose(1, 2)).clamp(-1, 1).acos()
        return angles / math.pi


def differences(angles: Tensor, chosen: Tensor, tried: Tensor) -> Tensor:
    """How different the regions of a set are: the sum of each one's angle to the nearest other one.

    Args:
        angles: (B, regions, regions).
        chosen: (B, regions) boolean, the regions that all sets of an image have.
        tried: (B, K) the one that each set has besides.

    Returns:
        (B, K), zero for sets of one.
    """
    regions = angles.shape[1]
    itself = torch.eye(regions, dtype=torch.bool, device=angles.device)
    before = angles.masked_fill(itself | ~chosen[:, None], torch.inf).amin(2)
    to_new = angles.gather(1, tried[:, :, None].expand(-1, -1, regions)).masked_fill(~chosen[:, None], torch.inf)
    nearest = torch.minimum(before[:, None], to_new)
    sums = torch.where(chosen[:, None], nearest, 0).sum(2) + to_new.amin(2)
    return torch.where(chosen.any(1, keepdim=True), sums, 0)
