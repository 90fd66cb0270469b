"""Attention read as evidence: raw, rolled out over the layers, weighted by its gradient.

"The row of the class token" is spelled `View.readout_weights` here: it is that row on models with a class token, the
mean over patch rows on average-pooled models, and the pool's own attention where a model pools by attention.
"""

from dataclasses import dataclass

from torch import Tensor

from vitrail.errors import InputError
from vitrail.method.base import RULES, Batch, Gradient, Method, register
from vitrail.model import Need, View


@register("raw_attention", family="attention", paper="Vaswani et al. 2017", cost="1 forward", needs=(Need.ATTENTION,))
@dataclass(frozen=True)
class RawAttention(Method):
    """What one layer's heads attend to on average, as the head reads it. The same for every class.

    Attributes:
        layer: The block, counted from 0, or from the end when negative.
    """

    layer: int = -1

    def maps(self, view: View, batch: Batch) -> Tensor:
        if not -view.depth <= self.layer < view.depth:
            raise InputError(f"layer {self.layer} does not exist: {view.name} has {view.depth} blocks")
        trace = view.trace(batch.images, attention=True, start=view.depth)  # no gradient, no graph
        batch.score(trace.logits)
        attention = trace.attention[self.layer].detach().float().mean(1)
        layout = view.layout(batch.size)
        row = view.readout_weights(trace, layout)
        return view.patch_map((row[:, None] @ attention)[:, 0], layout)


@register("rollout", family="attention", paper="Abnar and Zuidema 2020", cost="1 forward", needs=(Need.ATTENTION,))
@dataclass(frozen=True)
class Rollout(Method):
    """Attention and skip connection of every layer multiplied up, rows summing to one. The same for every class.

    Attributes:
        start: The first block taken in.
    """

    start: int = 0

    def maps(self, view: View, batch: Batch) -> Tensor:
        check_start(self.start, view)
        trace = view.trace(batch.images, attention=True, start=view.depth)  # no gradient, no graph
        batch.score(trace.logits)
        layout = view.layout(batch.size)
        row = view.readout_weights(trace, layout)
        # Only one row of the product is wanted: multiply a vector through, last layer first.
        for attention in reversed(trace.attention[self.start :]):
            mixing = attention.detach().float().mean(1)
            total = mixing.sum(-1) + 1
            row = ((row / total)[:, None] @ mixing)[:, 0] + row / total
        return view.patch_map(row, layout)


@register(
    "genatt", family="attention", paper="Chefer et al. 2021b", cost="1 forward, 1 backward", needs=(Need.ATTENTION,)
)
@dataclass(frozen=True)
class GenAtt(Method):
    """Attention times its gradient, positive part, rolled out with the skip connections.

    Attributes:
        start: The first block taken in.
        gradient: The model's own gradient, or the frozen one.
    """

    start: int = 0
    gradient: Gradient = "true"

    def maps(self, view: View, batch: Batch) -> Tensor:
        check_start(self.start, view)
        trace = view.trace(batch.images, attention=True, rule=RULES[self.gradient], start=self.start)
        layers = trace.attention[self.start :]
        gradients = view.gradient(batch.score(trace.logits), layers)
        layout = view.layout(batch.size)
        row = view.readout_weights(trace, layout)
        for attention, gradient in zip(reversed(layers), reversed(gradients)):
            relevance = (attention.detach() * gradient).relu().float().mean(1)
            row = row + (row[:, None] @ relevance)[:, 0]
        return view.patch_map(row, layout)


def check_start(start: int, view: View) -> None:
    """Refuse a start layer the model does not have."""
    if not 0 <= start < view.depth:
        raise InputError(f"the start layer must be 0 to {view.depth - 1} on {view.name}, but {start} was given")
