"""Guided backpropagation: the pixel gradient that lets only positive evidence through every ReLU."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from vitrail.method.base import Method, register
from vitrail.method.batch import Batch
from vitrail.model import GUIDED, Need, View, full

Reduce = Literal["abs", "sum", "norm2"]


def guided_gradient(view: View, batch: Batch) -> Tensor:
    """(B, 3, H, W): the gradient of the scores with its negative part cut off at every ReLU."""
    trace = view.trace(batch.images, rule=GUIDED, pixels=True)
    return full(view.gradient(batch.learn(trace.logits).score(trace.logits), [trace.images])[0])


def reduced(gradient: Tensor, how: Reduce) -> Tensor:
    """(B, 3, H, W) -> (B, H, W)."""
    if how == "norm2":
        return gradient.square().sum(1).sqrt()
    return (gradient.abs() if how == "abs" else gradient).sum(1)


@register(
    "gbp",
    paper="Springenberg et al. 2015",
    cost="1 forward, 1 backward",
    needs=(Need.GRADIENTS, Need.RELU),
)
@dataclass(frozen=True)
class GuidedBackprop(Method):
    """The pixel gradient with its negative part cut off at every ReLU, channels added up.

    The ReLU family counts: ReLU, ReLU6 and a hard tanh from zero on, as a module or a function, in place or not. A
    model with other activations (GELU, SiLU, Hardswish, ...) is refused: nothing would be cut off there.

    Attributes:
        reduce: ``abs`` adds absolute values, ``sum`` keeps the sign, ``norm2`` takes the length.
    """

    pixels: ClassVar[bool] = True
    reduce: Reduce = "abs"

    @property
    def signed(self) -> bool:
        return self.reduce == "sum"

    def maps(self, view: View, batch: Batch) -> Tensor:
        return reduced(guided_gradient(view, batch), self.reduce)
