"""What can be said of a command's words before anything is loaded: flags without values, numbers, names given twice."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.model import View

NAMED = ("--method", "--metric", "--target")
"""Flags that are told by `check_named` what to be given."""

NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}


def check_values(words: Sequence[str], verb: type) -> None:
    """Refuse what is no number where a flag wants one, and several values where it takes one.

    Args:
        words: The command's, with the verb first; the values of flags that may be repeated are gathered.
        verb: Its dataclass.
    """
    hints = get_type_hints(verb)
    wanted = {f"--{field.name.replace('_', '-')}": hints[field.name] for field in fields(verb)}
    for i, word in enumerate(words[1:], 1):
        flag, equals, own = word.partition("=")
        if flag not in wanted:
            continue
        values = [own] if equals else _values(words[i + 1 :])
        if not values and get_origin(wanted[flag]) is tuple and flag not in NAMED:
            raise InputError(f"{flag} has no value; give it one or more, or leave it out")
        _check_numbers(flag, wanted[flag], values)
        if flag == "--target" and get_origin(wanted[flag]) is not tuple and len(values) > 1:
            raise InputError(
                f"{words[0]} takes one --target, but {' and '.join(values)} were given; {words[0]} them one at a time"
            )


def _values(words: Sequence[str]) -> list[str]:
    """The words up to the next flag."""
    return list(words[: next((i for i, word in enumerate(words) if word.startswith("--")), len(words))])


def _check_numbers(flag: str, hint: Any, values: list[str]) -> None:
    """Whether the first of the values are such numbers as a flag wants; others may be pictures behind it."""
    hint, optional = _bare(hint)
    kinds = [kind for kind in get_args(hint) if kind is not Ellipsis] if get_origin(hint) is tuple else [hint]
    if not values or any(kind not in NUMBERS for kind in kinds) or (optional and values == ["None"]):
        return
    many = len(kinds) > 1
    for kind, value in zip(kinds, values):
        if not _is(kind, value):
            raise InputError(
                f"{flag} must be {'two whole numbers' if many else NUMBERS[kind]}, but {value!r} was given"
            )
    if len(values) < len(kinds):
        raise InputError(f"{flag} must be two whole numbers, but {' '.join(values)} alone was given")


def _bare(hint: Any) -> tuple[Any, bool]:
    """A type without ``| None``, and whether it had that."""
    options = [option for option in get_args(hint) if option is not type(None)]
    optional = type(None) in get_args(hint)
    return (options[0], True) if optional and len(options) == 1 else (hint, False)


def _is(kind: type, value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


def check_named(flag: str, values: Sequence[str], what: str, see: str) -> None:
    """Refuse a flag without a value, or with an empty one.

    Args:
        flag: Such as ``--method``.
        values: What was given.
        what: What it wants, such as ``method``.
        see: How to find some.
    """
    if not values:
        raise InputError(f"{flag} needs at least one {what}; {see}")
    if not all(value.strip() for value in values):
        raise InputError(f"{flag} was given an empty name; {see}")


def check_methods(specs: Sequence[str], view: "View | None" = None) -> None:
    """Refuse methods that cannot be read, and one that is named twice.

    Args:
        specs: As they were given.
        view: The model, once it is loaded: it decides what ``auto`` is.
    """
    from vitrail.front import chosen
    from vitrail.method import parse

    check_named("--method", specs, "method", "give one such as gradcam, or see: vitrail methods")
    seen: dict[str, str] = {}
    for given in specs:
        spec = given if given != "auto" else "auto" if view is None else chosen(view)
        known = spec if spec == "auto" else parse(spec).spec
        if known in seen:
            ways = "" if seen[known] == given else f" ({seen[known]} and {given})"
            raise InputError(f"--method names {known} twice{ways}; name it once")
        seen[known] = given


def check_targets(view: "View", words: Sequence[str]) -> None:
    """Refuse a class that is named twice, as by its number and its name.

    Args:
        view: The model.
        words: As they were given.
    """
    from vitrail.model import class_index

    seen: dict[int, str] = {}
    for word in words:
        try:
            number = class_index(view, word)
        except InputError:  # predicted, label, a text, or what is refused elsewhere
            continue
        if number in seen:
            name = view.classes[number] if view.classes else str(number)
            raise InputError(f"--target names {name} twice ({seen[number]} and {word}); name it once")
        seen[number] = word
