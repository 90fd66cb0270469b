"""Other legal values for every field of a method, metric or baseline, and what is said of fields that may lie idle."""

import dataclasses
import itertools
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import vitrail
from vitrail.perturb import baseline
from vitrail.spec import Configured

BASELINES = ("black_pixel", "uniform_noise")


@dataclass(frozen=True)
class Case:
    """A thing with one of its fields given another value.

    Attributes:
        before: The thing.
        after: The same with the field changed: several values where only some need be told apart from the first.
        field: The field.
    """

    before: Configured
    after: tuple[Configured, ...]
    field: str

    @property
    def name(self) -> str:
        return f"{self.after[0].spec} is {self.before.spec}"


def others(thing: Configured, name: str, special: dict[tuple[str, str], tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Groups of other values for a field: of each group one value must make a difference.

    Every word of a choice is a group of its own; numbers are one group, since a few of them may be out of range.
    """
    value, hint = getattr(thing, name), typing.get_type_hints(type(thing))[name]
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if (thing.id, name) in special:
        return [special[thing.id, name]]
    found: list[tuple[Any, ...]] = []
    for option in options:
        if typing.get_origin(option) is typing.Literal and int in options:
            continue  # words for numbers: blocks
        if typing.get_origin(option) is typing.Literal:
            found += [(word,) for word in typing.get_args(option) if word != value]
        elif option is bool:
            found.append((not value,))
        elif option is int:
            known = value if isinstance(value, int) else 1
            found.append(tuple(n for n in (known + 1, max(1, known - 1), 2, 3, 4) if n != value))
        elif option is float:
            known = value if isinstance(value, float) else 0.5
            found.append(tuple(n for n in (known * 2, known / 2, known + 0.1) if n != value))
        elif isinstance(option, type) and issubclass(option, Configured) and option.kind == "baseline":
            found.append(tuple(baseline(spec) for spec in BASELINES if baseline(spec) != value))
    assert found, f"say in the test what else {thing.id}'s {name} may be"
    return found


def cases(thing: Configured, special: dict[tuple[str, str], tuple[Any, ...]]) -> Iterator[Case]:
    """Each field given another value; then each once more beside every choice of another field."""
    yield from _changed(thing, special)
    for field in dataclasses.fields(thing):
        if not _chooses(thing, field.name):
            continue
        for (word,) in others(thing, field.name, special):
            try:
                chosen = dataclasses.replace(thing, **{field.name: word})
            except vitrail.InputError:
                continue
            yield from (case for case in _changed(chosen, special) if case.field != field.name)


def _chooses(thing: Configured, name: str) -> bool:
    hint = typing.get_type_hints(type(thing))[name]
    return hint is bool or typing.get_origin(hint) is typing.Literal


def _changed(thing: Configured, special: dict[tuple[str, str], tuple[Any, ...]]) -> Iterator[Case]:
    for field in dataclasses.fields(thing):
        for group in others(thing, field.name, special):
            made = []
            for value in group:
                try:
                    made.append(dataclasses.replace(thing, **{field.name: value}))
                except vitrail.InputError:
                    continue  # refused with a sentence: nothing is ignored
            if made:
                yield Case(thing, tuple(made), field.name)


def told_apart(case: Case, results: Callable[[Configured], Iterator[Tensor | None]]) -> bool:
    """Whether another value makes a difference on one of several models, or is refused by all that take the first.

    Args:
        case: What is compared.
        results: The numbers that a thing gives, model by model; None where it is refused with a sentence.
    """
    refused, tried = 0, 0
    for before, *changed in itertools.zip_longest(results(case.before), *(results(after) for after in case.after)):
        if before is None:
            continue
        tried += 1
        refused += all(after is None for after in changed)
        if any(after is not None and differ(before, after) for after in changed):
            return True
    assert tried, f"{case.before.spec} runs on no model of this test"
    return refused > 0


def differ(before: Tensor, after: Tensor) -> bool:
    """Whether numbers differ by more than rounding."""
    if before.shape != after.shape:
        return True
    before, after = before.double(), after.double()
    if not torch.equal(before.isnan(), after.isnan()):
        return True
    scale = before.nan_to_num().abs().max().clamp_min(1e-300)
    return bool((before - after).nan_to_num().abs().max() > 1e-5 * scale)


def unseen(case: Case) -> str | None:
    """Why a change makes no difference that can be seen: said beside the field itself."""
    field = next(field for field in dataclasses.fields(case.before) if field.name == case.field)
    words = {str(getattr(thing, case.field)).lower() for thing in (case.before, *case.after)}
    return next((reason for word, reason in field.metadata.get("unseen", {}).items() if word in words), None)
