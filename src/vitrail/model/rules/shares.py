"""How one call shares its relevance: it goes over to a base, a function of the same inputs, in the backward pass.

`vitrail.model.rules.relevance` says which base a call has.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

Base = Callable[..., tuple[Tensor, ...]]
"""Inputs -> the tensors that take over the relevance, each of them all of it."""

Form = Literal["epsilon", "plus", "split"]
"""How a weighted sum shares its relevance among its inputs."""

EPSILON = 1e-9
"""What T-Attr's code adds to every divisor."""

_KEPT = "_vitrail_kept"
"""On a value that was passed on: the list that keeps it for the backward pass."""

_SMALLEST = 1e-25  # the relevance of anything smaller is dropped rather than divided by it


class PassedOn(torch.autograd.Function):
    """A value, in a list, whose relevance goes over to ``base(*inputs)``; ``by`` keeps the division from zero.

    The list keeps the value for the backward pass; see `set_apart`. Where it will be asked ``again``, for another
    target, the base is kept once it is built.
    """

    @staticmethod
    def forward(ctx: Any, value: list[Tensor], base: Base, by: float, again: bool, *inputs: Tensor) -> Tensor:
        """The value as it is."""
        out = value[0]
        value[0] = out.detach()  # not the output itself, which would hold this node and be held by it
        ctx.save_for_backward(*inputs)
        ctx.value, ctx.base, ctx.by, ctx.again, ctx.built = value, base, by, again, None
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradient of the bases, scaled so that each has the relevance of the value."""
        needed = ctx.needs_input_grad[4:]
        with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
            bases, ratios, wanted = ctx.built or _built(ctx, needed)
            if ctx.again:
                ctx.built = bases, ratios, wanted
            shares = [gradient * factor for factor in ratios]
            found = iter(torch.autograd.grad(bases, wanted, shares, retain_graph=ctx.again, allow_unused=True))
        return None, None, None, None, *(next(found) if need else None for need in needed)


def _built(ctx: Any, needed: tuple[bool, ...]) -> tuple[tuple[Tensor, ...], list[Tensor], list[Tensor]]:
    """The bases in a graph of their own, what a gradient is multiplied with for each, and the inputs it goes on to."""
    inputs = [x.detach().requires_grad_(need) for x, need in zip(ctx.saved_tensors, needed)]
    bases = ctx.base(*inputs)
    ratios = [ratio(ctx.value[0], base.detach(), ctx.by) for base in bases]
    return bases, ratios, [x for x in inputs if x.requires_grad]


def passed_on(value: Tensor, base: Base, by: float, again: bool, *inputs: Tensor) -> Tensor:
    """``value``, with the gradient of `PassedOn`."""
    kept = [value.detach()]
    ruled: Tensor = PassedOn.apply(kept, base, by, again, *inputs)
    setattr(ruled, _KEPT, kept)
    return ruled


def set_apart(x: Tensor) -> None:
    """Before ``x``, or what it is a view of, is changed in place: the backward pass keeps the value it had."""
    kept = getattr(x if x._base is None else x._base, _KEPT, None)
    if kept is not None:
        kept[0] = kept[0].clone()


class Residual(torch.autograd.Function):
    """a + b, relevance shared in proportion, and where asked rescaled by the sizes of both sides' sums in an image."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, renormalise: bool) -> Tensor:
        """The sum."""
        ctx.save_for_backward(a, b)
        ctx.renormalise = renormalise
        return a + b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradients that carry each side's share."""
        a, b = ctx.saved_tensors
        # The stabiliser comes twice: where relevance from two branches meets at the sum, and in the sum itself.
        guard = ratio(a + b, a + b, EPSILON)
        total = (gradient * guard * (a + b)).sum((1, 2), keepdim=True)
        share = gradient * guard * guard
        if not ctx.renormalise:
            return share, share, None
        left, right = ((side * share).sum((1, 2), keepdim=True) for side in (a, b))
        size = left.abs() + right.abs()
        scaled = (share * ratio(ratio(side.abs(), size, EPSILON) * total, side, EPSILON) for side in (left, right))
        return *scaled, None


def ratio(a: Tensor, b: Tensor, by: float) -> Tensor:
    """The quotient a / b, 0 where b is 0; T-Attr's 1e-9 is added as it is, any other stabiliser away from zero."""
    # In place where it can be: on a CPU these passes over memory take longer than the convolutions between them.
    if by == 0:
        return (a / b).masked_fill_(b.abs() <= _SMALLEST, 0)
    shifted = b + by if by == EPSILON else b + torch.where(b < 0, -by, by)
    shifted.masked_fill_(shifted == 0, by)
    return a.div(shifted).masked_fill_(b == 0, 0)


def parts(function: Callable[..., Tensor], weight: Tensor, form: Form) -> Base:
    """What adds to a weighted sum: positive inputs times positive weights, negative ones times negative ones."""

    def base(x: Tensor) -> tuple[Tensor, ...]:
        if not bool((x.detach() < 0).any()):  # behind a ReLU there is nothing else
            return (function(x, weight.clamp(min=0)),)
        positive = function(x.clamp(min=0), weight.clamp(min=0))
        negative = function(x.clamp(max=0), weight.clamp(max=0))
        return (positive, negative) if form == "split" else (positive + negative,)

    return base


def halved(multiply: Callable[..., Tensor]) -> Base:
    """A product with half of its relevance for each factor, or all of it for the only one that carries any."""

    def halves(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        if not (a.requires_grad and b.requires_grad):
            return (multiply(a, b),)
        return ((multiply(a, b.detach()) + multiply(a.detach(), b)) / 2,)

    return halves


def itself(x: Tensor) -> tuple[Tensor, ...]:
    """The base of a call that passes relevance on as it is."""
    return (x,)
