"""Spec strings such as ``smoothgrad(ixg, samples=8)`` and what they describe: frozen dataclasses that know their name.

They are read with `ast`, never evaluated.
"""

import ast
import dataclasses
import difflib
import importlib
import keyword
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from vitrail.errors import InputError


@dataclass(frozen=True)
class Configured:
    """Something a spec string can describe. The fields are its configuration; a parameter may hold another such thing.

    Attributes:
        id: Its name in spec strings.
        kind: What error messages call it.
        registry: All things of its kind, by name.
    """

    id: ClassVar[str]
    kind: ClassVar[str]
    registry: ClassVar[Mapping[str, type["Configured"]]]

    @property
    def spec(self) -> str:
        """A short spec string that gives this very thing again, such as ``ig(steps=20)``.

        What a composition holds is always said, unless its field is marked as ``understood``.
        """
        parts = []
        for i, field in enumerate(dataclasses.fields(self)):
            value = getattr(self, field.name)
            composed = isinstance(value, Configured) and value.kind == self.kind
            shown = i == 0 and composed and not field.metadata.get("understood")
            if value == field.default and not shown:
                continue
            text = value.spec if isinstance(value, Configured) else value if _is_word(value) else repr(value)
            parts.append(text if i == 0 and composed else f"{field.name}={text}")
        return f"{self.id}({', '.join(parts)})" if parts else self.id

    @property
    def config(self) -> dict[str, Any]:
        """Every parameter, written out."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"id": self.id} | {key: _plain(value) for key, value in fields.items()}

    def refuse_unread(self, rule: str, why: str, names: Sequence[str], instead: str = "") -> None:
        """Refuse fields that another field's value leaves unread, unless they are at their defaults.

        Args:
            rule: That value, as a spec has it: ``score=map``.
            why: What it does, for the message.
            names: The fields that are not read then.
            instead: What to do to have them read.
        """
        for field in dataclasses.fields(self):
            if field.name in names and getattr(self, field.name) != field.default:
                either = f", or {instead}" if instead else ""
                raise InputError(f"{self.id}({rule}) {why}, so {field.name} says nothing there; leave it out{either}")


def family_of(cls: type) -> str:
    """The family of a method or metric: the folder that its file lies in; of a plug-in, the package that brings it."""
    parts = cls.__module__.split(".")
    return parts[2] if parts[0] == "vitrail" and len(parts) > 3 else parts[0]


def import_families(package: str, paths: Iterable[str]) -> None:
    """Import the files of all families, each of which enters what it holds in the registry.

    A folder is a family, with a file for each idea. Where there is a file ``method.py``, the others are its parts.

    Args:
        package: Such as ``vitrail.method``.
        paths: Its ``__path__``.
    """
    for family in pkgutil.iter_modules(paths, f"{package}."):
        if not family.ispkg:
            continue
        files = [file.name for file in pkgutil.iter_modules(importlib.import_module(family.name).__path__)]
        for file in ["method"] if "method" in files else files:
            importlib.import_module(f"{family.name}.{file}")


C = TypeVar("C", bound=Configured)


def rendered(default: Any) -> Any:
    """A field that only the cheap half of a method reads, see `vitrail.method.Method.render`."""
    return dataclasses.field(default=default, metadata={"stage": "render"})


def unseen(default: Any, **reasons: str) -> Any:
    """A choice of which some words change nothing that can be seen: each is named (True as ``true``), with the reason.

    A test holds every other value of every field to make a difference, or to be refused with a sentence.
    """
    return dataclasses.field(default=default, metadata={"unseen": reasons})


def parameters(cls: type[Configured]) -> dict[str, Any]:
    """The parameters of a kind of thing and their defaults, as the command line and the viewer show them."""
    return {
        field.name: field.default.spec if isinstance(field.default, Configured) else field.default
        for field in dataclasses.fields(cls)
    }


def read(spec: str | C, base: type[C], example: str) -> C:
    """What a spec string describes.

    Args:
        spec: The string, or the thing itself.
        base: What it must be, with its registry.
        example: A spec string to show to those who wrote another one.
    """
    if isinstance(spec, base):
        return spec
    if not isinstance(spec, str):
        raise InputError(f"a {base.kind} must be a spec string such as {example!r}, but {spec!r} was given")
    # Names like gradcam++ are not Python names: read them as gradcam__plus__plus.
    source = re.sub(r"(?<=\w)\++(?=\s*([,()]|$))", lambda m: "__plus" * len(m[0]), spec)
    try:
        found = _configured(ast.parse(source.strip(), mode="eval").body, base, spec)
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(_unreadable(base, spec, example)) from error
    if found is None:
        raise InputError(_unreadable(base, spec, example))
    return typing.cast("C", found)


def _unreadable(base: type[Configured], spec: str, example: str) -> str:
    return f"the {base.kind} {spec!r} cannot be read; write it like {example.partition('(')[0]!r} or {example!r}"


def _configured(node: ast.expr, base: type[Configured], spec: str) -> Configured | None:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = call.func.id.replace("__plus", "+") if isinstance(call.func, ast.Name) else None
    if name is None:
        return None
    if name not in base.registry:
        near = difflib.get_close_matches(name, base.registry, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"see 'vitrail {base.kind}s'"
        raise InputError(f"there is no {base.kind} called {name!r}; {hint}")
    cls = base.registry[name]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if len(call.args) > len(fields):
        raise InputError(f"{name} takes at most {len(fields)} parameters, but {spec!r} gives {len(call.args)}")
    given = dict(zip(fields, call.args))
    for word in call.keywords:
        key = word.arg
        if key is None or key not in fields:
            near = difflib.get_close_matches(key or "", fields, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(fields) or 'none'}"
            raise InputError(f"{name} has no parameter called {key!r}; {hint}")
        if key in given:
            raise InputError(f"{name} is given its parameter {key} twice in {spec!r}")
        given[key] = word.value
    hints = typing.get_type_hints(cls)
    return cls(**{key: _value(value, hints[key], f"{name}'s parameter {key}", spec) for key, value in given.items()})


def _value(node: ast.expr, hint: Any, what: str, spec: str) -> Any:
    value = _literal(node)
    if any(typing.get_origin(option) is typing.Literal and _fits(value, option) for option in _options(hint)):
        return value
    for option in _options(hint):
        if isinstance(option, type) and issubclass(option, Configured) and isinstance(value, str):
            found = _configured(node, option, spec)
            if found is None:
                raise InputError(f"{what} must be a {option.kind}, but {value!r} was given")
            return found
    if not _fits(value, hint):
        raise InputError(f"{what} must be {_words(hint)}, but {value!r} was given")
    return float(value) if float in _options(hint) and isinstance(value, int) and int not in _options(hint) else value


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


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
    if isinstance(hint, type) and issubclass(hint, Configured):
        return f"a {hint.kind}"
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a word", type(None): "None"}
    return names.get(hint, str(hint))


def _is_word(value: Any) -> bool:
    """Whether a string can stand in a spec without quotes, such as ``frozen`` or ``top5+worst``."""
    if not isinstance(value, str) or value in ("True", "False", "None"):
        return False
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in value.split("+"))


def _plain(value: Any) -> Any:
    """A parameter as JSON gives it back."""
    return value.config if isinstance(value, Configured) else list(value) if isinstance(value, tuple) else value
