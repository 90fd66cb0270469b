"""Shapley values of cells: each one's mean gain over all orders in which cells can be shown. Estimated in two ways."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.events import Passes
from vitrail.fields import PASSES, number, random_seed
from vitrail.method.base import State, register
from vitrail.method.batch import Batch
from vitrail.method.cells import FINEST, Cells, ends
from vitrail.model import View
from vitrail.perturb import Baseline, Responder, Score, ZeroNorm


@register(
    "shapley",
    paper="Castro et al. 2009",
    cost="50 forwards a cell",
    needs=(),
)
@dataclass(frozen=True)
class Shapley(Cells):
    """The mean gain in score when a cell is shown, over random orders in which all cells are shown one by one.

    The values of an image add up to the score of the whole picture minus that of the hidden one, in every sample.

    Attributes:
        samples: Random orders.
        antithetic: Walk every order backwards too, which costs as much again and takes more noise away than new orders.
        grid: Rows and columns of cells; the model's own grid by default.
        baseline: What stands where a cell is hidden.
        score: What of the answer counts.
        seed: Another seed draws other orders.
    """

    samples: int = number(25, low=1, high=10_000, cost="would show all cells one by one in {} orders, a pass a cell")
    antithetic: bool = True
    grid: int | None = number(None, low=1, high=FINEST)
    baseline: Baseline = ZeroNorm()
    score: Score = "logit"
    seed: int = random_seed()

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        orders = 2 * self.samples if self.antithetic else self.samples
        return Passes(orders * (self.count(view, size) - 1) + 3)

    @property
    def signed(self) -> bool:
        return True

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        ask = self.asking(view, batches, 2 * self.samples if self.antithetic else self.samples)
        cells = ask.canvas.cells
        ranks = self.drawn(
            batches[0], lambda generator: torch.rand(self.samples, cells, generator=generator).argsort(1)
        )
        if self.antithetic:
            ranks = torch.cat([ranks, cells - 1 - ranks], 1)
        return self.laid_out(view, batches[0], mean_gains(ask, ranks))


def mean_gains(ask: Responder, ranks: Tensor) -> Tensor:
    """The mean gain of every cell over some orders.

    Args:
        ask: Answers about cells.
        ranks: (B, P, N) the place of every cell in P orders of each image, 0 for the first to be shown.

    Returns:
        (B, N, targets).
    """
    images, orders, cells = ranks.shape
    lines = torch.arange(images * orders, device=ranks.device).repeat_interleave(cells - 1)
    counts = torch.arange(1, cells, device=ranks.device).repeat(images * orders)[:, None]
    flat = ranks.flatten(0, 1)
    scores = ask(lines // orders, lambda part: flat[lines[part]] < counts[part])
    scores = scores.reshape(images, orders, cells - 1, len(ask.targets))
    none, whole = (end[:, None, None].expand(-1, orders, 1, -1) for end in ends(ask))
    gains = torch.cat([none, scores, whole], 2).double().diff(dim=2)
    return gains.gather(2, ranks[..., None].expand_as(gains)).mean(1).to(whole.dtype)


@register("kernel_shap", paper="Lundberg and Lee 2017", cost="2051 forwards", needs=())
@dataclass(frozen=True)
class KernelSHAP(Cells):
    """The additive model nearest to the scores under the Shapley kernel, its values adding up exactly.

    Coalitions of cells are drawn with the kernel's probability, each followed by its complement; where there are no
    more of them than samples, all are taken and the values are exact. With fewer samples than cells the answer is the
    one nearest to an even split.

    Attributes:
        samples: Coalitions, besides the empty and the full one.
        grid: Rows and columns of cells; the model's own grid by default.
        baseline: What stands where a cell is hidden.
        score: What of the answer counts.
        seed: Another seed draws other coalitions.
    """

    half = True

    samples: int = number(2048, low=1, high=100_000, cost=PASSES)
    grid: int | None = number(None, low=1, high=FINEST)
    baseline: Baseline = ZeroNorm()
    score: Score = "logit"
    seed: int = random_seed()

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        coalitions: int = 2 ** self.count(view, size) - 2
        return Passes(min(self.samples, coalitions) + 3)

    @property
    def signed(self) -> bool:
        return True

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        ask, batch = self.asking(view, batches, self.samples), batches[0]
        cells = ask.canvas.cells
        if 2**cells - 2 <= self.samples:
            shown = all_coalitions(cells).to(view.device)
            scores, weights = ask.each(shown), shapley_kernel(shown)
            shown = shown.expand(len(batch), -1, -1)
        else:
            shown = self.drawn(batch, lambda generator: draw_coalitions(self.samples, cells, generator))
            scores, weights = ask.each(shown), torch.ones(self.samples, device=view.device)
        return self.laid_out(view, batch, additive(shown, weights, scores, *ends(ask)))


def all_coalitions(cells: int) -> Tensor:
    """(2^N - 2, N): all but the empty and the full one."""
    numbers = torch.arange(1, 2**cells - 1)[:, None]
    return (numbers >> torch.arange(cells)) % 2 == 1


def shapley_kernel(shown: Tensor) -> Tensor:
    """(K, N) coalitions -> (K,) what each weighs in the Shapley kernel."""
    cells = shown.shape[1]
    weights = [0.0] + [(cells - 1) / (math.comb(cells, k) * k * (cells - k)) for k in range(1, cells)]
    return torch.tensor(weights, dtype=torch.float64, device=shown.device)[shown.sum(1)]


def draw_coalitions(samples: int, cells: int, generator: torch.Generator) -> Tensor:
    """(samples, N): coalitions drawn with the Shapley kernel's probability, every second one the complement."""
    pairs = (samples + 1) // 2
    sizes = torch.arange(1, cells, dtype=torch.float64)
    chosen = 1 + torch.multinomial(1 / (sizes * (cells - sizes)), pairs, replacement=True, generator=generator)
    shown = torch.rand(pairs, cells, generator=generator).argsort(1) < chosen[:, None]
    return torch.stack([shown, ~shown], 1).flatten(0, 1)[:samples]


def additive(shown: Tensor, weights: Tensor, scores: Tensor, none: Tensor, whole: Tensor) -> Tensor:
    """The weighted least squares fit of ``none + sum of the values shown`` whose values add up to ``whole - none``.

    Args:
        shown: (B, K, N) boolean coalitions.
        weights: (K,).
        scores: (B, K, targets).
        none: (B, targets) the score with all cells hidden.
        whole: (B, targets) the score with all shown.

    Returns:
        (B, N, targets).
    """
    x, y = shown.double(), scores.double()
    sizes, even = x.sum(2, keepdim=True), (whole - none).double()[:, None] / shown.shape[2]
    # What is left to explain when all share evenly, by deviations that add up to zero: no constraint remains.
    rest = y - none[:, None] - even * sizes
    x = x - x.mean(2, keepdim=True)
    weighted = (weights.double()[:, None] * x).transpose(1, 2)
    deviations: Tensor = torch.linalg.pinv(weighted @ x, hermitian=True) @ (weighted @ rest)
    return (even + deviations).to(whole.dtype)
