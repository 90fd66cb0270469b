"""What a parameter may be, declared on the field once: its range, its old words, what it is for. Checked in one place.

`checked` covers a dataclass: whatever makes one, a spec string or keywords, goes through it. `schema` tells the same to
people and programs.
"""

import dataclasses
import functools
import inspect
import numbers
import operator
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from vitrail.errors import InputError, Renamed

Stage: TypeAlias = Literal["search", "render"]
"""Which half of a method reads a field: the expensive search, or the cheap drawing of what it found."""

LONGEST = 80
"""Letters of a value that a message repeats."""

PASSES: Final = "would make {} forward passes an image"
"""What too large a number of most methods and metrics would bring."""

T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class Range:
    """The numbers a parameter may be.

    Attributes:
        low: The least.
        above: What they must exceed, where there is no least.
        high: The most.
        below: What they must stay below, where there is no most.
        only: Of whole numbers, the odd or the even ones only.
    """

    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    only: Literal["odd", "even"] | None = None

    def over(self, value: float) -> bool:
        """Whether a number is too large."""
        return (self.high is not None and value > self.high) or (self.below is not None and value >= self.below)

    def holds(self, value: float) -> bool:
        """Whether a number is in it."""
        under = (self.low is not None and value < self.low) or (self.above is not None and value <= self.above)
        return not under and not self.over(value) and (self.only is None or value % 2 == (self.only == "odd"))

    def __str__(self) -> str:
        """In words, as in ``1 to 10,000``, ``above 0, up to 1`` and ``0 or more, below 1``."""
        if self.low is not None and self.high is not None:
            words = f"{_number(self.low)} to {_number(self.high)}"
        else:
            first = f"above {_number(self.above)}" if self.above is not None else f"{_number(self.low)} or more"
            last = f"up to {_number(self.high)}" if self.high is not None else f"below {_number(self.below)}"
            words = f"{first}, {last}"
        return f"an {self.only} number, {words}" if self.only else words

    @property
    def facts(self) -> dict[str, Any]:
        """As JSON has it: the bounds that there are."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def number(
    default: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    only: Literal["odd", "even"] | None = None,
    whole: Range | None = None,
    most: int | None = None,
    cost: str = "",
    note: str = "",
    stage: Stage = "search",
    was: tuple[str, ...] = (),
    **more: Any,
) -> Any:
    """A parameter that is a number, or several of them in a tuple; it may be a word or None besides.

    Args:
        default: What it is where nothing is said.
        low: The least that it, or each of several, may be; or
        above: what it must exceed.
        high: The most; or
        below: what it must stay below.
        only: Odd or even whole numbers only.
        whole: Another range, of whole numbers, where these mean something else than the other ones.
        most: How many numbers a tuple holds at most; one is the fewest.
        cost: What too large a number would bring, with ``{}`` for it: ``would make {} forward passes an image``.
        note: What the message about a number beyond the range says besides: ``both ends of the way``.
        stage: Which half of a method reads it.
        was: What the parameter was called before, the first name first.
        more: Other facts, for those that read the field's metadata.
    """
    assert (low is None) != (above is None), "one end of the range at the bottom"
    assert (high is None) != (below is None), "and one at the top"
    bounds = Range(low, above, high, below, only)
    return value(default, stage=stage, was=was, range=bounds, whole=whole, most=most, cost=cost, note=note, **more)


def random_seed(default: int = 0) -> Any:
    """A parameter that seeds random numbers: any whole number of 64 bits."""
    return number(default, low=-(2**63), high=2**63 - 1, note="64 bits")


def value(
    default: Any,
    *,
    stage: Stage = "search",
    was: tuple[str, ...] = (),
    words: Mapping[Any, Any] = types.MappingProxyType({}),
    **more: Any,
) -> Any:
    """A parameter of which there is more to say than its type and its default.

    Args:
        default: What it is where nothing is said.
        stage: Which half of a method reads it.
        was: What the parameter was called before, the first name first.
        words: Values that were called otherwise before, as ``{old: new}``.
        more: Other facts, for those that read the field's metadata.
    """
    return dataclasses.field(default=default, metadata={"stage": stage, "was": was, "words": words, **more})


def unseen(default: Any, **reasons: str) -> Any:
    """A choice of which some words change nothing that can be seen: each is named (True as ``true``), with the reason.

    A test holds every other value of every field to make a difference, or to be refused with a sentence.
    """
    return value(default, unseen=reasons)


# ------------------------------------------------------------------------------------------------------- the one check


def checked(cls: T) -> T:
    """Cover a dataclass, so that each new instance takes old words and has checked values."""
    made: Callable[..., None] = cls.__init__  # type: ignore[misc]
    names = [field.name for field in dataclasses.fields(cls)]

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = renamed(cls, kwargs)
        if len(args) <= len(names) and not given.keys() & names[: len(args)] and given.keys() <= set(names):
            args, given = (), checked_values(cls, dict(zip(names, args)) | given)
        made(self, *args, **given)  # what does not fit a field at all is Python's to tell

    cls.__init__ = init  # type: ignore[misc]
    return cls


def old_names(cls: type) -> dict[str, str]:
    """The names that parameters had before, and those they have now."""
    return {old: field.name for field in dataclasses.fields(cls) for old in field.metadata.get("was", ())}


def renamed(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by the names that they have now; who used an old one is warned."""
    known, found = old_names(cls), dict[str, Any]()
    for key, one in given.items():
        new = known.get(key, key)
        if new != key:
            _warn(f"{cls.id}'s parameter {key} is called {new} now; write {new}")
        if new in found or (new != key and new in given):
            raise InputError(f"{cls.id} is given its parameter {new} twice, once by its old name; leave one out")
        found[new] = one
    return found


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """The types of a dataclass's parameters."""
    return typing.get_type_hints(cls)


def checked_values(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of parameters, each of the type and within the range that its field declares.

    Args:
        cls: The dataclass.
        given: The values by the names of their parameters.
    """
    if not given:
        return {}
    facts, known = {field.name: field.metadata for field in dataclasses.fields(cls)}, hints(cls)
    found = {}
    for name, one in given.items():
        one = _plain(one, known[name])
        words = facts[name].get("words", {})
        if isinstance(one, str) and one in words:
            _warn(f"{cls.id}'s {name}={one} is called {name}={words[one]} now; write {words[one]}")
            one = words[one]
        if not fits(one, known[name]):
            kind = in_words(known[name])
            raise InputError(f"{cls.id}'s parameter {name} must be {kind}, but {shown(one)} was given")
        _check_range(cls.id, name, one, facts[name])
        found[name] = one
    return found


def _check_range(owner: str, name: str, value: Any, facts: Mapping[str, Any]) -> None:
    several = isinstance(value, tuple)
    if several and not value and facts.get("most"):
        raise InputError(f"{owner} needs {name} to be one number or more, but () was given")
    if several and len(value) > (facts.get("most") or sys.maxsize):
        raise InputError(f"{owner} takes at most {facts['most']:,} {name}, but {len(value):,} were given")
    note = f" ({facts['note']})" if facts.get("note") else ""
    for one in value if several else (value,):
        if isinstance(one, bool) or not isinstance(one, int | float) or "range" not in facts:
            continue
        bounds = (isinstance(one, int) and facts["whole"]) or facts["range"]
        if bounds.holds(one):
            continue
        words = f"{bounds}{note}" if facts["whole"] is None else f"{facts['range']}, or whole, {facts['whole']}{note}"
        if bounds.over(one) and facts["cost"] and not several:
            cost = facts["cost"].format(_number(one))
            raise InputError(f"{owner}({name}={shown(value)}) {cost}; {name} must be {words}")
        raise InputError(f"{owner} needs {name} to be {words}, but {name}={shown(value)} was given")


def _plain(value: Any, hint: Any) -> Any:
    """A value in Python's own types: lists as tuples, whole numbers as floats where these are wanted, NumPy's too."""
    wanted = options(hint)
    if isinstance(value, list | tuple):
        inner = [typing.get_args(one)[0] for one in wanted if typing.get_origin(one) is tuple]
        return tuple(_plain(one, inner[0]) for one in value) if inner else value
    if isinstance(value, bool | str) or not isinstance(value, numbers.Real):
        return value
    if isinstance(value, numbers.Integral):
        exact = operator.index(value)
        wide = float in wanted and int not in wanted and abs(exact) <= sys.float_info.max
        return float(exact) if wide else exact
    return float(value)


def options(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type that there is."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in typing.get_args(hint))
    if origin is tuple:
        inner = typing.get_args(hint)
        long = inner[-1] is Ellipsis or (isinstance(value, tuple) and len(value) == len(inner))
        return isinstance(value, tuple) and long and all(fits(one, inner[0]) for one in value)
    if hint is type(None):
        return value is None
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    if is_thing(hint):
        return isinstance(value, is_thing(hint))
    return isinstance(value, hint)


def is_thing(hint: Any) -> Any:
    """The kind of thing that a type is, which spec strings describe: the class of all methods, of all baselines, ..."""
    if not isinstance(hint, type) or not hasattr(hint, "registry"):
        return None
    return next(base for base in reversed(hint.__mro__) if "registry" in vars(base))


def in_words(hint: Any) -> str:
    """A type as error messages have it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(repr(option) for option in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(option) for option in inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"{len(inner)} {_PLURALS.get(inner[0], 'values')} in brackets"
    if origin is tuple:
        return "several of them in brackets" if inner[0] not in _PLURALS else f"{_PLURALS[inner[0]]} in brackets"
    if is_thing(hint):
        return f"a {hint.kind}"
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a word", type(None): "None"}
    return names.get(hint, str(hint))


_PLURALS = {int: "whole numbers", float: "numbers", str: "words"}


def shown(value: Any) -> str:
    """A value as a message repeats it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of some thousand digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _number(value: int | float | None) -> str:
    """A number as people write it."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{value:.0e}" if abs(value) < 10**300 else "as many"
    return f"{value:g}"


def _warn(sentence: str) -> None:
    warnings.warn(sentence, Renamed, stacklevel=5)


# --------------------------------------------------------------------------------------------------------- the schema


def schema(cls: Any) -> list[dict[str, Any]]:
    """Every parameter of a dataclass as JSON has it: type, choices, range, default, doc line, stage, old names."""
    docs, known = doc_lines(cls), hints(cls)
    return [_told(field, known[field.name], docs.get(field.name, "")) for field in dataclasses.fields(cls)]


def _told(field: dataclasses.Field[Any], hint: Any, doc: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": field.name, "type": []}
    for option in options(hint):
        if typing.get_origin(option) is Literal:
            found["choices"] = [*found.get("choices", ()), *typing.get_args(option)]
        elif typing.get_origin(option) is tuple:
            inner = typing.get_args(option)
            found["type"].append("array")
            found["items"] = [_type(one) for one in options(inner[0])]
            fixed = inner[-1] is not Ellipsis
            most = field.metadata.get("most")
            found["length"] = [len(inner)] * 2 if fixed else [1, most] if most else [0, None]
        else:
            found["type"].append(_type(option))
    for key in ("range", "whole"):
        if field.metadata.get(key) is not None:
            found[key] = field.metadata[key].facts
    default: Any = None if field.default is dataclasses.MISSING else field.default
    told = default.spec if is_thing(type(default)) else default
    found["default"] = list(told) if isinstance(told, tuple) else told
    found |= {"doc": doc, "stage": field.metadata.get("stage", "search"), "was": list(field.metadata.get("was", ()))}
    return found


def _type(hint: Any) -> str:
    names = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
    return str(hint.kind) if is_thing(hint) else names.get(hint, str(hint))


def doc_lines(cls: type) -> dict[str, str]:
    """The line of each parameter from the Attributes of a class's docstring, and of those it is made from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        doc = inspect.cleandoc(vars(base).get("__doc__") or "")
        section = re.search(r"^Attributes:\n((?:    .*\n?|\n)+)", doc, re.M)
        for name, text in re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section[1] if section else "", re.M):
            found[name] = " ".join(text.split())
    return found
