"""Run a model in float64 without touching it: every call sees its arguments widened, weights included."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.model.rules.inplace import writes
from vitrail.model.trace import widest

WIDE = torch.float64


class Widening(TorchFunctionMode):
    """Once one argument of a call is in float64, all of them are. Put in front of another mode, or of `Plain`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CASTS and _is_wide(args[0]):  # models that bring their inputs to the weights' type
            out = func(*args, **kwargs)
            return args[0].to(out.device) if out.is_floating_point() and not _is_wide(out) else out
        if _any_wide(args) or _any_wide(tuple(kwargs.values())):
            kept = args[:1] if writes(func, args) else ()  # a copy of it would be changed, and it would not
            args = (*kept, *_widened(args[len(kept) :]))
            kwargs = {key: _widened(value) for key, value in kwargs.items()}
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


class Plain(TorchFunctionMode):
    """Passes every call on."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class Wide(Widening, Plain):
    """A mode of its own: inside, a model given float64 images calculates in float64."""


def widened(images: Tensor, device: torch.device) -> Tensor:
    """A copy of the images in float64, or in float32 on devices that have no more."""
    return images.detach().to(device, widest(device)).clone()


def _is_wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == WIDE


def _any_wide(values: Any) -> bool:
    return any(_any_wide(v) if isinstance(v, list | tuple) else _is_wide(v) for v in values)


def _widened(value: Any) -> Any:
    """Every floating point tensor in float64; what has it already stays the very same tensor."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(WIDE)
    if type(value) in (list, tuple):
        return type(value)(_widened(v) for v in value)
    return value


_CASTS = {
    getattr(place, name)
    for place in (torch, torch.Tensor, F)
    for name in ("to", "float", "half", "bfloat16", "type", "type_as")
    if hasattr(place, name)
}
