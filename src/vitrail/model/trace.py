"""What a method needs from a model, and what one forward pass through it leaves behind."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from torch import Tensor

Precision = Literal["fp32", "bf16", "fp16"]


class Need(StrEnum):
    """What a method needs from a model."""

    GRADIENTS = "gradients"
    FEATURES = "features"
    TOKENS = "tokens"
    ATTENTION = "attention"
    PARTS = "parts"


@dataclass
class Trace:
    """One forward pass, kept in the autograd graph: ask `View.gradient` for the gradient of any tensor in it.

    Attributes:
        images: (B, 3, H, W), a leaf when pixels were asked for.
        logits: (B, classes).
        entry: The tensor Grad-CAM reads: (B, T, D) tokens, or a feature map in the model's own axis order.
        states: The L + 1 token tensors (B, T, D): the input of every block, then the output of the last.
        attention: One (B, heads, T, T) tensor a block, when asked for.
        values: One (B, heads, T, channels) tensor a block, what its attention mixes, when attention was asked for.
        pool: The attention pool's (B, heads, queries, T) probabilities, where the model has one.
    """

    images: Tensor
    logits: Tensor
    entry: Tensor
    states: list[Tensor]
    attention: list[Tensor]
    values: list[Tensor]
    pool: Tensor | None


@dataclass
class Meter:
    """Images pushed forward and backward through the model since the view was made."""

    forwards: int = 0
    backwards: int = 0
