"""DecompX: the share of every token in the logit, exact once attention, normalisers and gates are held constant."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError
from vitrail.fields import unseen
from vitrail.method.base import register
from vitrail.method.batch import Batch
from vitrail.method.layered import (
    Block,
    Layered,
    block_field,
    block_of,
    check_start,
    products,
    states_and_gradients,
)
from vitrail.model import FROZEN, BlockParts, Need, Rule, View, full

Bias = Literal["none", "token", "absdot", "abssim", "norm", "equal", "cls", "dot"]
"""Where the biases go: nowhere, to a source of their own, or to the tokens in some proportion."""

LINEAR = Rule(
    "linear",
    attention=FROZEN.attention,
    calls={
        function: FROZEN.calls[function]
        for function in (F.layer_norm, F.rms_norm, F.normalize, torch.rsqrt, torch.Tensor.rsqrt)
    },
)
"""Attention and normalisers held constant, activations followed along their tangents."""

_CHUNK = 2**25
"""Numbers in one block of the MLP's hidden parts (128 MiB in float32)."""


@register(
    "decompx",
    paper="Modarressi et al. 2023",
    cost="1 forward, 1 backward",
    needs=(Need.TOKENS, Need.GRADIENTS),
)
@dataclass(frozen=True)
class DecompX(Layered):
    """Each token's vector carried to the logit, without biases or with each bias shared out among the tokens.

    The published code carries a (tokens x tokens x channels) tensor through every layer. With attention, normalisers
    and gates held constant the network is affine in its tokens, so without biases the same numbers are input x gradient
    under that rule: one forward and one backward pass, for every start layer at once. Sharing out the biases needs the
    tensor, one image at a time, and costs about as many passes as there are tokens.

    Attributes:
        start: The block whose input tokens are decomposed: from 0, from the end when negative, ``middle`` or ``last``.
        bias: ``none`` leaves biases out; ``token`` makes them a source of their own, which `bias_share` tells (the map
            is the same); the others share each bias out, in proportion to how far the parts lie along it (``absdot``,
            ``dot`` with sign), to the cosine (``abssim``), to the parts' ``norm``, ``equal``ly among all that are not
            zero, or to the class token alone (``cls``). Then all tokens' shares add up to the logit.
        activation: ``zo``: a line through zero and the activation's value; ``la``: its tangent, whose offset is a bias.
    """

    start: Block = block_field(0, alone=True)
    bias: Bias = unseen(
        "none",
        token="the biases are a source of their own, which `bias_share` tells; the tokens keep theirs",
        cls="the class token takes the biases; a map shows the patches alone",
    )
    activation: Literal["zo", "la"] = "zo"

    def requirements(self) -> frozenset[Need]:
        return self.needs | ({Need.ATTENTION, Need.PARTS} if self._shared else set())

    @property
    def _shared(self) -> bool:
        return self.bias not in ("none", "token")

    @property
    def _rule(self) -> Rule:
        return FROZEN if self.activation == "zo" else LINEAR

    @property
    def signed(self) -> bool:
        return True

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        if self._shared:
            return torch.stack([self.shares(view, batch, i) for i in range(start, view.depth)])
        states, gradients = states_and_gradients(view, batch, start, self._rule)
        return products(view, batch, states[:-1], gradients[:-1])

    def maps(self, view: View, batch: Batch) -> Tensor:
        start = block_of(self.start, view)
        found = self.shares(view, batch, start) if self._shared else self.layers(view, batch, start)[0]
        return view.patch_map(found, view.layout(batch.size))

    def bias_share(self, view: View, batch: Batch) -> Tensor:
        """(B,): what the biases from block ``start`` on have in the score: all that no token has."""
        shares = self.layers(view, batch, block_of(self.start, view))[0].sum(-1)
        with torch.no_grad():
            logits = view.logits(batch.images)
            return full(batch.learn(logits).score(logits)) - shares

    def shares(self, view: View, batch: Batch, start: int) -> Tensor:
        """(B, T): every token's share in the score with the biases shared out, so that they add up to it."""
        check_start(start, view)
        layout = view.layout(batch.size)
        if self.bias == "cls" and not layout.prefix:
            raise InputError(
                f"decompx(bias=cls) gives the biases to the class token, but {view.name} has none; use bias=absdot"
            )
        trace = view.trace(batch.images, attention=True, rule=self._rule, start=view.depth)
        scores = batch.learn(trace.logits).score(trace.logits)
        # Behind the blocks the frozen head is affine too: its gradient carries the parts to the score.
        (readout,) = view.gradient(scores, trace.states[-1:])
        pieces = view.parts
        assert pieces is not None  # the method was checked against what the view offers
        wide = torch.promote_types(view.dtype, torch.float32)
        found = []
        with torch.no_grad():
            for i in range(len(batch)):
                x = trace.states[start][i].detach().to(wide)
                attention = [probabilities[i].detach().to(wide) for probabilities in trace.attention[start:]]
                parts = self.decompose([piece.to(wide) for piece in pieces[start:]], x, attention)
                sent = torch.einsum("ijd,id->j", parts, readout[i].to(wide))
                rest = scores[i].detach().to(wide) - sent.sum()
                found.append(self._share_out(sent[None, :, None], rest[None, None])[0, :, 0])
        return torch.stack(found)

    def decompose(self, blocks: list[BlockParts], x: Tensor, attention: list[Tensor]) -> Tensor:
        """(T, T, D): the parts (to, from) of the tokens behind the last block, which add up to them.

        Args:
            blocks: The pieces of the blocks.
            x: (T, D) tokens that enter the first.
            attention: Each block's (H, T, T) probabilities.
        """
        parts = torch.diag_embed(x.T).permute(1, 2, 0).contiguous()
        for block, probabilities in zip(blocks, attention):
            a = block.attended(x[None], probabilities[None])[0]
            self._attend(block, parts, x, probabilities)
            x = a + block.scale2 * block.fc2(block.hidden(block.norm2(a)))
            hidden = len(block.fc1.weight)
            rows = max(1, _CHUNK // (len(x) * hidden))
            for begin in range(0, len(x), rows):  # rows never meet in the MLP
                some = slice(begin, begin + rows)
                parts[some] += self._mlp(block, parts[some], a[some])
        return parts

    def _attend(self, block: BlockParts, parts: Tensor, x: Tensor, attention: Tensor) -> None:
        """The attention half of a block, in place: sources never meet but where biases are shared out."""
        heads = len(attention)
        normed = block.norm1.linear(parts, block.norm1.deviation(x)[:, None])
        normed = self._share_out(normed, block.norm1.bias)
        sources = max(1, _CHUNK // normed[:, 0].numel())
        for begin in range(0, len(x), sources):
            some = slice(begin, begin + sources)
            values = block.value.linear(normed[:, some]).unflatten(-1, (heads, -1))  # (T, sources, H, d)
            mixed = torch.einsum("hik,kjhc->ijhc", attention, values).flatten(2)
            parts[:, some] += block.scale1 * block.output.linear(mixed)
        # Attention rows sum to one, so the value bias arrives whole.
        bias = block.scale1 * block.output(block.value.bias)
        parts.copy_(self._share_out(parts, bias))

    def _mlp(self, block: BlockParts, parts: Tensor, a: Tensor) -> Tensor:
        """(rows, T, D): the MLP branch's parts for some tokens ``a``."""
        true = block.norm2(a)
        parts = self._share_out(block.norm2.linear(parts, block.norm2.deviation(a)[:, None]), block.norm2.bias)
        parts = self._share_out(block.fc1.linear(parts), block.fc1.bias)
        before = block.fc1(true)
        if block.gate is not None:
            if self.activation == "la":
                raise InputError(
                    f"decompx(activation=la, bias={self.bias}) knows no tangent of gated units such as SwiGLU; "
                    "use activation=zo"
                )
            slope = block.activation(block.gate(true))
        elif self.activation == "la":
            slope = _slope(block, before)
        else:
            behind = block.activation(before)
            # Nothing lies between zero and the smallest numbers: any slope will do there.
            slope = torch.where(before.abs() > 1e-30, behind / before, torch.full_like(before, 0.5))
        parts = parts * slope[:, None]
        if self.activation == "la":
            parts = self._share_out(parts, block.activation(before) - before * slope)
        parts = block.scale2 * block.fc2.linear(parts)
        return self._share_out(parts, block.scale2 * block.fc2.bias)

    def _share_out(self, parts: Tensor, bias: Tensor) -> Tensor:
        """(rows, T, D) parts with a (D,) or (rows, D) bias shared out among the sources of every row."""
        bias = bias.expand(len(parts), -1)
        along = torch.einsum("ijd,id->ij", parts, bias)
        lengths = parts.norm(dim=-1)
        there = (lengths > 0).to(parts.dtype)
        if self.bias == "dot":
            weights = along
        elif self.bias == "absdot":
            weights = along.abs()
        elif self.bias == "abssim":
            weights = along.abs() / torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        elif self.bias == "norm":
            weights = lengths
        elif self.bias == "equal":
            weights = there
        else:
            weights = F.one_hot(torch.zeros_like(along[:, 0], dtype=torch.long), along.shape[1]).to(parts.dtype)
        total = weights.sum(-1, keepdim=True)
        # Where no part lies along the bias, those that exist share it alike: nothing of it is lost.
        weights = torch.where(total == 0, there, weights)
        total = torch.where(total == 0, there.sum(-1, keepdim=True).clamp_min(1), total)
        return parts + (weights / total)[..., None] * bias[:, None]


def _slope(block: BlockParts, before: Tensor) -> Tensor:
    """The activation's derivative."""
    with torch.enable_grad():
        before = before.detach().requires_grad_()
        (slope,) = torch.autograd.grad(block.activation(before).sum(), before)
    return slope
