"""Bi-Attn ("Beyond Intuition"): attention perception, by heads or by tokens, times reasoning feedback.

Perception R <- R + M R is multiplied up over the blocks; the feedback is the integrated attention gradient W. The map
is the readout's row of W * R, elementwise; see `transition` for that row where there is no class token.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import PASSES, number
from vitrail.method.attention.transition import first_block, integrated_gradient, readout_rows
from vitrail.method.base import Method, register
from vitrail.method.batch import Batch
from vitrail.method.layered import Block, block_field, weighted
from vitrail.model import Need, Trace, View, full

PAPER = "Chen et al. 2023"


@dataclass(frozen=True)
class BiAttn(Method):
    """What both forms share: the rows of R multiplied through, last block first, and the feedback W."""

    part: ClassVar[int]
    steps: int = number(20, low=2, high=10_000, cost=PASSES, note="both ends of the way")
    start: Block | None = block_field(None)

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(self.steps, self.steps)

    @abstractmethod
    def graph_start(self, view: View, start: int) -> int:
        """The first block whose attention gradient is needed."""

    @abstractmethod
    def perception(self, view: View, trace: Trace, gradients: Sequence[Tensor], start: int) -> list[Tensor]:
        """One (B, T, T) matrix M for each block from ``start`` on."""

    def maps(self, view: View, batch: Batch) -> Tensor:
        layout = view.layout(batch.size)
        start = first_block(view, self.start, self.part)
        begin = self.graph_start(view, start)
        trace = view.trace(batch.images, attention=True, start=begin)
        gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), trace.attention[begin:])
        rows, weights = readout_rows(view, trace, layout)
        matrices = self.perception(view, trace, gradients, start)
        own = torch.eye(layout.tokens, device=weights.device)[rows].to(matrices[-1])
        perceived = own.expand(len(batch), -1, -1)
        for matrix in reversed(matrices):
            perceived = perceived @ matrix + perceived
        feedback = integrated_gradient(view, batch, gradients[-1][:, :, rows], rows, self.steps)
        return view.patch_map(weighted(weights, perceived * feedback), layout)


@register(
    "bt_h",
    paper=PAPER,
    cost="steps forwards, 1 backward, steps - 1 backwards through the last block",
    needs=(Need.ATTENTION, Need.GRADIENTS),
)
@dataclass(frozen=True)
class BiAttnHeads(BiAttn):
    """Bi-Attn by heads: each block's heads weighted by how much their attention matters to the score.

    M = sum over heads of I_h A_h, with I_h = mean |A_h^T dy/dA_h|, its sum over the heads being one.

    Attributes:
        steps: Points on the way from the mean colour to the image, both ends included.
        start: The first block taken in, counted from 0; a quarter of the depth by default (published as
            ``start_layer=4`` of 12, counted from 1: block 3 here).
    """

    part: ClassVar[int] = 4

    def graph_start(self, view: View, start: int) -> int:
        return start

    def perception(self, view: View, trace: Trace, gradients: Sequence[Tensor], start: int) -> list[Tensor]:
        matrices = []
        for attention, gradient in zip(trace.attention[start:], gradients):
            attention = full(attention.detach())
            matrices.append(torch.einsum("bh,bhij->bij", head_importance(attention, gradient), attention))
        return matrices


@register(
    "bt_t",
    paper=PAPER,
    cost="steps forwards, steps backwards through the last block",
    needs=(Need.ATTENTION, Need.GRADIENTS),
)
@dataclass(frozen=True)
class BiAttnTokens(BiAttn):
    """Bi-Attn by tokens: the attention a token receives counts by how much its value changes it.

    M = Abar diag(m), with m_j = |W_o v_j| / |z_j|: v_j the token's values of all heads, W_o the projection behind the
    attention (without its bias), z_j the token as it enters the block.

    Attributes:
        steps: Points on the way from the mean colour to the image, both ends included.
        start: The first block taken in, counted from 0; half of the depth by default (published as ``start_layer=7``
            of 12, counted from 1: block 6 here).
    """

    part: ClassVar[int] = 2

    def graph_start(self, view: View, start: int) -> int:
        return view.depth - 1

    def perception(self, view: View, trace: Trace, gradients: Sequence[Tensor], start: int) -> list[Tensor]:
        assert view.blocks is not None
        if len(trace.values) != view.depth or None in view.blocks.projections[start:]:
            raise InputError(
                f"bt_t needs the values that attention mixes and the projection behind it, which {view.name} does not "
                "show; use bt_h"
            )
        matrices = []
        for block in range(start, view.depth):
            projection = view.blocks.projections[block]
            assert projection is not None
            values = full(trace.values[block].detach()).transpose(1, 2).flatten(2)
            moved = (values @ full(projection.weight).T).norm(dim=-1)
            share = moved / full(trace.states[block].detach()).norm(dim=-1).clamp_min(torch.finfo(moved.dtype).tiny)
            matrices.append(full(trace.attention[block].detach()).mean(1) * share[:, None])
        return matrices


def head_importance(attention: Tensor, gradient: Tensor) -> Tensor:
    """(B, heads, T, T) attention and its gradient -> (B, heads): mean |A^T G|, as shares of the heads' sum."""
    importance = (attention.transpose(-2, -1) @ full(gradient)).abs().mean((-2, -1))
    return importance / importance.sum(1, keepdim=True).clamp_min(torch.finfo(importance.dtype).tiny)
