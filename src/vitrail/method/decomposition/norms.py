"""How long the vectors are that tokens send each other: AttIN, N-Res and GlobEnc.

Attention weights alone forget what they weigh. These maps measure the vector that token j sends to token i, its norm
taken through Gram matrices of the heads' messages: tokens x tokens x channels numbers are never made.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.events import Passes
from vitrail.method.base import register
from vitrail.method.batch import Batch
from vitrail.method.layered import Mixing, check_start, weighted
from vitrail.model import BlockParts, Need, Trace, View

NEEDS = (Need.TOKENS, Need.ATTENTION, Need.PARTS)


@dataclass(frozen=True)
class Step:
    """One block at work on a batch.

    Attributes:
        parts: Its linear pieces.
        x: (B, T, D) tokens that enter it.
        attention: (B, H, T, T) probabilities (to, from).
        out: (B, T, D) tokens that leave it.
    """

    parts: BlockParts
    x: Tensor
    attention: Tensor
    out: Tensor

    def messages(self, *, scaled: bool = True, bias: bool = True) -> Tensor:
        """(B, T, H, D): what each head of each token sends, before attention weighs it; never the projection's bias.

        Args:
            scaled: With LayerScale.
            bias: With the value bias and the first norm's bias; without, only what the token itself brought.
        """
        parts = self.parts
        normed = parts.norm1.linear(self.x, parts.norm1.deviation(self.x))
        values = parts.value(normed + parts.norm1.bias) if bias else parts.value.linear(normed)
        heads = self.attention.shape[1]
        weight = parts.output.weight.unflatten(1, (heads, -1))  # (D, H, d)
        if scaled:
            weight = parts.scale1[:, None, None] * weight
        return torch.einsum("bthc,dhc->bthd", values.unflatten(-1, (heads, -1)), weight)

    def diagonal(self, messages: Tensor) -> Tensor:
        """(B, T, D): the attention's vector from each token to itself."""
        own = self.attention.diagonal(dim1=2, dim2=3).transpose(1, 2)  # (B, T, H)
        return (own[..., None] * messages).sum(2)


def steps(view: View, batch: Batch, start: int) -> tuple[Trace, Iterator[Step]]:
    """A clean pass, and the blocks from ``start`` on as it went through them, one at a time."""
    check_start(start, view)
    trace = view.trace(batch.images, attention=True, start=view.depth)  # no gradient, no graph
    batch.learn(trace.logits)
    pieces = view.parts
    assert pieces is not None  # the method was checked against what the view offers

    def walk() -> Iterator[Step]:
        for i in range(start, view.depth):
            x, attention, out = trace.states[i], trace.attention[i], trace.states[i + 1]
            wide = torch.promote_types(view.dtype, torch.float32)
            x, attention, out = (tensor.detach().to(wide) for tensor in (x, attention, out))
            yield Step(pieces[i].to(wide), x, attention, out)

    return trace, walk()


def gram_squares(attention: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """(B, T, T): the inner products of sum_h a_ij^h first_j^h and sum_h a_ij^h second_j^h.

    Args:
        attention: (B, H, T, T) weights a (to, from).
        first: (B, T, H, D) messages.
        second: (B, T, H, D) messages.
    """
    gram = first @ second.transpose(-2, -1)  # (B, from, H, H)
    weights = attention.permute(0, 3, 2, 1)  # (B, from, to, H)
    return ((weights @ gram) * weights).sum(-1).transpose(1, 2)


@dataclass(frozen=True)
class _NormMixing(Mixing):
    """Matrices of norms, multiplied up."""

    classless: ClassVar[bool] = True

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(1)

    @abstractmethod
    def matrix(self, step: Step) -> Tensor:
        """(B, T, T): one block's norms (to, from)."""

    def matrices(self, view: View, batch: Batch, start: int) -> tuple[list[Tensor], Tensor]:
        trace, walk = steps(view, batch, start)
        with torch.no_grad():
            found = [self.matrix(step) for step in walk]
        return found, view.readout_weights(trace, view.layout(batch.size))

    def rolled(self, view: View, batch: Batch, start: int) -> Tensor:
        matrices, row = self.matrices(view, batch, start)
        for matrix in reversed(matrices):
            row = weighted(row, matrix)
            # Norms multiply up beyond float32. One factor an image changes no ranking: the row becomes shares.
            row = row / row.sum(-1, keepdim=True)
        return row

    def maps(self, view: View, batch: Batch) -> Tensor:
        return view.patch_map(self.rolled(view, batch, 0), view.layout(batch.size))


@register("attin", paper="Kobayashi et al. 2020", cost="1 forward", needs=NEEDS)
@dataclass(frozen=True)
class AttIN(_NormMixing):
    """Attention weights times the vectors they weigh: the norm of what each token gets from each other, rolled out.

    ``N_ij = || sum_h a_ij^h f^h(x_j) ||``, value bias included. Its rollout makes the rows of N sum to one and mixes
    in half of the identity, for the skip connection. The same for every class.
    """

    identity: ClassVar[bool] = True
    normalise: ClassVar[bool] = True

    def matrix(self, step: Step) -> Tensor:
        messages = step.messages(scaled=False)
        return gram_squares(step.attention, messages, messages).clamp_min(0).sqrt()

    def rolled(self, view: View, batch: Batch, start: int) -> Tensor:
        matrices, row = self.matrices(view, batch, start)
        for matrix in reversed(matrices):
            # The rows first: norms have no scale in common with the identity.
            sent = row / matrix.sum(-1).clamp_min(torch.finfo(matrix.dtype).tiny)
            row = 0.5 * row + 0.5 * weighted(sent, matrix)
        return row


@register("n_res", paper="Kobayashi et al. 2021", cost="1 forward", needs=NEEDS)
@dataclass(frozen=True)
class NRes(_NormMixing):
    """AttIN with the skip connection inside the norm: what each token is made of behind the attention.

    ``N_ij = || g1 sum_h a_ij^h f^h(x_j) + [i = j] x_i ||`` with LayerScale g1. The same for every class.
    """

    identity: ClassVar[bool] = False
    normalise: ClassVar[bool] = False

    def matrix(self, step: Step) -> Tensor:
        messages = step.messages()
        norms = gram_squares(step.attention, messages, messages).clamp_min(0).sqrt()
        return _with_diagonal(norms, step.diagonal(messages) + step.x)


@register("globenc", paper="Modarressi et al. 2022", cost="1 forward", needs=NEEDS)
@dataclass(frozen=True)
class GlobEnc(_NormMixing):
    """Norms through the whole block: attention, skip connections and both normalisations; the MLP passes vectors on.

    The pre-norm form of the SkipPLUS study: with T_ij the vectors of N-Res without any bias and s_i the deviation in
    front of the MLP, ``N_ij = || T_ij + g2 W2 (T_ij - mean T_ij) / s_i ||``. The same for every class.
    """

    identity: ClassVar[bool] = False
    normalise: ClassVar[bool] = False

    def matrix(self, step: Step) -> Tensor:
        messages = step.messages(bias=False)
        norm2, scale2 = step.parts.norm2, step.parts.scale2
        deviation = norm2.deviation(step.parts.attended(step.x, step.attention))  # (B, to, 1)
        passed = scale2 * norm2.linear(messages, torch.ones_like(deviation)[..., None])
        squares = (
            gram_squares(step.attention, messages, messages)
            + gram_squares(step.attention, messages, passed) * (2 / deviation)
            + gram_squares(step.attention, passed, passed) / deviation**2
        )
        own = step.diagonal(messages) + step.x
        return _with_diagonal(squares.clamp_min(0).sqrt(), own + scale2 * norm2.linear(own, deviation))


def _with_diagonal(norms: Tensor, own: Tensor) -> Tensor:
    """(B, T, T) norms, those on the diagonal taken from (B, T, D) vectors."""
    norms.diagonal(dim1=1, dim2=2).copy_(own.norm(dim=-1))
    return norms
