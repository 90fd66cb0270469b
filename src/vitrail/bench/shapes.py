"""Whether what a JSON file of a run holds is what vitrail wrote there, by the type hints that the code has anyway."""

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from vitrail.bench.chunk import Explains
from vitrail.bench.store import MANIFEST, Store
from vitrail.errors import InputError
from vitrail.model import Precision

Facts = TypedDict(
    "Facts",
    {
        "model": str,
        "weights": str,
        "data": str,
        "images": int,
        "images hash": NotRequired[str],
        "filter": dict[str, float | bool],
        "limit": NotRequired[int | None],
        "explains": Explains,
        "chunk": int,
        "precision": Precision,
        "compiled": bool,
        "maps": NotRequired[str],
        "versions": dict[str, str],
    },
)
"""What the manifest of a run says."""


def known_facts(store: Store) -> Facts | None:
    """What the manifest of a run says; None where no run has begun."""
    found = store.manifest()
    if found is None:
        return None
    wrong = misfit(found, typing.get_type_hints(Facts), Facts.__required_keys__)
    if not wrong and (found["chunk"] < 1 or found["images"] < 0):
        wrong = f"it has {found['images']} images in chunks of {found['chunk']}"
    if wrong:
        raise InputError(f"{store.place}/{MANIFEST} is not the manifest of a run: {wrong}; choose another folder")
    return typing.cast("Facts", found)


def misfit(given: Mapping[str, Any], hints: Mapping[str, Any], required: typing.Collection[str] = ()) -> str:
    """In words, which of some values is missing or not what its type hint says; empty where all fit.

    Args:
        given: The values, as JSON gave them or made of such.
        hints: What each must be; those without a hint may be anything.
        required: Those that must be there.

    Example:
        >>> misfit({"chunk": "8"}, {"chunk": int}), misfit({}, {"chunk": int}, ["chunk"])
        ("its chunk is '8'", 'it has no chunk')
    """
    for name, hint in hints.items():
        if name in given and not fits(given[name], hint):
            text = repr(given[name])
            return f"its {name} is {text if len(text) <= 80 else text[:77] + '...'}"
        if name not in given and name in required:
            return f"it has no {name}"
    return ""


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what a type hint says; a list will do for a tuple, a whole number for any other.

    Example:
        >>> fits({"a": [1, 2.5]}, dict[str, list[float]]), fits({"a": [1, True]}, dict[str, list[float]])
        (True, False)
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is typing.Literal:
        return isinstance(value, str) and value in inner
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            return False
        if origin is list or inner[1:] == (...,):
            return all(fits(one, inner[0]) for one in value)
        return len(value) == len(inner) and all(map(fits, value, inner))
    if origin is not None:
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return isinstance(value, hint) and not misfit(vars(value), typing.get_type_hints(hint))
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)
    return isinstance(value, types.NoneType if hint is None else hint)
