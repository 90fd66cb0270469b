"""Class activation maps that weigh features by gradients: Grad-CAM and its kin.

On a ViT the features are the tokens after the last block's first normalisation, on a CNN the last map before pooling;
neither needs to be named. A map is read from the patches alone, as pytorch-grad-cam does; the per-layer form that PLUS
adds up is read from the tokens entering a block, prefix tokens included, and keeps its sign.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.method.base import MAP, RULES, Gradient, State, register
from vitrail.method.batch import Batch
from vitrail.method.layered import (
    Block,
    Layered,
    alone,
    block_field,
    block_of,
    check_length,
    check_start,
    products,
    states_and_gradients,
)
from vitrail.model import Need, View, full

COST = "1 forward, 1 backward"


def positions(features: Tensor) -> Tensor:
    """(B, channels, rows, columns) -> (B, positions, channels): a feature map laid out as tokens are."""
    return features.flatten(2).transpose(1, 2)


@dataclass(frozen=True)
class WeightedFeatures(Layered):
    """A sum over channels of features times weights; the kin of Grad-CAM differ in the weights alone.

    Attributes:
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    wide: ClassVar[bool] = False
    """Whether features are read in float64, because weights divide by sums that nearly cancel."""

    relu: bool = alone(True, stage="render")
    gradient: Gradient = "true"

    @abstractmethod
    def weights(self, x: Tensor, g: Tensor) -> Tensor:
        """What (B, positions, channels) features are multiplied with, given their gradient; may be (B, 1, channels)."""

    def layer_weights(self, x: Tensor, g: Tensor) -> Tensor:
        """The same for the tokens of one layer."""
        return self.weights(x, g)

    @property
    def signed(self) -> bool:
        return not self.relu

    @property
    def layers_signed(self) -> bool:
        return True

    def search(self, view: View, batch: Batch) -> State:
        # On a ViT the features lie in the last block: the graph needs to reach no further back.
        trace = view.trace(batch.images, rule=RULES[self.gradient], start=max(view.depth - 1, 0), wide=self.wide)
        (gradient,) = view.gradient(batch.learn(trace.logits).score(trace.logits), [trace.entry])
        features = full(view.spatial(trace.entry.detach(), batch.size))
        x, g = positions(features), positions(full(view.spatial(gradient, batch.size)))
        cam: Tensor = (self.weights(x, g) * x).sum(-1).unflatten(1, features.shape[2:])
        return {MAP: cam}

    def render(self, state: State) -> Tensor:
        return state[MAP].relu() if self.relu else state[MAP]

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        states, gradients = states_and_gradients(view, batch, start, RULES[self.gradient], wide=self.wide)
        weights = [self.layer_weights(x, g) for x, g in zip(states[:-1], gradients[:-1])]
        return products(view, batch, states[:-1], weights)


@register("gradcam", paper="Selvaraju et al. 2017", cost=COST, needs=(Need.FEATURES, Need.GRADIENTS))
@dataclass(frozen=True)
class GradCAM(WeightedFeatures):
    """Features weighted by their mean gradient, positive part.

    Attributes:
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    def weights(self, x: Tensor, g: Tensor) -> Tensor:
        return g.mean(1, keepdim=True)


@register("gradcam++", paper="Chattopadhay et al. 2018", cost=COST, needs=(Need.FEATURES, Need.GRADIENTS))
@dataclass(frozen=True)
class GradCAMPlusPlus(WeightedFeatures):
    """Features weighted by their positive gradient, each place with a coefficient from its higher derivatives.

    The score is taken as the exponential of the logit, which turns the second and third derivatives into powers of the
    first. In the per-layer form the weights keep negative gradients too, as SkipPLUS has it.

    Attributes:
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    wide: ClassVar[bool] = True

    def weights(self, x: Tensor, g: Tensor) -> Tensor:
        return (_coefficients(x, g, 1e-6) * g.relu()).sum(1, keepdim=True)

    def layer_weights(self, x: Tensor, g: Tensor) -> Tensor:
        return (_coefficients(x, g, 1e-7) * g).sum(1, keepdim=True)


def _coefficients(x: Tensor, g: Tensor, eps: float) -> Tensor:
    """The alpha of Grad-CAM++; 0 where the gradient is."""
    squared = g.square()
    return squared / (2 * squared + x.sum(1, keepdim=True) * squared * g + eps)


@register("xgradcam", paper="Fu et al. 2020", cost=COST, needs=(Need.FEATURES, Need.GRADIENTS))
@dataclass(frozen=True)
class XGradCAM(WeightedFeatures):
    """Features weighted by their gradient's mean, every place counting with its share of the channel's sum.

    Made for features that are not negative: where a channel's values cancel, its weight grows without bound. On a ViT
    prefer ``xgradcam+``.

    Attributes:
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    wide: ClassVar[bool] = True

    def weights(self, x: Tensor, g: Tensor) -> Tensor:
        return (g * x).sum(1, keepdim=True) / (x.sum(1, keepdim=True) + 1e-7)


@register("xgradcam+", paper="Mehri et al. 2024", cost=COST, needs=(Need.FEATURES, Need.GRADIENTS))
@dataclass(frozen=True)
class XGradCAMPlus(WeightedFeatures):
    """XGradCAM with shares of absolute values, so that features of both signs do not cancel.

    Attributes:
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    def weights(self, x: Tensor, g: Tensor) -> Tensor:
        return (g * x.abs()).sum(1, keepdim=True) / (x.abs().sum(1, keepdim=True) + 1e-7)


@register("hirescam", paper="Draelos and Carin 2020", cost=COST, needs=(Need.FEATURES, Need.GRADIENTS))
@dataclass(frozen=True)
class HiResCAM(WeightedFeatures):
    """Features times their own gradient, place by place: nothing is averaged away.

    Attributes:
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    def weights(self, x: Tensor, g: Tensor) -> Tensor:
        return g

    def check_layers(self, view: View, start: int, composition: str) -> None:
        if self.gradient == "true":
            check_length(view, start, composition, self.id)


@register("layercam", paper="Jiang et al. 2021", cost=COST, needs=(Need.FEATURES, Need.GRADIENTS))
@dataclass(frozen=True)
class LayerCAM(WeightedFeatures):
    """Features times the positive part of their own gradient, place by place.

    Attributes:
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    def weights(self, x: Tensor, g: Tensor) -> Tensor:
        return g.relu()


@register("attcam", paper="Chefer et al. 2021", cost=COST, needs=(Need.ATTENTION, Need.GRADIENTS))
@dataclass(frozen=True)
class AttCAM(Layered):
    """Grad-CAM with one block's heads as channels: each head's attention times its mean gradient over the patches.

    With A and G one block's attention and its gradient, r the readout (`View.readout_weights`: the class token, the
    mean over patches or the pool's attention), the value of token j is the mean over heads h of
    sum_i r[i] A[h, i, j] w[h, i], where w[h, i] is the mean of G[h, i, k] over the patches k. On a model with a class
    token this is Chefer's baseline: the row of that token. Chefer keeps the positive part; the default here keeps the
    sign, as SkipPLUS does, since the positive part is empty whenever the heads' mean gradients are negative.

    Attributes:
        layer: The block read by the method alone: counted from 0, from the end when negative, ``middle`` or ``last``.
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    layer: Block = block_field(-1, alone=True)
    relu: bool = alone(False, stage="render")
    gradient: Gradient = "true"

    @property
    def signed(self) -> bool:
        return not self.relu

    @property
    def layers_signed(self) -> bool:
        return True

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        check_start(start, view)
        layout = view.layout(batch.size)
        trace = view.trace(batch.images, attention=True, rule=RULES[self.gradient], start=start)
        attention = trace.attention[start:]
        gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), attention)
        row = view.readout_weights(trace, layout)[:, None]
        # (B, heads, T): how much each query row of each head counts.
        rows = [row * full(g)[..., layout.prefix :].mean(-1) for g in gradients]
        return torch.stack([(w[..., None] * full(a.detach())).sum(2).mean(1) for w, a in zip(rows, attention)])

    def search(self, view: View, batch: Batch) -> State:
        values = self.layers(view, batch, block_of(self.layer, view, "layer"))[0]
        return {MAP: view.patch_map(values, view.layout(batch.size))}

    def render(self, state: State) -> Tensor:
        return state[MAP].relu() if self.relu else state[MAP]
