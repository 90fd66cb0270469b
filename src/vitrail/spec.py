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
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from vitrail.errors import InputError
from vitrail.fields import checked, fits, hints, is_thing, old_names, options, renamed, schema, shown
from vitrail.registry import Registry


@dataclass(frozen=True)
class Configured:
    """Something a spec string can describe. The fields are its configuration; a parameter may hold another such thing.

    Attributes:
        id: Its name in spec strings.
        was: The names that it had before, the first one first.
        kind: What error messages call it.
        registry: All things of its kind, by name.
    """

    id: ClassVar[str]
    was: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[str]
    registry: ClassVar[Registry[Any]]

    @property
    def spec(self) -> str:
        """A short spec string that gives this very thing again, such as ``ig(steps=20)``.

        What a composition holds is always said, unless its field is marked as ``understood``.
        """
        return self._written(first=False)

    @property
    def first_spec(self) -> str:
        """The same in the words that things had first: by it, what was stored before a renaming is found again."""
        return self._written(first=True)

    def _written(self, *, first: bool) -> str:
        parts = []
        for i, field in enumerate(dataclasses.fields(self)):
            value = getattr(self, field.name)
            composed = isinstance(value, Configured) and value.kind == self.kind
            shown = i == 0 and composed and not field.metadata.get("understood")
            if value == field.default and not shown:
                continue
            name = field.name
            if first:
                name = next(iter(field.metadata.get("was", ())), name)
                old = {new: before for before, new in reversed(field.metadata.get("words", {}).items())}
                value = old.get(value, value) if isinstance(value, str) else value
            text = value._written(first=first) if isinstance(value, Configured) else _quoted(value)
            parts.append(text if i == 0 and composed else f"{name}={text}")
        own = next(iter(self.was), self.id) if first else self.id
        return f"{own}({', '.join(parts)})" if parts else own

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


LISTED = ("method", "metric")
"""Kinds of things that the command line has a list of."""

C = TypeVar("C", bound=Configured)
T = TypeVar("T", bound=type[Configured])


def entered(cls: T, name: str, was: tuple[str, ...] = ()) -> T:
    """The class, in the registry of its kind by its name; each new instance of it is checked from now on.

    Args:
        cls: The class.
        name: Its name in spec strings.
        was: The names that it had before, the first one first.
    """
    cls.registry.enter(name, cls, was=was)
    cls.id, cls.was = name, was
    return checked(cls)


def parameters(cls: type[Configured]) -> dict[str, Any]:
    """The parameters of a kind of thing and their defaults, as the command line and the viewer show them."""
    return {told["name"]: told["default"] for told in schema(cls)}


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
        raise InputError(f"a {base.kind} must be a spec string such as {example!r}, but {shown(spec)} was given")
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
    listed = f"see 'vitrail {base.kind}s'" if base.kind in LISTED else f"there are {', '.join(base.registry)}"
    cls = base.registry.find(name, listed)
    name = cls.id
    known = {field.name: field for field in dataclasses.fields(cls)}
    if len(call.args) > len(known):
        raise InputError(f"{name} takes at most {len(known)} parameters, but {spec!r} gives {len(call.args)}")
    given = dict(zip(known, call.args))
    for word in call.keywords:
        key = word.arg
        if key is None or key not in known.keys() | old_names(cls):
            near = difflib.get_close_matches(key or "", known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            raise InputError(f"{name} has no parameter called {key!r}; {hint}")
        if key in given:
            raise InputError(f"{name} is given its parameter {key} twice in {spec!r}")
        given[key] = word.value
    given, kinds = renamed(cls, given), hints(cls)
    made = cls(**{key: _value(one, kinds[key], f"{name}'s parameter {key}", spec) for key, one in given.items()})
    return typing.cast("Configured", made)


def _value(node: ast.expr, hint: Any, what: str, spec: str) -> Any:
    """What stands for a parameter: a number, words, several of them, or another thing; not yet checked."""
    value = _literal(node)
    for option in options(hint):
        if is_thing(option) and isinstance(value, str) and not fits(value, hint):
            found = _configured(node, option, spec)
            if found is None:
                raise InputError(f"{what} must be a {option.kind}, but {shown(value)} was given")
            return found
    return value


def _literal(node: ast.expr) -> Any:
    """A number, a string, a tuple of them, or words without quotes (``frozen``, ``top5 + worst``)."""
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_literal(element) for element in node.elts)
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return ast.unparse(node).replace(" ", "").replace("__plus", "+")


def _is_word(value: Any) -> bool:
    """Whether a string can stand in a spec without quotes, such as ``frozen`` or ``top5+worst``."""
    if not isinstance(value, str) or value in ("True", "False", "None"):
        return False
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in value.split("+"))


def _quoted(value: Any) -> str:
    """A value as a spec has it: a word as it is."""
    return value if _is_word(value) else repr(value)


def _plain(value: Any) -> Any:
    """A parameter as JSON gives it back."""
    return value.config if isinstance(value, Configured) else list(value) if isinstance(value, tuple) else value
