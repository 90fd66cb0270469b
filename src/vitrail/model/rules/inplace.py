"""Calls that change a tensor in place: which they are, and how they look where a rule is put in their place."""

from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

_STALE = "_vitrail_stale"
"""On a tensor that the model has overwritten, and that still holds what it held before."""


class OverwrittenError(Exception):
    """A tensor was used again behind an in-place call whose result alone was followed."""


def writes(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether a call changes its first argument, whatever it returns: ``x.add_(1)``, ``x[0] = 1``."""
    name = getattr(func, "__name__", "")
    return _on_a_tensor(args) and (name == "__setitem__" or (name.endswith("_") and not name.endswith("__")))


def rebinds(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call changes its first argument and its result is what models go on with: ``x += 1``."""
    if not _on_a_tensor(args):
        return False
    if func in _WITH_A_FLAG:
        return bool(kwargs.get("inplace")) or any(value is True for value in args[1:])
    return getattr(func, "__name__", "") in _OPERATORS


def make_stale(x: Tensor) -> None:
    """The model would now see another value in ``x``."""
    setattr(x, _STALE, True)


def refuse_stale(values: Any) -> None:
    """Raises where a stale tensor is used."""
    for x in _tensors(values):
        if hasattr(x, _STALE) or hasattr(x._base, _STALE):
            raise OverwrittenError


def _on_a_tensor(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], Tensor)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


_OPERATORS = frozenset({"__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__"})
_WITH_A_FLAG = frozenset(
    {F.relu, F.relu6, F.silu, F.mish, F.elu, F.selu, F.celu, F.leaky_relu, F.hardtanh, F.hardswish, F.hardsigmoid}
)
