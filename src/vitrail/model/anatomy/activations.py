"""Which activations a model has: those of the ReLU family, which guided backpropagation has a rule for, and others."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Bound(NamedTuple):
    """Where a function takes the value below which nothing passes: its name, its place, and its default."""

    name: str
    place: int
    default: float | None


_RELU = (F.relu, torch.relu, torch.Tensor.relu, torch.relu_, torch.Tensor.relu_, F.relu6)

RECTIFIERS: dict[Callable[..., Any], tuple[Bound, ...]] = {
    **dict.fromkeys(_RELU, ()),
    **dict.fromkeys((F.hardtanh, F.hardtanh_), (Bound("min_val", 1, -1.0),)),
    **dict.fromkeys((torch.clamp, torch.clamp_, torch.clip, torch.clip_), (Bound("min", 1, None),)),
    **dict.fromkeys(
        (torch.Tensor.clamp, torch.Tensor.clamp_, torch.Tensor.clip, torch.Tensor.clip_), (Bound("min", 1, None),)
    ),
    **dict.fromkeys(
        (torch.clamp_min, torch.clamp_min_, torch.Tensor.clamp_min, torch.Tensor.clamp_min_), (Bound("min", 1, None),)
    ),
    **dict.fromkeys(
        (F.threshold, torch.threshold, torch.threshold_), (Bound("threshold", 1, None), Bound("value", 2, None))
    ),
}
"""Functions that cut off what is below zero, where all of these bounds are zero; what is above passes, to a largest
value if there is one (ReLU6, a hard tanh from zero on)."""


def rectifies(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call is an activation of the ReLU family."""
    bounds = RECTIFIERS.get(func)
    if bounds is None:
        return False
    given = (kwargs.get(b.name, args[b.place] if len(args) > b.place else b.default) for b in bounds)
    return all(isinstance(value, int | float) and value == 0 for value in given)


def _named(*names: str) -> dict[Callable[..., Any], str]:
    """The functions of these names, wherever torch keeps them, and what a reader calls them."""
    places = (torch, torch.Tensor, F)
    found = (
        (getattr(place, spelling, None), name) for place in places for name in names for spelling in (name, f"{name}_")
    )
    return {function: _TITLES.get(name, name) for function, name in found if function is not None}


_TITLES = {
    "gelu": "GELU",
    "erf": "GELU (erf)",
    "silu": "SiLU",
    "mish": "Mish",
    "elu": "ELU",
    "selu": "SELU",
    "celu": "CELU",
    "leaky_relu": "LeakyReLU",
    "rrelu": "RReLU",
    "prelu": "PReLU",
    "hardswish": "Hardswish",
    "hardtanh": "Hardtanh",
    "glu": "GLU",
}

_SOFT = _named(
    *("gelu", "erf", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "rrelu", "prelu", "hardswish", "hardtanh"),
    *("glu", "softplus", "softsign", "tanh", "tanhshrink", "hardshrink", "softshrink", "logsigmoid"),
)
_GATES = _named("sigmoid", "hardsigmoid")


class Activations(TorchFunctionMode):
    """Notes the activations of all that is computed from the picture inside the ``with`` block.

    Attributes:
        rectifiers: How many calls were of the ReLU family.
        others: What the others are called.
        gates: What gates are called: they weigh activations, and count as activations only where nothing else does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rectifiers = 0
        self.others: set[str] = set()
        self.gates: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = args[0] if args else kwargs.get("input")
        if isinstance(given, Tensor) and given.requires_grad:  # not positions, masks or weights
            if rectifies(func, args, kwargs):
                self.rectifiers += 1
            elif func in _SOFT:
                self.others.add(_SOFT[func])
            elif func in _GATES:
                self.gates.add(_GATES[func])
        return func(*args, **kwargs)

    @property
    def foreign(self) -> tuple[str, ...]:
        """Activations that are not of the ReLU family; gates too where there is none that is."""
        return tuple(sorted(self.others if self.rectifiers else self.others | self.gates))


def activations(model: nn.Module, images: Tensor) -> Activations:
    """The activations of one forward pass."""
    seen = Activations()
    with torch.enable_grad(), seen:
        model(images.detach().requires_grad_())
    return seen
