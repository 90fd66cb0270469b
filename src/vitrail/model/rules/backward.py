"""Other backward rules on the same forward pass: the value stays the model's own, the gradient follows the rule.

A rule replaces single functional calls (``layer_norm``, ``gelu``, attention's softmax, ...) while a model runs under a
`Tap`. Nothing in the model is rewritten, so a rule works on any model that calls those functions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.model.anatomy.activations import RECTIFIERS, rectifies

_GATED = "_vitrail_gated"


@dataclass(frozen=True)
class Rule:
    """What the gradient sees instead of the true function.

    Attributes:
        name: The name methods and manifests use.
        attention: Maps attention probabilities to what the rest of the graph multiplies the values with.
        calls: Function -> replacement, called with the function's own arguments.
    """

    name: str
    attention: Callable[[Tensor], Tensor]
    calls: Mapping[Callable[..., Any], Callable[..., Tensor]] = field(default_factory=dict)


def with_gradient_of(value: Tensor, ruled: Tensor) -> Tensor:
    """Return ``value`` bit for bit, with the gradient of ``ruled``."""
    return value.detach() + (ruled - ruled.detach())


class _LayerNorm(torch.autograd.Function):
    """Layer normalisation whose standard deviation is a constant: one fused kernel forward, nothing kept but its input.

    The graph of the plain formula keeps half a dozen tensors of the input's size, which on a GPU is most of the time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,  # noqa: A002
        shape: list[int],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.shape, ctx.eps = shape, eps
        return F.layer_norm(input, shape, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, Tensor | None, Tensor | None, None]:
        given, weight = ctx.saved_tensors
        dims = tuple(range(-len(ctx.shape), 0))
        x = given.to(slope.dtype)
        scale = (x.var(dims, correction=0, keepdim=True) + ctx.eps).rsqrt()
        of_weight, of_bias = None, None
        if ctx.needs_input_grad[2]:
            of_weight = (slope * (x - x.mean(dims, keepdim=True)) * scale).reshape(-1, *ctx.shape).sum(0)
        if ctx.needs_input_grad[3]:
            of_bias = slope.reshape(-1, *ctx.shape).sum(0)
        slope = slope if weight is None else slope * weight
        return ((slope - slope.mean(dims, keepdim=True)) * scale).to(given.dtype), None, of_weight, of_bias, None


def _layer_norm(
    input: Tensor,  # noqa: A002  the argument's name in torch
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer normalisation whose standard deviation is a constant."""
    found: Tensor = _LayerNorm.apply(input, normalized_shape, weight, bias, eps)
    return found


def _rms_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Root-mean-square normalisation whose scale is a constant."""
    dims = tuple(range(-len(normalized_shape), 0))
    floor = torch.finfo(input.dtype).eps if eps is None else eps
    ruled = input * (input.detach().pow(2).mean(dims, keepdim=True) + floor).rsqrt()
    if weight is not None:
        ruled = ruled * weight
    return with_gradient_of(F.rms_norm(input, normalized_shape, weight, eps), ruled)


def _normalize(
    input: Tensor,  # noqa: A002
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: Tensor | None = None,  # noqa: ARG001  part of the signature, unused by models
) -> Tensor:
    """Projection onto the unit sphere whose radius is a constant (the last step of CLIP)."""
    radius: Tensor = input.detach().norm(p, dim, keepdim=True)
    return input / radius.clamp_min(eps)


def _gated(value: Tensor, x: Tensor, gate: Tensor) -> Tensor:
    """``x * gate`` with a constant gate, marked so that a following product with a twin freezes it whole (SwiGLU)."""
    out = with_gradient_of(value, x * gate.detach())
    setattr(out, _GATED, True)
    return out


class _Gelu(torch.autograd.Function):
    """GELU(x) = x Phi(x) with a constant gate Phi(x), which is computed when it is asked for."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, approximate: str) -> Tensor:  # noqa: A002
        ctx.save_for_backward(input)
        ctx.approximate = approximate
        return F.gelu(input, approximate=approximate)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if ctx.approximate == "tanh":
            return slope * (0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))), None
        return slope * (0.5 * (1 + torch.erf(x / math.sqrt(2)))), None


def _gelu(input: Tensor, approximate: str = "none") -> Tensor:  # noqa: A002
    """GELU with a constant gate, marked as `_gated` does."""
    out: Tensor = _Gelu.apply(input, approximate)
    setattr(out, _GATED, True)
    return out


def _silu(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002, ARG001  never in place: the graph needs both
    """SiLU(x) = x sigmoid(x) with a constant gate."""
    return _gated(F.silu(input), input, torch.sigmoid(input))


def _constant(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function whose result is a constant: gates written out by hand (QuickGELU, GELU, squeeze-excite, RMSNorm)."""

    def constant(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs).detach()

    return constant


def _mul(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The product ``act(g) * x`` of a gated unit: the gate is constant, so that the product is linear in ``x``."""

    def mul(a: Any, b: Any, **kwargs: Any) -> Tensor:
        first, second = getattr(a, _GATED, False), getattr(b, _GATED, False)
        if first != second and getattr(a, "shape", None) == getattr(b, "shape", ()):
            a, b = (a.detach(), b) if first else (a, b.detach())
        return function(a, b, **kwargs)

    return mul


def _guided(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A ReLU that passes back positive gradients only; a hook, so that an in-place ReLU stays one."""

    def relu(*args: Any, **kwargs: Any) -> Tensor:
        out = function(*args, **kwargs)
        if out.requires_grad and rectifies(function, args, kwargs):
            out.register_hook(torch.relu)
        return out

    return relu


TRUE = Rule("true", attention=lambda probabilities: probabilities)

FROZEN = Rule(
    "frozen",
    attention=Tensor.detach,
    calls={
        F.layer_norm: _layer_norm,
        F.rms_norm: _rms_norm,
        F.normalize: _normalize,
        F.gelu: _gelu,
        F.silu: _silu,
        **{f: _constant(f) for f in (torch.sigmoid, F.sigmoid, torch.Tensor.sigmoid, torch.rsqrt, torch.Tensor.rsqrt)},
        **{f: _constant(f) for f in (torch.erf, torch.Tensor.erf)},
        **{f: _mul(f) for f in (torch.mul, torch.Tensor.mul)},
    },
)
"""Attention probabilities, normalisers and activation gates held constant: the network becomes affine in its tokens,
and input x gradient under this rule is DecompX without bias, from every layer at once."""

GUIDED = Rule(
    "guided",
    attention=lambda probabilities: probabilities,
    calls={f: _guided(f) for f in RECTIFIERS},
)
"""Guided backpropagation: the negative part of the gradient is cut off at every activation of the ReLU family."""
