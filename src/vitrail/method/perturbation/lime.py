"""LIME: a linear model of what the classifier answers when cells are hidden at random."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.events import Passes
from vitrail.fields import PASSES, number, random_seed
from vitrail.method.base import State, register
from vitrail.method.batch import Batch
from vitrail.method.cells import FINEST, Cells
from vitrail.model import View
from vitrail.perturb import Baseline, Score, ZeroNorm


@register("lime", paper="Ribeiro et al. 2016", cost="1001 forwards", needs=())
@dataclass(frozen=True)
class LIME(Cells):
    """Slopes of a ridge regression of the score on which cells are shown, each with probability one half.

    A sample that shows a share q of the cells weighs exp(-d² / (2 width²)), d = 1 - sqrt(q) its cosine distance from
    the whole picture. Cells take the place of the paper's superpixels.

    Attributes:
        samples: How many.
        grid: Rows and columns of cells; the model's own grid by default.
        width: Of the kernel; the smaller, the more the samples near the whole picture count.
        ridge: Penalty on the squared slopes; the intercept is free.
        baseline: What stands where a cell is hidden.
        score: What of the answer counts.
        seed: Another seed draws other samples.
    """

    half = True

    samples: int = number(1000, low=1, high=100_000, cost=PASSES)
    grid: int | None = number(None, low=1, high=FINEST)
    width: float = number(0.25, above=0, high=1000)
    ridge: float = number(1.0, above=0, high=1_000_000_000)
    baseline: Baseline = ZeroNorm()
    score: Score = "probability"
    seed: int = random_seed()

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(self.samples + 1)

    @property
    def signed(self) -> bool:
        return True

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        ask = self.asking(view, batches, self.samples)
        shown = self.drawn(batches[0], lambda generator: coins(self.samples, ask.canvas.cells, generator))
        slopes = ridge_slopes(shown, ask.each(shown), self.width, self.ridge)
        return self.laid_out(view, batches[0], slopes)


def coins(samples: int, cells: int, generator: torch.Generator) -> Tensor:
    """(samples, cells): True or False, with the same probability."""
    return torch.rand(samples, cells, generator=generator) < 0.5


def ridge_slopes(shown: Tensor, scores: Tensor, width: float, ridge: float) -> Tensor:
    """The weighted ridge regression of scores on shown cells.

    Args:
        shown: (B, K, N) boolean, the cells that each sample shows.
        scores: (B, K, targets) their scores.
        width: Of the kernel.
        ridge: Penalty.

    Returns:
        (B, N, targets).
    """
    x, y = shown.double(), scores.double()
    distance = 1 - x.mean(-1, keepdim=True).sqrt()
    weights = torch.exp(-((distance / width) ** 2) / 2)
    share = weights / weights.sum(1, keepdim=True)
    x, y = x - (share * x).sum(1, keepdim=True), y - (share * y).sum(1, keepdim=True)
    weighted = (weights * x).transpose(1, 2)
    normal = weighted @ x + ridge * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    slopes = torch.cholesky_solve(weighted @ y, torch.linalg.cholesky(normal))
    return slopes.to(scores.dtype)
