"""Soft ranks: scores to doubly stochastic matrices (Gumbel-Sinkhorn), and from these to soft top-k masks.

Sinkhorn's algorithm looks for two vectors, the duals f (regions) and g (ranks), that make the rows and columns of
exp(logits + f + g) sum to 1. Three things make it fast here:

* Over-relaxation. At temperature 0.01 the plain iteration needs up to 330 turns until rows sum to 1 within 1e-4; the
  paper's 30 leave them off by 0.04 to 0.1 for evenly spread scores, by more than 1 for extreme ones. Steps that go
  up to 1.7 times as far need 20 to 50 turns, 74 at worst, at temperatures from 0.1 to 0.01 and K from 49 to 784.
* Matrix products. exp(logits) is taken once the duals have nearly settled; from there on a turn is two products of a
  matrix and a vector instead of 2 K² exponentials.
* Only duals are kept. Between two turns the weights differ by a factor for each row and each column alone, so the
  backward pass has all of them from one matrix, and their sum is one product of low rank.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vitrail.errors import InputError
from vitrail.perturb import order_of, ranks_of

ITERATIONS = 100
"""The most turns: enough down to temperature 0.01 and up to noise of the size of the temperature. At 0.003 and below,
or with noise of several times the temperature, they may not be: then some rows stay off, but the columns never do."""
TOLERANCE = 5e-5
"""How far from 1 the sum of a row may stay."""
RELAX = 1.7
"""How far each turn goes, 1 being the plain algorithm. Larger is faster at low temperatures and slower at high ones."""
_CHECK = 4  # turns between two looks at the numbers: a look makes a GPU wait
_CALM = 2.0  # a turn that moves the duals by less than this is calm: exponentials taken now last until the next look
_NEAR = 30.0  # how far duals may be from those of a matrix: exp(2 * 30) is far from the largest float32


def soft_top(
    scores: Tensor,
    counts: Tensor,
    temperature: float,
    *,
    noise: float = 0.0,
    iterations: int = ITERATIONS,
    generator: torch.Generator | None = None,
    seeds: Sequence[int] | None = None,
) -> Tensor:
    """(B, K) scores in [0, 1] and (S,) counts -> (B, S, K): how much each region is among the first k, for every count.

    The logit of region r at rank j is -(a_r - p_j)² / temperature, with p = 1, ..., 1/K the scores of an ideal ranking;
    each mask sums to its count, and the masks grow with it.

    Args:
        scores: (B, K) one score a region.
        counts: (S,) whole numbers from 1 to K.
        temperature: How soft: a region is spread over about 0.19 K ranks at 0.1, 0.07 K at 0.01. The hard masks are the
            limit 0.
        noise: How much Gumbel(0, 1) noise is added to -(a - p)², which lies between -1 and 0.
        iterations: The most turns of Sinkhorn's algorithm.
        generator: For the noise. If it lives on another device than the scores, it seeds one that lives on theirs.
        seeds: Instead, one an image: its noise then does not depend on who else is in the batch.

    Example:
        >>> soft_top(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([1, 2]), 0.01).round(decimals=2).tolist()
        [[[0.0, 1.0, 0.0], [0.0, 1.0, 1.0]]]
    """
    _check_counts(scores, counts)
    if not noise >= 0:
        raise InputError(f"a soft ranking needs noise of 0 or more, but noise={noise} was given")
    with _full_precision(scores.device):
        logits = _logits(scores, temperature)
        if noise:
            logits = logits.add_(_gumbel(logits, generator, seeds), alpha=noise / temperature)
        first = torch.arange(logits.shape[1], device=scores.device)[:, None] < counts.to(scores.device)
        return (sinkhorn(logits, iterations) @ first.to(logits.dtype)).mT


@torch.no_grad()
def rank_entropy(scores: Tensor, temperature: float, *, iterations: int = ITERATIONS) -> Tensor:
    """(B, K) scores -> (B,): how little is known of the regions' ranks, the mean over them.

    The entropy of the ranks that Sinkhorn's algorithm gives a region, over that of K equally likely ranks: 1 if all
    scores are the same, at any temperature. For evenly spread scores of 196 regions it is 0.92 at 0.1, 0.75 at 0.01.

    Args:
        scores: (B, K) one score a region, K of 2 or more.
        temperature: That of the soft ranking.
        iterations: The most turns of Sinkhorn's algorithm.

    Example:
        >>> rank_entropy(torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.9, 0.5]]), 0.01).round(decimals=1).tolist()
        [1.0, 0.0]
    """
    with _full_precision(scores.device):
        ranks = sinkhorn(_logits(scores, temperature), iterations)
        ranks = ranks / ranks.sum(2, keepdim=True)  # the rows are only nearly distributions
        found: Tensor = torch.special.entr(ranks).sum(2).mean(1) / math.log(scores.shape[1])
        return found


def hard_top(scores: Tensor, counts: Tensor) -> Tensor:
    """(B, K) scores and (S,) counts -> (B, S, K) masks of 0 and 1; of equal scores the first region comes first.

    Example:
        >>> hard_top(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([1, 2])).tolist()
        [[[0.0, 1.0, 0.0], [0.0, 1.0, 1.0]]]
    """
    _check_counts(scores, counts)
    ranks = ranks_of(order_of(scores))
    return (ranks[:, None] < counts.to(scores.device)[:, None]).to(_at_least_single(scores).dtype)


def sinkhorn(
    logits: Tensor, iterations: int = ITERATIONS, *, tolerance: float = TOLERANCE, relax: float = RELAX
) -> Tensor:
    """(B, K, K) regions x ranks -> (B, K, K) positive, the columns summing to 1 and the rows nearly so.

    The last of the normalisations is that of the columns, so that each rank is given away exactly once. The gradient is
    that of the turns that were made, their lengths taken as given; its memory is the logits and 4 vectors a turn.

    Args:
        logits: (B, K, K) any numbers; float64 stays, everything else is computed in float32.
        iterations: The most turns, each of them both normalisations.
        tolerance: An image stops when the sums of its rows are known to be this close to 1; at 0 it never does.
        relax: How far each turn goes; 1 is the plain algorithm.

    Example:
        >>> sinkhorn(torch.eye(3)[None]).sum(2).round(decimals=3).tolist()
        [[1.0, 1.0, 1.0]]
    """
    if logits.ndim != 3 or logits.shape[1] != logits.shape[2]:
        raise InputError(f"Sinkhorn needs logits of shape (B, K, K), but {tuple(logits.shape)} was given")
    if iterations < 1:
        raise InputError(f"Sinkhorn needs iterations to be 1 or more, but iterations={iterations} was given")
    if not 0 < relax < 2:
        raise InputError(f"Sinkhorn needs relax between 0 and 2, but {relax} was given")
    with _full_precision(logits.device):
        found: Tensor = _Sinkhorn.apply(_at_least_single(logits), iterations, tolerance, relax)
    return found


class _Sinkhorn(torch.autograd.Function):
    """The algorithm, and the gradient of exactly the turns it made."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int, tolerance: float, relax: float) -> Tensor:
        left, right, steps = _iterate(logits, iterations, tolerance, relax)
        ctx.save_for_backward(logits, left, right, steps)
        found = _weights(logits, left[-1], right[-1])
        return found.div_(found.sum(1, keepdim=True))  # 1 but for rounding, which adds up in a mask of many ranks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, left, right, steps = ctx.saved_tensors
        with _full_precision(logits.device):
            return _gradient(logits, left, right, steps, grad), None, None, None


def _iterate(logits: Tensor, iterations: int, tolerance: float, relax: float) -> tuple[Tensor, Tensor, Tensor]:
    """The way to the duals: (2T + 1, B, K) left and right, and (2T, B, 1) steps.

    Every normalisation has weights exp(logits + left + right), which sum to 1 over what it sums over. They come in the
    order rows, columns, rows, ..., columns; the last one gives the answer. A step is how far towards it the duals went:
    not at all where the image was done, so that an image is treated alike in any company.
    """
    sums = _LogSums(logits)
    f = g = logits.new_zeros(logits.shape[:2])
    done = torch.zeros(len(logits), 1, dtype=torch.bool, device=logits.device)
    left, right, steps = [], [], []
    for turn in range(iterations):
        rows = sums.over_ranks(g)
        left.append(rows)
        right.append(g)
        row_move = rows - f
        row_step = _step(row_move, done, relax if turn else 1.0)
        f = f + row_step * row_move
        columns = sums.over_regions(f)
        left.append(f)
        right.append(columns)
        column_move = columns - g
        column_step = _step(column_move, done, relax if turn else 1.0)
        g = g + column_step * column_move
        steps += [row_step, column_step]
        moves = torch.stack([row_move, column_move]).abs().amax(2, keepdim=True)
        # A normalisation never moves by more than what it starts from, so this bounds the error of the rows to come.
        done = done | ((1 - row_step).abs() * moves[0] + moves[1] <= tolerance)
        if turn % _CHECK == 1:
            every, move, drift = torch.stack([done.all().to(f), (~done * moves).amax(), sums.drift(f, g)]).tolist()
            if every:
                break
            sums.settle(f, g, calm=move < _CALM, near=drift < _NEAR / 2)
    left.append(f)
    right.append(sums.over_regions(f))
    return torch.stack(left), torch.stack(right), torch.stack(steps)


def _logits(scores: Tensor, temperature: float) -> Tensor:
    """(B, K) -> (B, K, K): those of each region at each rank."""
    if not temperature > 0:
        raise InputError(f"a soft ranking needs a temperature above 0, but {temperature} was given")
    scores = _at_least_single(scores)
    regions = scores.shape[1]
    places = torch.arange(regions, 0, -1, device=scores.device, dtype=scores.dtype) / regions
    # Without the -a², which is constant in a row and so vanishes when rows are normalised: less to keep for later.
    return (scores[:, :, None] * (2 * places / temperature)).sub_(places**2 / temperature)


def _step(move: Tensor, done: Tensor, relax: float) -> Tensor:
    """(B, 1): how far to go along a move; 0 for the images that are done.

    A step of w ascends the dual objective for certain while exp(-m) - exp((w - 1) m) + w m is positive, m being the
    largest move upwards (Thibault et al. 2021). 1 + 3 / (3 + m) is that bound to 3 digits. Without it a long step may
    start an oscillation that never ends.
    """
    upwards = move.amax(1, keepdim=True).clamp_min(0)
    return (1 + 3 / (3 + upwards)).clamp_max(relax).masked_fill(done, 0.0)


class _LogSums:
    """-log(sum(exp(logits + dual))) over ranks or regions: in log space, or by products with exponentials at hand."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.f = self.g = logits.new_zeros(logits.shape[:2])
        self.matrix: Tensor | None = None

    def settle(self, f: Tensor, g: Tensor, *, calm: bool, near: bool) -> None:
        """Take exponentials at these duals if they move little and those at hand are of duals far away."""
        if not calm:
            self.matrix = None
        elif self.matrix is None or not near:
            self.matrix, self.f, self.g = _weights(self.logits, f, g), f, g

    def drift(self, f: Tensor, g: Tensor) -> Tensor:
        """How far the duals are from those of the matrix."""
        return torch.maximum((f - self.f).abs().amax(), (g - self.g).abs().amax())

    def over_ranks(self, g: Tensor) -> Tensor:
        if self.matrix is None:
            return -torch.logsumexp(self.logits + g[:, None], 2)
        return self.f - _times(self.matrix, (g - self.g).exp()).log()

    def over_regions(self, f: Tensor) -> Tensor:
        if self.matrix is None:
            return -torch.logsumexp(self.logits + f[:, :, None], 1)
        return self.g - _times(self.matrix.mT, (f - self.f).exp()).log()


def _gradient(logits: Tensor, left: Tensor, right: Tensor, steps: Tensor, grad: Tensor) -> Tensor:
    """The gradient for the logits, (B, K, K), from the one for the answer: the turns again, the last one first."""
    last = _weights(logits, left[-1], right[-1])
    found = last * grad
    found.addcmul_(last, found.sum(1, keepdim=True), value=-1)
    to_f, to_g = found.sum(2), torch.zeros_like(left[0])
    away = [(dual - dual[-1]).clamp(-_NEAR, _NEAR) for dual in (left, right)]
    near = torch.stack([one.abs().amax((1, 2)) < _NEAR for one in away]).all(0).tolist()
    on_left, on_right = (one.exp() for one in away)
    rows, columns = [], []
    for i in reversed(range(len(left) - 1)):
        step, of_columns = steps[i], i % 2 == 1
        if of_columns:
            through, to_g = step * to_g, (1 - step) * to_g
        else:
            through, to_f = step * to_f, (1 - step) * to_f
        if near[i]:  # the weights are those of the last one, each row and column times a number
            weights, a, b = last, on_left[i], on_right[i]
        else:
            weights, a, b = _weights(logits, left[i], right[i]), torch.ones_like(to_f), torch.ones_like(to_f)
        row, column = (a, b * through) if of_columns else (a * through, b)
        if of_columns:
            to_f = to_f - a * _times(weights, column)
        else:
            to_g = to_g - b * _times(weights.mT, row)
        if near[i]:
            rows.append(row)
            columns.append(column)
        else:
            found.addcmul_(weights.mul_(row[:, :, None]), column[:, None], value=-1)
    if rows:
        found.addcmul_(last, torch.stack(rows, 2) @ torch.stack(columns, 1), value=-1)
    return found


def _weights(logits: Tensor, f: Tensor, g: Tensor) -> Tensor:
    """exp(logits + f + g), nowhere so small that it would be slow (denormal numbers) or zero."""
    least = torch.finfo(logits.dtype).tiny
    return (logits + f[:, :, None]).add_(g[:, None]).exp_().clamp_min_(least)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """(B, K, K) times (B, K), written the way round that is 7 times faster on CPUs."""
    return (vector[:, None] @ matrix.mT).squeeze(1)


def _gumbel(like: Tensor, generator: torch.Generator | None, seeds: Sequence[int] | None = None) -> Tensor:
    """Gumbel(0, 1) noise: minus the logarithm of an exponential variable, which is kept from underflowing to 0."""
    if seeds is not None:
        own = (torch.Generator(like.device).manual_seed(seed) for seed in seeds)
        return torch.stack([_gumbel(row, one) for row, one in zip(like, own, strict=True)])
    if generator is not None and generator.device.type != like.device.type:
        # 64 matrices of 784 ranks take a CPU a second, more than all the rest: it draws a seed instead.
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        generator = torch.Generator(like.device).manual_seed(seed)
    return torch.empty_like(like).exponential_(generator=generator).clamp_min_(1e-8).log_().neg_()


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Products in the precision of their factors: neither autocast nor TF32, which would leave rows off by 1e-3."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        matmul.allow_tf32 = before


def _check_counts(scores: Tensor, counts: Tensor) -> None:
    if scores.ndim != 2:
        raise InputError(f"a ranking needs scores of shape (B, K), but {tuple(scores.shape)} was given")
    fewest, most = (int(one) for one in counts.aminmax())
    if fewest < 1 or most > scores.shape[1]:
        raise InputError(f"counts of regions must be from 1 to {scores.shape[1]}, but {fewest} to {most} was given")
