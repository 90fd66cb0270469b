"""What a method needs from a model, and what one forward pass through it leaves behind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
"""``tf32`` is float32 with faster, coarser matrix products, on GPUs that have them; the others say it themselves."""


def full(tensor: Tensor) -> Tensor:
    """The tensor in float32 at least: half types have too few digits for sums, float64 keeps all of its own."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def widest(device: torch.device) -> torch.dtype:
    """The type with the most digits that a device has: float64, or float32 on those that have no more."""
    return torch.float64 if device.type in ("cpu", "cuda") else torch.float32


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place; torch does not count it for those made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def first_of(output: Any) -> Any:
    """What a module returns, or the first of it where that is a tuple."""
    return output[0] if isinstance(output, tuple) and output else output


def normal(value: Value) -> Value:
    """The value itself; of a tensor made in inference mode a copy, because no gradient could use that."""
    if not isinstance(value, Tensor) or not value.is_inference():
        return value
    copied: Any = value.clone()
    found: Value = copied
    return found


def logits_of(output: Any) -> Tensor:
    """The logits in whatever a model returns: a tensor, a tuple, or an object with ``.logits``.

    Some classifiers of Hugging Face (PP-LCNet) call them ``.last_hidden_state``.
    """
    if hasattr(output, "logits"):
        output = output.logits
    elif getattr(output, "last_hidden_state", None) is not None:
        output = output.last_hidden_state
    logits: Tensor = normal(first_of(output))
    return logits


def pool_among(attention: Sequence[Tensor], images: int, tokens: int) -> Tensor | None:
    """The last attention over all ``tokens`` of each image, among the calls behind the blocks; windows are none."""
    found = [a for a in attention if a.ndim == 4 and a.shape[0] == images and a.shape[-1] == tokens]
    return found[-1] if found else None


class Need(StrEnum):
    """What a method needs from a model."""

    GRADIENTS = "gradients"
    FEATURES = "features"
    TOKENS = "tokens"
    ATTENTION = "attention"
    PARTS = "parts"
    RELU = "relu"


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


class Meter:
    """Images pushed forward and backward through the model since the view was made.

    Attributes:
        backwards: Images pushed backward.
        listener: Told how many more were pushed forward, at once; a progress bar, for example.
    """

    def __init__(self) -> None:
        self._forwards = 0
        self.backwards = 0
        self.listener: Callable[[int], object] | None = None

    @property
    def forwards(self) -> int:
        """Images pushed forward."""
        return self._forwards

    @forwards.setter
    def forwards(self, count: int) -> None:
        if self.listener is not None:
            self.listener(count - self._forwards)
        self._forwards = count
