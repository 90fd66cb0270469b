"""The linear pieces of pre-norm transformer blocks, found by listening to the calls a block makes.

Nothing is looked up by name: a block runs once under a `Tap` whose rule notes every linear layer, normalisation,
activation and product with a vector. What the pieces mean is read from what they take and give, and the block is
computed again from them: a block that does not come out the same (post-norm, norms inside attention or MLP, separate
gate layers, parallel branches) has no parts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.rules.backward import Rule
from vitrail.model.rules.tap import Tap
from vitrail.model.trace import first_of

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Affine:
    """``x W^T + b``; a layer without a bias has a bias of zeros."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, self.weight, self.bias)

    def linear(self, x: Tensor) -> Tensor:
        """The same without the bias."""
        return F.linear(x, self.weight)

    def to(self, dtype: torch.dtype) -> "Affine":
        """The same in another floating point type."""
        return Affine(self.weight.to(dtype), self.bias.to(dtype))


@dataclass(frozen=True)
class Norm:
    """LayerNorm: centred, divided by the deviation, times the weight, plus the bias."""

    weight: Tensor
    bias: Tensor
    eps: float

    def deviation(self, x: Tensor) -> Tensor:
        """(..., 1): what the true vectors are divided by."""
        return (x.var(-1, unbiased=False, keepdim=True) + self.eps).sqrt()

    def linear(self, parts: Tensor, deviation: Tensor) -> Tensor:
        """Parts of a vector: each centred by its own mean and divided by the whole's deviation; no bias."""
        return (parts - parts.mean(-1, keepdim=True)) / deviation * self.weight

    def __call__(self, x: Tensor) -> Tensor:
        """The whole normalisation."""
        return self.linear(x, self.deviation(x)) + self.bias

    def to(self, dtype: torch.dtype) -> "Norm":
        """The same in another floating point type."""
        return Norm(self.weight.to(dtype), self.bias.to(dtype), self.eps)


@dataclass(frozen=True)
class BlockParts:
    """A block ``a = x + scale1 * output(attention mix of value(norm1(x)))``, ``a + scale2 * fc2(hidden(norm2(a)))``.

    Attributes:
        norm1: The normalisation in front of the attention.
        value: Tokens to the heads' value vectors, head by head.
        output: The projection behind the attention.
        scale1: (D,) LayerScale of the attention branch, ones where there is none.
        norm2: The normalisation in front of the MLP.
        fc1: The MLP's first layer (of a gated unit: the linear half).
        gate: The first layer's other half in a gated unit such as SwiGLU, else None.
        activation: The function behind ``fc1``, or behind ``gate`` where there is one.
        fc2: The MLP's second layer.
        scale2: (D,) LayerScale of the MLP branch, ones where there is none.
    """

    norm1: Norm
    value: Affine
    output: Affine
    scale1: Tensor
    norm2: Norm
    fc1: Affine
    gate: Affine | None
    activation: Activation
    fc2: Affine
    scale2: Tensor

    def to(self, dtype: torch.dtype) -> "BlockParts":
        """The same pieces in another floating point type."""
        return BlockParts(
            self.norm1.to(dtype),
            self.value.to(dtype),
            self.output.to(dtype),
            self.scale1.to(dtype),
            self.norm2.to(dtype),
            self.fc1.to(dtype),
            None if self.gate is None else self.gate.to(dtype),
            self.activation,
            self.fc2.to(dtype),
            self.scale2.to(dtype),
        )

    def values(self, x: Tensor, heads: int) -> Tensor:
        """(B, T, D) tokens -> the (B, H, T, d) vectors that attention mixes."""
        values: Tensor = self.value(self.norm1(x)).unflatten(-1, (heads, -1)).transpose(1, 2)
        return values

    def attended(self, x: Tensor, attention: Tensor) -> Tensor:
        """(B, T, D) tokens and (B, H, T, T) probabilities -> the tokens between attention and MLP."""
        mixed = (attention @ self.values(x, attention.shape[1])).transpose(1, 2).flatten(2)
        return x + self.scale1 * self.output(mixed)

    def hidden(self, normed: Tensor) -> Tensor:
        """The MLP's (..., hidden) vector behind its activation."""
        if self.gate is None:
            return self.activation(self.fc1(normed))
        return self.fc1(normed) * self.activation(self.gate(normed))

    def __call__(self, x: Tensor, attention: Tensor) -> Tensor:
        """The block, given its attention probabilities."""
        a = self.attended(x, attention)
        return a + self.scale2 * self.fc2(self.hidden(self.norm2(a)))


@dataclass(frozen=True)
class Call:
    """One noted call."""

    kind: str
    x: Tensor
    out: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0
    function: Activation | None = None


class _Notes:
    """A rule that changes nothing and notes what a block calls, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.rule = Rule(
            "noting",
            attention=self._attention,
            calls={
                F.linear: self._linear,
                F.layer_norm: self._layer_norm,
                **{f: self._activation(f) for f in (F.gelu, F.silu, F.relu, torch.relu, torch.Tensor.relu)},
                **{f: self._sigmoid(f) for f in (torch.sigmoid, F.sigmoid, torch.Tensor.sigmoid)},
                **{f: self._mul(f) for f in (torch.mul, torch.Tensor.mul, torch.Tensor.mul_)},
            },
        )

    def _attention(self, probabilities: Tensor) -> Tensor:
        self.calls.append(Call("attention", probabilities, probabilities))
        return probabilities

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
        out = F.linear(input, weight, bias)
        self.calls.append(Call("linear", input, out.clone(), weight, bias))
        return out

    def _layer_norm(
        self,
        input: Tensor,  # noqa: A002
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        out = F.layer_norm(input, list(normalized_shape), weight, bias, eps)
        self.calls.append(Call("norm", input.clone(), out, weight, bias, eps))
        return out

    def _activation(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noted(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002
            kwargs.pop("inplace", None)
            out = function(input, *args, **kwargs)
            self.calls.append(Call("activation", input, out, function=partial(function, **kwargs)))
            return out

        return noted

    def _sigmoid(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noted(input: Tensor) -> Tensor:  # noqa: A002
            out = function(input)
            self.calls.append(Call("sigmoid", input, out))
            return out

        return noted

    def _mul(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noted(a: Any, b: Any, **kwargs: Any) -> Tensor:
            vector = next((v for v in (a, b) if isinstance(v, Tensor) and v.ndim == 1), None)
            out = function(a, b, **kwargs)
            if vector is not None:
                self.calls.append(Call("scale", out, out, vector))
            return out

        return noted


def find_parts(
    modules: Sequence[nn.Module], tokens: Tensor, extras: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
) -> tuple[BlockParts, ...] | None:
    """The parts of every block, or None when one of them is built otherwise.

    Args:
        modules: The blocks, first to last.
        tokens: (B, T, D) tokens that enter the first; any will do, real ones serve best.
        extras: What each block is given besides its tokens.
    """
    found = []
    with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
        for module, (args, kwargs) in zip(modules, extras):
            calls, out = listen(module, tokens, *args, **kwargs)
            parts = parts_of(calls, tokens, out)
            if parts is None:
                return None
            found.append(parts)
            tokens = out
    return tuple(found)


def listen(block: Callable[..., Any], tokens: Tensor, *args: Any, **kwargs: Any) -> tuple[list[Call], Tensor]:
    """What a block calls when it is given (B, T, D) tokens and all else it takes, and the tokens that leave it."""
    notes = _Notes()
    with Tap(rule=notes.rule, read=True):
        out = block(tokens.clone(), *args, **kwargs)
    return notes.calls, first_of(out)


def parts_of(calls: list[Call], x: Tensor, out: Tensor) -> BlockParts | None:
    """One block's parts from what it called, checked against its own answer."""
    try:
        parts = _read(calls, x)
    except (_OtherFormError, RuntimeError):  # a RuntimeError: shapes that do not fit together
        return None
    (attention,) = (call.out for call in calls if call.kind == "attention")
    wide = torch.promote_types(x.dtype, torch.float32)
    again = parts.to(wide)(x.to(wide), attention.to(wide))
    # The skip connection alone is no agreement, but a faint branch is known only to the precision of the sum.
    share, floor = (1e-4, 1e-6) if torch.finfo(x.dtype).bits >= 32 else (4e-2, 1e-2)
    off, branch = float((again - out).norm()), float((out - x).norm())
    return parts if off <= share * branch + floor * float(out.norm()) else None


class _OtherFormError(Exception):
    """The block is not a pre-norm block of the usual form."""


def _first(calls: Sequence[Call], kind: str, test: Callable[[Call], bool]) -> int:
    for i, call in enumerate(calls):
        if call.kind == kind and test(call):
            return i
    raise _OtherFormError


def _read(calls: list[Call], x: Tensor) -> BlockParts:
    """Name the calls of a pre-norm block."""
    if sum(call.kind == "attention" for call in calls) != 1:
        raise _OtherFormError
    attended = _first(calls, "attention", lambda _: True)
    entry = calls[_first(calls[:attended], "norm", lambda call: _same(call.x, x))]
    behind = calls[attended + 1 :]
    project = _first(behind, "linear", lambda _: True)
    second = _first(behind, "norm", lambda call: call.x.shape[-1] == x.shape[-1])
    linears = [i for i, call in enumerate(behind) if call.kind == "linear" and i > second]
    if project > second or len(linears) != 2 or sum(call.kind == "norm" for call in behind) != 1:
        raise _OtherFormError
    projection, middle, first, last = behind[project], behind[second], behind[linears[0]], behind[linears[1]]
    if not _same(first.x, middle.out):
        raise _OtherFormError
    fc1, gate, activation = _mlp(behind[linears[0] : linears[1]], last.x.shape[-1])
    return BlockParts(
        norm1=_norm(entry),
        value=_value(calls[:attended], entry.out, calls[attended].out, projection.x),
        output=_affine(projection),
        scale1=_scale(behind[project:second], x),
        norm2=_norm(middle),
        fc1=fc1,
        gate=gate,
        activation=activation,
        fc2=_affine(last),
        scale2=_scale(behind[linears[1] :], x),
    )


def _value(before: Sequence[Call], entry: Tensor, attention: Tensor, mixed: Tensor) -> Affine:
    """The rows of a linear layer whose outputs, mixed by the attention, are what the projection takes."""
    heads = attention.shape[1]
    mixed = _tokens_second(mixed, attention.shape[-1])
    for piece in pieces(before, entry, mixed.shape[-1]):
        values = piece.linear(entry).unflatten(-1, (heads, -1)).transpose(1, 2)
        rest = mixed - (attention.to(values.dtype) @ values).transpose(1, 2).flatten(2)
        # Attention rows sum to one, so a bias added anywhere on the way is what is left over.
        for bias in (piece.bias, rest.mean((0, 1))):
            if _same(mixed - rest + bias, mixed):
                return Affine(piece.weight, bias)
    raise _OtherFormError


def pieces(before: Sequence[Call], entry: Tensor, width: int) -> Iterator[Affine]:
    """Rows of the linear layers that take the normalised tokens, ``width`` at a time, the last first."""
    for call in reversed([call for call in before if call.kind == "linear"]):
        if _same(_tokens_second(call.x, entry.shape[1]), entry):
            whole = _affine(call)
            for begin in reversed(range(0, len(whole.weight) - width + 1, width)):
                yield Affine(whole.weight[begin : begin + width], whole.bias[begin : begin + width])


def _mlp(calls: Sequence[Call], width: int) -> tuple[Affine, Affine | None, Activation]:
    """First layer, gate layer and activation from the calls between the MLP's two linear layers, the first included."""
    whole, out = _affine(calls[0]), calls[0].out
    acted = [call for call in calls if call.kind in ("activation", "sigmoid")]
    if len(acted) != 1:
        raise _OtherFormError
    (act,) = acted
    activation = act.function or _sigmoid_gated(act.x, out)
    if len(whole.weight) == width:
        return whole, None, activation
    if len(whole.weight) != 2 * width:
        raise _OtherFormError
    halves = [Affine(w, b) for w, b in zip(whole.weight.split(width), whole.bias.split(width))]
    first = _same(act.x, out[..., :width])
    return (halves[1], halves[0], activation) if first else (halves[0], halves[1], activation)


def _sigmoid_gated(x: Tensor, out: Tensor) -> Activation:
    """``h sigmoid(c h)``, as QuickGELU is usually written, with the constant read from the call."""
    if x.shape != out.shape:
        raise _OtherFormError
    sharpness = float((x * out).sum() / (out * out).sum())
    return lambda h: h * torch.sigmoid(sharpness * h)


def _scale(calls: Sequence[Call], x: Tensor) -> Tensor:
    """The product of the vectors a branch was multiplied with."""
    found = [call.weight for call in calls if call.kind == "scale" and call.weight is not None]
    vectors = [vector.detach() for vector in found if vector.shape == x.shape[-1:]]
    return reduce(torch.mul, vectors) if vectors else x.new_ones(x.shape[-1])


def _affine(call: Call) -> Affine:
    assert call.weight is not None
    bias = call.weight.new_zeros(len(call.weight)) if call.bias is None else call.bias
    return Affine(call.weight.detach(), bias.detach())


def _norm(call: Call) -> Norm:
    width = call.x.shape[-1]
    weight = call.x.new_ones(width) if call.weight is None else call.weight.detach()
    bias = call.x.new_zeros(width) if call.bias is None else call.bias.detach()
    return Norm(weight, bias, call.eps)


def _tokens_second(x: Tensor, tokens: int) -> Tensor:
    """(B, T, D) of a tensor that may come as (T, B, D)."""
    return x if x.shape[1] == tokens else x.transpose(0, 1)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree to the precision of the coarser one."""
    if a.shape != b.shape:
        return False
    exact = min(torch.finfo(a.dtype).bits, torch.finfo(b.dtype).bits) >= 32
    a, b = a.double(), b.double()
    return math.isfinite(float(b.norm())) and float((a - b).norm()) <= (1e-4 if exact else 4e-2) * float(b.norm())
