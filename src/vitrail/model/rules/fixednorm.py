"""Batch normalisation with fixed statistics, and a gradient that costs no more than it has to.

In evaluation mode it is a scale and a shift, so its gradient is one product. On a CPU torch reads the input once more
and adds up what the weights' gradients would need, whether or not anyone asks for them; `benchmarks/cnn_cpu.py` has
both.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode


class FixedNorm(TorchFunctionMode):
    """Inside the ``with`` block values are torch's bit for bit, and its weights get no gradient. Made for a CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = _normed(*args, **(kwargs or {})) if func is F.batch_norm else None
        return func(*args, **(kwargs or {})) if found is None else found


def _normed(
    input: Tensor,  # noqa: A002  the argument's name in torch
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor | None:
    """What batch normalisation gives, or None where its own gradient is as good or the only right one."""
    if training or running_mean is None or running_var is None or not input.requires_grad:
        return None
    found: Tensor = _Scaled.apply(input, running_mean, running_var, weight, bias, eps)
    return found


class _Scaled(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        scale = (variance + eps).rsqrt()
        scale = scale if weight is None else scale * weight
        ctx.save_for_backward(scale.view(-1, *[1] * (x.ndim - 2)))
        return F.batch_norm(x, mean, variance, weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (scale,) = ctx.saved_tensors
        return (slope * scale).to(slope.dtype), None, None, None, None, None
