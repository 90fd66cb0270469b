"""Transition attention maps, and the integrated attention gradient that Bi-Attn shares with them.

"The row of the class token" is the mean of all rows, weighted by `View.readout_weights`: that row alone on models with
a class token, the mean over patch rows on average-pooled models (the rule Bi-Attn's authors give for MAE), the rows
weighted by the pool's attention where a model pools by attention.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import PASSES, number
from vitrail.method.base import Method, register
from vitrail.method.batch import Batch
from vitrail.method.layered import Block, block_field, block_of, weighted
from vitrail.model import Layout, Need, Tap, Trace, View, full


@register(
    "t_attn",
    paper="Yuan et al. 2021",
    cost="steps forwards, steps backwards through the last block",
    needs=(Need.ATTENTION, Need.GRADIENTS),
)
@dataclass(frozen=True)
class TransitionAttention(Method):
    """The last block's attention carried down through the blocks, times the integrated attention gradient.

    v = Abar[L-1], then v <- v Abar[l] + v for l = L-2 down to ``start``; the map is the readout's row of v W, with W of
    `integrated_gradient`.

    Attributes:
        steps: Points on the way from the mean colour to the image, both ends included.
        start: The first block taken in, counted from 0; a third of the depth by default (4 of 12, as published).
        last_twice: Carry the row through the last block once more, as the comparison code of InFlow and MDA does
            (there with ``start=0``).
        carried: Times the attention carried down. Without, the map is the integrated attention gradient alone, which
            the code of MDA compares with under the name of IG.
    """

    steps: int = number(20, low=2, high=10_000, cost=PASSES, note="both ends of the way")
    start: Block | None = block_field(None)
    last_twice: bool = False
    carried: bool = True

    def __post_init__(self) -> None:
        if not self.carried and (self.start is not None or self.last_twice):
            raise InputError("t_attn(carried=False) reads the last block alone; leave start and last_twice out")

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(self.steps, self.steps)

    def maps(self, view: View, batch: Batch) -> Tensor:
        layout = view.layout(batch.size)
        start = first_block(view, self.start, 3)
        trace = view.trace(batch.images, attention=True, start=view.depth - 1)
        (clean,) = view.gradient(batch.learn(trace.logits).score(trace.logits), trace.attention[-1:])
        rows, weights = readout_rows(view, trace, layout)
        total = integrated_gradient(view, batch, clean[:, :, rows], rows, self.steps)
        if not self.carried:
            return view.patch_map(weighted(weights, total), layout)
        attention = [full(a.detach()).mean(1) for a in trace.attention]
        carried = attention[-1][:, rows]
        for matrix in reversed(attention[start:] if self.last_twice else attention[start:-1]):
            carried = carried @ matrix + carried
        return view.patch_map(weighted(weights, carried * total), layout)


def first_block(view: View, start: Block | None, part: int) -> int:
    """The start layer asked for, or the one behind a third, a quarter, ... of the depth."""
    return view.depth // part if start is None else block_of(start, view)


def readout_rows(view: View, trace: Trace, layout: Layout) -> tuple[Tensor, Tensor]:
    """The K token rows the head reads, and how much it reads each of them, (B, K)."""
    weights = view.readout_weights(trace, layout)
    rows = (weights > 0).any(0).nonzero().squeeze(1)
    return rows, weights[:, rows]


def integrated_gradient(view: View, batch: Batch, clean: Tensor, rows: Tensor, steps: int) -> Tensor:
    """The last attention's gradient averaged from the mean colour to the image, positive part, heads averaged.

    W = mean over heads of ((1 / steps) sum over k of dy/dA[L-1] at x k / (steps - 1))^+, k = 0 to steps - 1.

    Args:
        view: The model.
        batch: The images, their target settled.
        clean: (B, heads, K, T) rows of the gradient at the images themselves, the last point of the way.
        rows: (K,) the token rows wanted.
        steps: Points on the way, both ends included.

    Returns:
        (B, K, T) rows of W.
    """
    layout, images, target = view.layout(batch.size), batch.images, batch.target
    points = torch.tensor(np.linspace(0, 1, steps)[:-1], dtype=images.dtype, device=images.device)

    def gradients(part: slice) -> Tensor:
        alphas = points[part]

        def enter() -> Tensor:
            copies = (alphas.view(-1, 1, 1, 1, 1) * images).flatten(0, 1)
            view.meter.begin(len(copies))
            # Only the last block's attention is asked about: the blocks before it run as fast as the model can.
            with torch.no_grad():
                return view.encode(view.embed(copies), layout, stop=view.depth - 1)[-1]

        # Up to the last block the target does not matter: several of them share the way.
        tokens = view.recalled(images, ("way", steps, part.start, part.stop), enter).detach()
        with torch.enable_grad():
            with Tap(read=True) as tap:
                last = view.encode(tokens.requires_grad_(), layout, start=view.depth - 1)[-1]
            logits = view.head(last, layout)
        (gradient,) = view.gradient(target.repeat(len(alphas)).score(logits), tap.attention[-1:])
        found: Tensor = full(gradient[:, :, rows]).unflatten(0, (len(alphas), len(batch))).sum(0)
        return found

    total = functools.reduce(torch.add, batch.in_parts(steps - 1, gradients), full(clean))
    return (total / steps).relu().mean(1)
