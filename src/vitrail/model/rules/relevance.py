"""Layer-wise relevance propagation as a gradient: each rule changes how a call's gradient flows, never its value.

Wherever the pass is looked at, the relevance of a tensor x is ``x * gradient``. Additions, pools, concatenations,
constant factors and reshapes then share relevance in proportion by themselves, and branches add up. A rule is needed
only where relevance goes another way, and all rules have one form: *the relevance of the value becomes the relevance of
a base*, a function of the same inputs whose own gradient shares it out (``x+ W+ + x- W-`` for z-plus, ``x`` for an
activation). Bases are built in the backward pass, so the forward pass holds nothing but the model's own tensors.

All runs in float64, whatever the model's weights are: residual sums that nearly cancel are divided by, and the rounding
of float32 alone changes whole maps (DeiT-tiny's T-Attr by as much as its largest value). A pass to the pixels can be
had in the model's own type: CNNs of convolutions, batch norms and ReLUs have no such sums.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.model.anatomy.check import reaching
from vitrail.model.anatomy.flat import in_a_row, own
from vitrail.model.anatomy.hooks import Hooks
from vitrail.model.rules.inplace import OverwrittenError, make_stale, rebinds, refuse_stale, writes
from vitrail.model.rules.shares import EPSILON, Base, Form, Residual, halved, itself, parts, passed_on, ratio, set_apart
from vitrail.model.rules.tap import Tap
from vitrail.model.rules.wide import Widening, widened
from vitrail.model.trace import Trace, first_of, logits_of, pool_among
from vitrail.model.view import View

Entry = Literal["box", "flat", "plain"]
"""The rule of a convolution on the pixels: z^B within the image's range of values (``box``), shared evenly (``flat``),
or the rule of all other convolutions."""

Made = TypeVar("Made")

_CONVOLVED = "_vitrail_convolved"
_CORNERS = "_vitrail_corners"
"""On the images, and on what padding or another layout makes of them: where the rule of the entry begins, likewise."""


@dataclass(frozen=True)
class Relevance:
    """A set of rules.

    Attributes:
        dense: The rule of linear layers.
        convolution: The rule of convolutions, a batch norm behind them folded into their weights.
        renormalise: Scale both sides of a residual addition so that no relevance is made by cancellation.
        epsilon: The stabiliser of the epsilon rule.
    """

    dense: Form
    convolution: Form
    renormalise: bool = False
    epsilon: float = 1e-6


class Propagation(Widening, Tap):
    """Runs a model so that its gradient carries relevance.

    Args:
        rules: The rules.
        images: The (B, 3, H, W) leaf the pass begins at, where it begins at pixels.
        entry: The rule of a convolution on these images.
        again: Whether several targets will ask: bases are then built once, and kept.
        follow: Let every in-place call change its tensor. Without, only those do whose result may not be looked at, and
            a tensor used again behind another one raises `OverwrittenError`: it seldom is, and copies take time.
    """

    def __init__(
        self,
        rules: Relevance,
        images: Tensor | None = None,
        entry: Entry = "plain",
        again: bool = False,
        follow: bool = False,
    ) -> None:
        super().__init__(read=True)
        self.rules = rules
        self.again = again
        self.follow = follow
        self.entry: Entry = entry
        self.entered = False
        self.corners: list[Tensor] = []
        if images is not None:
            pixels = images.detach()
            if entry == "box":
                dims = (1, 2, 3)
                self.corners = [pixels.amin(dims, keepdim=True), pixels.amax(dims, keepdim=True)]
            elif entry == "flat":
                self.corners = [torch.ones_like(pixels)]
            self.corners = [corner.expand_as(pixels).clone().requires_grad_() for corner in self.corners]
            setattr(images, _CORNERS, self.corners)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.follow:
            refuse_stale(args)
        return super().__torch_function__(func, types, args, kwargs)

    def _call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = writes(func, args)
        if not here and not rebinds(func, args, kwargs):
            return self._ruled(func, *args, **kwargs)
        x, *others = args
        if func in _RULED and not here and not self.follow and x._base is None:
            out = self._ruled(func, *args, **kwargs)
            if out is not x:
                make_stale(x)
            return out
        set_apart(x)
        if func not in _RULED:
            return func(*args, **kwargs)
        x.copy_(self._ruled(func, x.clone(), *others, **kwargs))
        return x

    def _ruled(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if func in _MOVING and hasattr(args[0], _CORNERS):  # "same" padding, before a convolution that has none
            moved = func(*args, **kwargs)
            setattr(moved, _CORNERS, [func(corner, *args[1:], **kwargs) for corner in getattr(args[0], _CORNERS)])
            return moved
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func in (F.conv2d, torch.conv2d):
            return self._convolution(*args, **kwargs)
        if func in (F.batch_norm, torch.batch_norm):
            return self._batch_norm(func, *args, **kwargs)
        if func in _PASSING:
            return self._passing(func, *args, **kwargs)
        if func in _PRODUCTS:
            return self._product(_PRODUCTS[func], *args, **kwargs)
        if func in _SUMS:
            return self._sum(*args, **kwargs)
        if func in _QUOTIENTS:
            return _quotient(*args, **kwargs)
        if func in (torch.rsqrt, torch.Tensor.rsqrt):  # a normaliser written out by hand
            return func(*args, **kwargs).detach()
        if func is torch.einsum and len(args) == 3:
            return self._passed_on(torch.einsum(*args), halved(lambda a, b: torch.einsum(args[0], a, b)), *args[1:])
        return func(*args, **kwargs)

    def last(self, logits: Tensor) -> Tensor:
        """What the model answered, where it is still what it was."""
        if not self.follow:
            refuse_stale([logits])
        return logits

    def _passed_on(self, value: Tensor, base: Base, *inputs: Tensor, by: float = EPSILON) -> Tensor:
        """``value``, whose relevance goes over to ``base(*inputs)``; ``by`` keeps the division from zero."""
        if not any(_carries(x) for x in inputs):
            return value
        return passed_on(value, base, by, self.again, *inputs)

    # ----------------------------------------------------------------------------------------------- weighted sums

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
        form, epsilon = self.rules.dense, self.rules.epsilon
        if form == "epsilon":
            return self._passed_on(
                F.linear(input, weight, bias), lambda x: (F.linear(x, weight, bias),), input, by=epsilon
            )
        return self._passed_on(F.linear(input, weight, bias), parts(F.linear, weight, form), input)

    def _convolution(
        self,
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
        *settings: Any,
        **named: Any,
    ) -> Tensor:
        def convolve(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
            return F.conv2d(x, w, b, *settings, **named)

        out = self._convolved(convolve(input, weight, bias), convolve, input, weight, bias)
        setattr(out, _CONVOLVED, (convolve, input, weight, bias))
        return out

    def _convolved(
        self, value: Tensor, convolve: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """The value of a convolution, its batch norm included, with the gradient of its rule."""
        form, epsilon = self.rules.convolution, self.rules.epsilon
        corners = getattr(x, _CORNERS, [])
        self.entered = self.entered or bool(corners)
        if corners and self.entry == "box":
            plus, minus = weight.clamp(min=0), weight.clamp(max=0)

            def box(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
                return (convolve(x, weight) - convolve(low, plus) - convolve(high, minus),)

            return self._passed_on(value, box, x, *corners)
        if corners and self.entry == "flat":
            even = torch.ones_like(weight)
            return self._passed_on(value, lambda ones: (convolve(ones, even),), *corners)
        if form == "epsilon":
            return self._passed_on(value, lambda x: (convolve(x, weight, bias),), x, by=epsilon)
        return self._passed_on(value, parts(convolve, weight, form), x)

    def _batch_norm(
        self,
        func: Callable[..., Tensor],
        input: Tensor,  # noqa: A002
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *settings: Any,
        **named: Any,
    ) -> Tensor:
        """Folded into the convolution that made its input; elsewhere relevance passes it as it passes a layer norm."""
        value = func(input.detach(), running_mean, running_var, weight, bias, *settings, **named)
        made = getattr(input, _CONVOLVED, None)
        if made is None or running_mean is None or running_var is None:
            return self._passed_on(value, itself, input, by=0)
        convolve, x, kernel, shift = made
        zero, one = torch.zeros_like(running_mean), torch.ones_like(running_mean)
        across = (1, -1, 1, 1)
        # What batch norm makes of 0 and 1 tells its factor and offset, whatever form its arguments have.
        offset, end = (
            func(x.view(across), running_mean, running_var, weight, bias, *settings, **named).flatten()
            for x in (zero, one)
        )
        factor = end - offset
        shift = offset if shift is None else offset + factor * shift
        return self._convolved(value, convolve, x, kernel * factor.view(-1, 1, 1, 1), shift)

    def _passing(self, func: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """An activation or a normalisation: the relevance passes through as it is."""
        if not _carries(x):
            return func(x, *args, **kwargs)
        value = func(x.detach().clone(), *args, **kwargs)  # a clone, for those that work in place
        return self._passed_on(value, itself, x, by=0)

    # ----------------------------------------------------------------------------------------------- two activations

    def _product(self, multiply: Callable[..., Tensor], a: Any, b: Any, **named: Any) -> Tensor:
        """Half to each factor; a matrix of constants is a linear layer."""
        if multiply is torch.matmul and isinstance(b, Tensor) and b.ndim == 2 and not b.requires_grad:
            return self._linear(a, b.T)
        if _carries(a) and _carries(b):
            return self._passed_on(multiply(a, b, **named), halved(multiply), a, b)
        return multiply(a, b, **named)

    def _sum(self, a: Any, b: Any, **named: Any) -> Tensor:
        """A residual addition of (batch, tokens, channels); every other sum shares in proportion by itself."""
        if not named and _carries(a) and _carries(b) and a.ndim == 3 and a.shape == b.shape:
            total: Tensor = Residual.apply(a, b, self.rules.renormalise)
            return total
        return torch.add(a, b, **named)

    def _fused_attention(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            mixed = super()._fused_attention(query, key, value, *args, **kwargs)
        values, probabilities = self.values.pop(), self.attention.pop()
        if values is not value:  # grouped queries
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        # The softmax passes relevance on; scale and position bias have no part in it.
        scores = halved(lambda q, k: q @ k.transpose(-2, -1))
        attention = self._passed_on(probabilities, scores, query, key)
        self.attention.append(attention)
        return self._passed_on(mixed, halved(torch.matmul), attention, value)

    def _softmax(self, func: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        probabilities = self._passing(func, x, *args, **kwargs)
        if x.ndim == 4:
            self.attention.append(probabilities)
            self.written(probabilities)
        return probabilities


# --------------------------------------------------------------------------------------------------------- running


def trace_tokens(view: View, images: Tensor, rules: Relevance, start: int = 0) -> Trace:
    """One forward pass whose gradients are relevances, from block ``start``'s input tokens on.

    Args:
        view: A model with token blocks.
        images: (B, 3, H, W).
        rules: The rules.
        start: The first block.

    Returns:
        A trace with the states and the attention of the blocks from ``start`` on only.
    """

    def make(follow: bool) -> Trace:
        return _trace_tokens(view, widened(images, view.device), rules, start, follow)

    return view.kept(images, (rules, start), lambda: _followed(view, make))


def _trace_tokens(view: View, images: Tensor, rules: Relevance, start: int, follow: bool) -> Trace:
    blocks = view.blocks
    assert blocks is not None
    tap = Propagation(rules, again=view.remembers, follow=follow)
    states: list[Tensor] = []
    seen: list[int] = []  # attention calls before block ``start``, and up to the end of the last block

    def entering(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens = in_a_row(args[0])
        if not states:
            tokens = tokens.detach().requires_grad_()
            seen.append(len(tap.attention))
        states.append(tokens)
        return tokens.view_as(args[0]), *args[1:]

    def leaving(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        left = in_a_row(first_of(output))
        states.append(left)
        seen.append(len(tap.attention))
        left = left.view_as(first_of(output))
        return (left, *output[1:]) if isinstance(output, tuple) else left

    modules = [own(block) for block in blocks.modules]
    with Hooks() as hooks, _running(view, images):
        for block in modules[start:]:
            hooks.before(block, entering)
        hooks.behind(modules[-1], leaving)
        with tap:
            logits = tap.last(logits_of(view.model(images)))
    pool = None
    if view.readout.attention:
        pool = pool_among(tap.attention[seen[1] :], len(images), states[-1].shape[1])
    return Trace(images, logits, states[0], states, tap.attention[seen[0] : seen[1]], [], pool)


def trace_pixels(
    view: View, images: Tensor, rules: Relevance, entry: Entry, wide: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """The logits, and the leaves whose value x gradient, added up, is the relevance of the pixels.

    Args:
        view: The model.
        images: (B, 3, H, W).
        rules: The rules.
        entry: The rule of a convolution on the images.
        wide: In float64; else in the model's own type.
    """

    def make(follow: bool) -> tuple[Tensor, list[Tensor]]:
        leaf = (
            widened(images, view.device) if wide else view.laid_out(images.detach().to(view.device, view.dtype)).clone()
        )
        leaf.requires_grad_()
        propagation = Propagation(rules, leaf, entry, view.remembers, follow)
        with _running(view, leaf), reaching(view), propagation as tap:
            logits = tap.last(logits_of(view.model(leaf)))
        if entry == "flat" and not tap.entered:
            raise InputError(
                f"lrp(entry=flat) is a rule for a convolution on the pixels, but {view.name} begins with none; "
                "leave it out"
            )
        return logits, [leaf, *tap.corners]

    return view.kept(images, (rules, entry, wide), lambda: _followed(view, make))


def _followed(view: View, make: Callable[[bool], Made]) -> Made:
    """One pass; once more with every in-place call followed where the model needs that, and then always."""
    if not view.overwrites:
        try:
            return make(False)
        except OverwrittenError:
            view.overwrites = True
    return make(True)


def relevances(view: View, scores: Tensor, tensors: list[Tensor], whole: bool = False) -> list[Tensor]:
    """The relevance of each tensor when each image's score starts with one, or with its ``whole`` value."""
    start = scores if whole else scores * ratio(torch.ones_like(scores), scores.detach(), 0)
    gradients = view.gradient(start, tensors)
    wide = torch.promote_types(view.dtype, torch.float32)
    return [tensor.detach().to(wide) * gradient.to(wide) for tensor, gradient in zip(tensors, gradients)]


@contextmanager
def _running(view: View, images: Tensor) -> Iterator[None]:
    """The model held still, in the graph, at full precision; one forward pass is counted."""
    _refuse_recurrence(view)
    view.meter.begin(len(images))
    size = (images.shape[-2], images.shape[-1])
    if size != view.size:
        view.grid_at(size)  # says it in a sentence where the model cannot take that size
    with view.still(), torch.autocast(view.device.type, enabled=False), torch.enable_grad():
        yield


def _refuse_recurrence(view: View) -> None:
    """A recurrent layer multiplies and adds inside one call, where no rule is seen; its gradient is no relevance."""
    for module in view.model.modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise InputError(
                f"relevance has no rule for recurrent layers ({type(module).__name__}), which {view.name} has; use "
                "another method that reads gradients, such as ixg or ig"
            )


# --------------------------------------------------------------------------------------------------------- which calls


def _quotient(a: Any, b: Any, **named: Any) -> Any:
    """The divisor is a normaliser, and takes nothing."""
    return torch.div(a, b.detach() if isinstance(b, Tensor) else b, **named)


def _carries(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()


def _calls(*names: str) -> list[Callable[..., Any]]:
    """The functions of these names, wherever torch keeps them."""
    places = (torch, torch.Tensor, F)
    return [getattr(place, name) for place in places for name in names if hasattr(place, name)]


_PASSING = {
    *_calls("relu", "relu_", "relu6", "gelu", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "prelu", "softplus"),
    *_calls("sigmoid", "sigmoid_", "tanh", "tanh_", "erf", "hardtanh", "hardswish", "hardsigmoid", "softsign"),
    *_calls("layer_norm", "rms_norm", "group_norm", "instance_norm", "normalize"),
}
_MOVING = {*_calls("pad", "contiguous", "to", "float", "double", "clone", "constant_pad_nd")}
_PRODUCTS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    **dict.fromkeys(_calls("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"), torch.mul),
    **dict.fromkeys(_calls("matmul", "__matmul__", "bmm"), torch.matmul),
}
_SUMS = set(_calls("add", "add_", "__add__", "__radd__", "__iadd__"))
_QUOTIENTS = set(_calls("div", "div_", "true_divide", "__truediv__", "__itruediv__"))
_RULED = _PASSING | set(_PRODUCTS) | _SUMS | _QUOTIENTS
