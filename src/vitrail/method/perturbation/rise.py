"""RISE: random, soft masks, each weighted by what the model answers to the picture seen through it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.events import Passes
from vitrail.fields import PASSES, number, random_seed
from vitrail.method.base import MAP, SharedPasses, State, register
from vitrail.method.batch import Batch
from vitrail.method.cells import FINEST, asking, filled
from vitrail.model import View, full
from vitrail.perturb import Baseline, PixelCanvas, Responder, Score, ZeroNorm


@register("rise", paper="Petsiuk et al. 2018", cost="4001 forwards", needs=())
@dataclass(frozen=True)
class RISE(SharedPasses):
    """S = sum over masks M of p(image seen through M) M / (masks * keep).

    A mask is a grid of cells, each shown with probability ``keep``, stretched bilinearly and shifted at random by less
    than a cell. Masks are drawn from the seed and the input size alone: all images are seen through the same ones.

    Attributes:
        masks: How many.
        grid: Rows and columns of cells in a mask.
        keep: The share of cells shown.
        baseline: What stands where nothing is shown.
        score: What of the answer counts.
        seed: Another seed draws other masks.
    """

    masks: int = number(4000, low=1, high=100_000, cost=PASSES)
    grid: int = number(8, low=2, high=FINEST)
    keep: float = number(0.1, above=0, below=1)
    baseline: Baseline = ZeroNorm()
    score: Score = "probability"
    seed: int = random_seed()

    pixels = True
    half = True

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(self.masks + 1)

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        batch = batches[0]
        fill = filled(view, batches, self.baseline)
        ask = asking(PixelCanvas(view, batch.images, [fill]), batches, self.score)
        drawn = draw_masks(self.masks, self.grid, self.keep, batch.size, self.seed)
        grids, shifts = (numbers.to(view.device) for numbers in drawn)
        total = full(batch.images.new_zeros(len(batches), len(batch), *batch.size))
        first = 0
        while first < self.masks:
            part = slice(first, first + max(1, ask.most // len(batch)))
            total += seen_through(ask, stretched(grids[part], shifts[part], batch.size, total.dtype))
            first = part.stop
        return [{MAP: own} for own in total / (self.masks * self.keep)]


def draw_masks(count: int, grid: int, keep: float, size: tuple[int, int], seed: int) -> tuple[Tensor, Tensor]:
    """(N, grid, grid) the cells each mask shows, and (N, 2) how far it is shifted, down and right."""
    generator = torch.Generator().manual_seed(seed)
    grids = torch.rand(count, grid, grid, generator=generator) < keep
    shifts = [torch.randint(math.ceil(length / grid), (count,), generator=generator) for length in size]
    return grids, torch.stack(shifts, 1)


def stretched(grids: Tensor, shifts: Tensor, size: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    """(N, grid, grid) and (N, 2), as `draw_masks` gives them -> (N, H, W) masks between 0 and 1."""
    sides = []
    for length, shift in zip(size, shifts.T):
        pixels = shift[:, None] + torch.arange(length, device=shift.device)
        sides.append(bilinear(grids.shape[-1], length, shift.device)[pixels].to(dtype))
    with torch.autocast(grids.device.type, enabled=False):
        return sides[0] @ grids.to(dtype) @ sides[1].transpose(1, 2)


def bilinear(cells: int, length: int, device: torch.device) -> Tensor:
    """((cells + 1) * ceil(length / cells), cells): how much each pixel of a stretched side takes from each cell.

    Beyond the centres of the outermost cells the cells are mirrored, those two not repeated: as in the authors' code.
    """
    pixels = (cells + 1) * math.ceil(length / cells)
    place = ((torch.arange(pixels, dtype=torch.float64, device=device) + 0.5) * cells / pixels - 0.5).abs()
    place = (cells - 1) - (cells - 1 - place).abs()
    return (1 - (place[:, None] - torch.arange(cells, device=device)).abs()).clamp_min(0)


def seen_through(ask: Responder, masks: Tensor) -> Tensor:
    """(N, H, W) masks -> (targets, B, H, W): their sum, each weighted by the score of the image seen through it.

    Args:
        ask: Answers about pixels.
        masks: The masks; all images are seen through all of them.
    """
    flat = masks.flatten(1)
    scores = ask.each(flat)
    with torch.autocast(masks.device.type, enabled=False):
        total: Tensor = scores.movedim(2, 0).to(flat.dtype) @ flat
    return total.view(*total.shape[:2], *masks.shape[1:])
