"""HSIC: how much the score depends, in any way, on whether a cell is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.events import Passes
from vitrail.fields import number, random_seed
from vitrail.method.base import State, register
from vitrail.method.batch import Batch
from vitrail.method.cells import FINEST, Cells
from vitrail.model import View
from vitrail.perturb import Baseline, Score, ZeroNorm

Bandwidth = Literal["distances", "outputs"]


@register("hsic", paper="Novello et al. 2022", cost="501 forwards", needs=())
@dataclass(frozen=True)
class HSIC(Cells):
    """The Hilbert-Schmidt independence criterion between each cell, shown or hidden, and the score.

    tr(K H L H) / (n - 1)², with K[i, j] = 1 where designs i and j agree on the cell and 0 elsewhere (any constant added
    to it drops out) and L[i, j] = exp(-(y_i - y_j)² / (2 s²)). Never negative: a cell that speaks against the class
    depends on it too.

    Attributes:
        designs: Half-hidden pictures.
        grid: Rows and columns of cells; None takes the model's own grid.
        design: How they are drawn: Latin hypercube (the paper; every cell is shown in half of them) or Sobol.
        bandwidth: s, the median of the distances between scores, or, as in the authors' code, of the scores themselves,
            which depends on where their zero lies.
        baseline: What stands where a cell is hidden.
        score: What of the answer counts.
        seed: Another seed draws other designs.
    """

    designs: int = number(500, low=2, high=10_000, cost="would compare {} pictures, each with each")
    grid: int | None = number(8, low=1, high=FINEST)
    design: Literal["lhs", "sobol"] = "lhs"
    bandwidth: Bandwidth = "distances"
    baseline: Baseline = ZeroNorm()
    score: Score = "logit"
    seed: int = random_seed()

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(self.designs + 1)

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        ask, batch = self.asking(view, batches, self.designs), batches[0]
        draw = latin_hypercube if self.design == "lhs" else sobol
        shown = self.drawn(batch, lambda generator: draw(self.designs, ask.canvas.cells, generator))
        scores = ask.each(shown).unbind(2)
        found = [torch.stack([dependence(x, y, self.bandwidth) for x, y in zip(shown, own)]) for own in scores]
        return self.laid_out(view, batch, torch.stack(found, -1))


def latin_hypercube(designs: int, cells: int, generator: torch.Generator) -> Tensor:
    """(K, N): every cell is shown in half of the designs."""
    return torch.rand(designs, cells, generator=generator).argsort(0) < designs // 2


def sobol(designs: int, cells: int, generator: torch.Generator) -> Tensor:
    """(K, N): a scrambled Sobol sequence, cut at one half."""
    from scipy.stats import qmc  # slow to import, and seldom asked for

    seed = int(torch.randint(2**31, (1,), generator=generator))
    points = qmc.Sobol(cells, seed=seed).random_base2((designs - 1).bit_length())
    return torch.from_numpy(points[:designs] >= 0.5)


def dependence(shown: Tensor, scores: Tensor, bandwidth: Bandwidth = "distances") -> Tensor:
    """(K, N) designs and (K,) scores -> (N,): the criterion for every cell."""
    y = scores.double()[:, None]
    width = torch.pdist(y).median() if bandwidth == "distances" else y.median()
    width = width.abs().clamp_min(torch.finfo(torch.float64).tiny ** 0.5)
    kernel = torch.exp(-(((y - y.T) / width) ** 2) / 2)
    centred = kernel - kernel.mean(0) - kernel.mean(1, keepdim=True) + kernel.mean()
    # With s = 1 where a cell is shown and -1 elsewhere, K is (1 + s s') / 2, and the constant is centred away.
    signs = 2 * shown.double() - 1
    found = (signs * (centred @ signs)).sum(0) / 2 / (len(y) - 1) ** 2
    return found.to(scores.dtype)
