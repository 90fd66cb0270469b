"""What a method needs from a model, and what one forward pass through it leaves behind."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from vitrail.events import Passes, begin_passes

Value = TypeVar("Value")

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
"""The arithmetic of a pass: float32, float32 with coarser and faster matrix products (``tf32``, on GPUs that have
them), bfloat16 or float16."""


def full(tensor: Tensor) -> Tensor:
    """The tensor in float32 at least: half types have too few digits for sums, float64 keeps all of its own."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def widest(device: torch.device) -> torch.dtype:
    """The type with the most digits that a device has: float64, or float32 on those that have no more."""
    return torch.float64 if device.type in ("cpu", "cuda") else torch.float32


def is_finite(values: Tensor) -> bool:
    """Whether all values are finite: the largest of them tells, in one pass and one wait for the device."""
    return not values.numel() or math.isfinite(float(torch.linalg.vector_norm(values, math.inf)))


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
    """Images pushed forward and backward through the model since the view was made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = Passes(0, 0)
        self._own = _Own()

    def __reduce__(self) -> tuple[type["Meter"], tuple[()]]:
        return Meter, ()  # a copy of a view counts its own

    @property
    def forwards(self) -> int:
        """Images pushed forward."""
        return int(self._made.forwards)

    @property
    def backwards(self) -> int:
        """Images pushed backward."""
        return int(self._made.backwards)

    def begin(self, forwards: int = 0, backwards: int = 0) -> None:
        """Count images that are pushed through now, here and for the work that this thread does.

        Whoever wants that work to end has it end here, see `vitrail.events`.
        """
        if self._own.apart is not None:
            self._own.apart.append(Passes(forwards, backwards))
            return
        begin_passes(forwards, backwards)
        with self._lock:
            self._made = self._made.plus(Passes(forwards, backwards))

    @contextmanager
    def apart(self) -> Iterator[list[Passes]]:
        """Inside, this thread's passes do not count, as when they find out about the model: they are listed instead."""
        before, self._own.apart = self._own.apart, []
        try:
            yield self._own.apart
        finally:
            self._own.apart = before


class _Own(threading.local):
    apart: list[Passes] | None = None
