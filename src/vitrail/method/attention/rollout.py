"""Attention read as evidence: raw, rolled out over the layers, weighted by its gradient.

"The row of the class token" is spelled `View.readout_weights` here: it is that row on models with a class token, the
mean over patch rows on average-pooled models, and the pool's own attention where a model pools by attention.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import value
from vitrail.method.base import RULES, Gradient, Method, register
from vitrail.method.batch import Batch
from vitrail.method.layered import (
    Block,
    Layered,
    Mixing,
    block_field,
    block_of,
    check_base,
    check_length,
    check_start,
    products,
    weighted,
)
from vitrail.model import Need, View, full


@register("raw_attention", paper="Vaswani et al. 2017", cost="1 forward", needs=(Need.ATTENTION,))
@dataclass(frozen=True)
class RawAttention(Mixing):
    """What one layer's heads attend to on average, as the head reads it. The same for every class.

    Attributes:
        layer: The block: counted from 0, from the end when negative, ``middle`` or ``last``.
    """

    classless: ClassVar[bool] = True
    identity: ClassVar[bool] = True
    normalise: ClassVar[bool] = True
    layer: Block = block_field(-1, alone=True)

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(1)

    def matrices(self, view: View, batch: Batch, start: int) -> tuple[list[Tensor], Tensor]:
        check_start(start, view)
        trace = view.trace(batch.images, attention=True, start=view.depth)  # no gradient, no graph
        batch.learn(trace.logits)
        matrices = [full(attention.detach()).mean(1) for attention in trace.attention[start:]]
        return matrices, view.readout_weights(trace, view.layout(batch.size))

    def maps(self, view: View, batch: Batch) -> Tensor:
        block = block_of(self.layer, view, "layer")
        return view.patch_map(self.layers(view, batch, block)[0], view.layout(batch.size))


@register("genatt", paper="Chefer et al. 2021b", cost="1 forward, 1 backward", needs=(Need.ATTENTION, Need.GRADIENTS))
@dataclass(frozen=True)
class GenAtt(Mixing):
    """Attention times its gradient, positive part, rolled out with the skip connections.

    Attributes:
        start: The first block taken in: counted from 0, from the end when negative, ``middle`` or ``last``.
        heads: Take the positive part of every head before their mean (``clamp_mean``), or of the mean (``mean_clamp``,
            as the comparison code of Bi-Attn does).
        gradient: The model's own gradient, or the frozen one.
    """

    identity: ClassVar[bool] = True
    normalise: ClassVar[bool] = False
    start: Block = block_field(0, alone=True)
    heads: Literal["clamp_mean", "mean_clamp"] = "clamp_mean"
    gradient: Gradient = "true"

    def matrices(self, view: View, batch: Batch, start: int) -> tuple[list[Tensor], Tensor]:
        check_start(start, view)
        trace = view.trace(batch.images, attention=True, rule=RULES[self.gradient], start=start)
        layers = trace.attention[start:]
        gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), layers)
        products = (full(attention.detach()) * full(gradient) for attention, gradient in zip(layers, gradients))
        matrices = [self._fused(product) for product in products]
        return matrices, view.readout_weights(trace, view.layout(batch.size))

    def _fused(self, product: Tensor) -> Tensor:
        """(B, T, T): the positive part of (B, H, T, T) products, the heads' mean taken before or behind."""
        return product.relu().mean(1) if self.heads == "clamp_mean" else product.mean(1).relu()

    def maps(self, view: View, batch: Batch) -> Tensor:
        return view.patch_map(self.rolled(view, batch, block_of(self.start, view)), view.layout(batch.size))


@register("rollout", paper="Abnar and Zuidema 2020", cost="as the base", needs=(Need.ATTENTION,))
@dataclass(frozen=True)
class Rollout(Method):
    """A method's layer matrices multiplied up, with the skip connections and row sums its paper gives it.

    With raw attention, the default, this is attention rollout, the same for every class.

    Attributes:
        base: What is rolled out: a method with a (to, from) matrix at every layer.
        start: The first block taken in: counted from 0, from the end when negative, ``middle`` or ``last``.
    """

    base: Mixing = value(RawAttention(), understood=True)
    start: Block = block_field(0)

    def __post_init__(self) -> None:
        check_base("rollout", self.base, Mixing, "a matrix")

    def tells_classes(self) -> bool:
        return self.base.tells_classes()

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return self.base.passes(view, size)

    def maps(self, view: View, batch: Batch) -> Tensor:
        return view.patch_map(self.base.rolled(view, batch, block_of(self.start, view)), view.layout(batch.size))


@register("grad_rollout", paper="Gildenblat 2020", cost="1 forward, 1 backward", needs=(Need.ATTENTION, Need.GRADIENTS))
@dataclass(frozen=True)
class GradRollout(GenAtt):
    """The heads' mean of attention x gradient, its positive part rolled out with rows summing to one.

    Attributes:
        compat: ``paper`` is the method as it is meant. ``authors`` is what the published code computes: gradients are
            those of the scores before the softmax, each block takes those of the block as far from the other end, the
            smallest nine tenths of every matrix are dropped, and it is column j that is divided by the sum of row j.
    """

    normalise: ClassVar[bool] = True
    heads: Literal["clamp_mean", "mean_clamp"] = "mean_clamp"
    compat: Literal["paper", "authors"] = "paper"

    def matrices(self, view: View, batch: Batch, start: int) -> tuple[list[Tensor], Tensor]:
        if self.compat == "paper":
            return super().matrices(view, batch, start)
        check_start(start, view)
        trace = view.trace(batch.images, attention=True, rule=RULES[self.gradient], start=start)
        gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), trace.attention[start:])
        layers = [full(attention.detach()) for attention in trace.attention[start:]]
        products = [attention * full(gradient) for attention, gradient in zip(layers, gradients)]
        slopes = [p - attention * p.sum(-1, keepdim=True) for p, attention in zip(products, layers)]
        matrices = []
        for attention, slope in zip(layers, reversed(slopes)):
            matrix = self._fused(attention * slope)
            flat = matrix.flatten(1)
            smallest = flat.topk(int(flat.shape[1] * 0.9), largest=False).indices
            matrices.append(flat.scatter(1, smallest, 0).view_as(matrix))
        return matrices, view.readout_weights(trace, view.layout(batch.size))

    def rolled(self, view: View, batch: Batch, start: int) -> Tensor:
        if self.compat == "paper":
            return super().rolled(view, batch, start)
        matrices, row = self.matrices(view, batch, start)
        for matrix in reversed(matrices):
            row = (row + weighted(row, matrix)) / (matrix.sum(-1) + 1)
        return row


@register("att_ixg", paper="Qiang et al. 2022", cost="1 forward, 1 backward", needs=(Need.ATTENTION, Need.GRADIENTS))
@dataclass(frozen=True)
class AttIxG(Layered):
    """The attention a token receives in a block times its input x gradient behind that block.

    Attributes:
        layer: The block whose attention is read by the method alone, by default the first, as SkipPLUS has it: counted
            from 0, from the end when negative, ``middle`` or ``last``.
        compat: ``paper`` takes tokens behind the block (the last block drops out), ``authors`` those in front of it.
        gradient: The model's own gradient, or the frozen one.
    """

    layer: Block = block_field(0, alone=True)
    compat: Literal["paper", "authors"] = "paper"
    gradient: Gradient = "true"

    @property
    def signed(self) -> bool:
        return True

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        check_start(start, view)
        trace = view.trace(batch.images, attention=True, rule=RULES[self.gradient], start=start)
        behind = self.compat == "paper"
        states = trace.states[start + 1 : -1] if behind else trace.states[start:-1]
        gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), states)
        received = [full(attention.detach()).mean((1, 2)) for attention in trace.attention[start:]]
        weights = [attended[..., None] * full(gradient) for attended, gradient in zip(received, gradients)]
        return products(view, batch, [full(state.detach()) for state in states], weights)

    def check_layers(self, view: View, start: int, composition: str) -> None:
        behind = start + (self.compat == "paper")
        if behind == view.depth:
            raise InputError(
                f"{composition} asks for tokens behind the last block of {view.name}, where att_ixg reads none; "
                "take an earlier block, or att_ixg(compat=authors)"
            )
        if self.gradient == "true":
            check_length(view, behind, composition, self.id)

    def check_evidence(self, view: View) -> None:
        self.check_layers(view, block_of(self.layer, view, "layer"), self.spec)

    def maps(self, view: View, batch: Batch) -> Tensor:
        block = block_of(self.layer, view, "layer")
        return view.patch_map(self.layers(view, batch, block)[0], view.layout(batch.size))
