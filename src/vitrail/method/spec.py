"""Spec strings such as ``smoothgrad(ixg, samples=8)``: read with `ast`, never evaluated."""

import ast
import dataclasses
import difflib
import re
import sys
import types
import typing
from typing import Any

from vitrail.errors import InputError
from vitrail.method.base import METHODS, Method


def parse(spec: str | Method) -> Method:
    """The method a spec string describes.

    Example:
        >>> parse("ig(steps=20)")
        IntegratedGradients(steps=20, gradient='true')
    """
    if isinstance(spec, Method):
        return spec
    if not isinstance(spec, str):
        raise InputError(f"a method must be a spec string such as 'ig(steps=20)', but {spec!r} was given")
    # Names like gradcam++ are not Python names: read them as gradcam__plus__plus.
    source = re.sub(r"(?<=\w)\++(?=\s*([,()]|$))", lambda m: "__plus" * len(m[0]), spec)
    try:
        return _method(ast.parse(source.strip(), mode="eval").body, spec)
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"the method {spec!r} cannot be read; write it like 'ig' or 'ig(steps=20)'") from error


def _name(node: ast.expr) -> str | None:
    return node.id.replace("__plus", "+") if isinstance(node, ast.Name) else None


def _method(node: ast.expr, spec: str) -> Method:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = _name(call.func)
    if name is None:
        raise InputError(f"the method {spec!r} cannot be read; write it like 'ig' or 'ig(steps=20)'")
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see 'vitrail methods'"
        raise InputError(f"there is no method called {name!r}; {hint}")
    cls = METHODS[name]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if len(call.args) > len(fields):
        raise InputError(f"{name} takes at most {len(fields)} parameters, but {spec!r} gives {len(call.args)}")
    given = dict(zip(fields, call.args))
    for keyword in call.keywords:
        key = keyword.arg
        if key is None or key not in fields:
            near = difflib.get_close_matches(key or "", fields, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(fields) or 'none'}"
            raise InputError(f"{name} has no parameter called {key!r}; {hint}")
        if key in given:
            raise InputError(f"{name} is given its parameter {key} twice in {spec!r}")
        given[key] = keyword.value
    hints = typing.get_type_hints(cls)
    values = {key: _value(value, hints[key], f"{name}'s parameter {key}", spec) for key, value in given.items()}
    return cls(**values)


def _value(node: ast.expr, hint: Any, what: str, spec: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Method):
        return _method(node, spec)
    value = _literal(node)
    if not _fits(value, hint):
        raise InputError(f"{what} must be {_words(hint)}, but {value!r} was given")
    return float(value) if hint is float else value


def _literal(node: ast.expr) -> Any:
    """A number, a string, a tuple of them, or words without quotes (``frozen``, ``top5 + worst``)."""
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_literal(element) for element in node.elts)
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return ast.unparse(node).replace(" ", "").replace("__plus", "+")


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(v, typing.get_args(hint)[0]) for v in value)
    if hint is type(None):
        return value is None
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " or ".join(repr(option) for option in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(option) for option in typing.get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a word", type(None): "None"}
    return names.get(hint, str(hint))
