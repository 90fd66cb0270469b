"""Protocols to and from the JSON that a run's folder keeps."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_type_hints

from vitrail.bench.filter import Filter
from vitrail.bench.protocol import Column, Part, Protocol, Sweep
from vitrail.bench.shapes import misfit
from vitrail.errors import InputError


def to_dict(protocol: Protocol) -> dict[str, Any]:
    """A protocol as JSON can hold it; `from_dict` gives the very same back."""
    return {
        "name": protocol.name,
        "title": protocol.title,
        "paper": protocol.paper,
        "note": protocol.note,
        "parts": [_part_to_dict(part) for part in protocol.parts],
    }


def _part_to_dict(part: Part) -> dict[str, Any]:
    found = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(part).items()}
    found["columns"] = [{"name": one.name, "terms": [list(term) for term in one.terms]} for one in part.columns]
    found["filter"] = part.filter.given
    if part.sweep is not None:
        found["sweep"] = {"axis": part.sweep.axis, "at": {key: list(place) for key, place in part.sweep.at.items()}}
    return found


def from_dict(given: Mapping[str, Any]) -> Protocol:
    """A protocol from what `to_dict` made of it. Nothing is looked up again: it is what was run.

    Example:
        >>> from vitrail.bench.protocol_files import read_protocol
        >>> one = read_protocol("tis/table3")
        >>> from_dict(to_dict(one)) == one
        True
    """
    try:
        parts = tuple(_part_from_dict(part) for part in given["parts"])
        found = Protocol(**{**given, "parts": parts})
        _refuse(misfit(vars(found), get_type_hints(Protocol)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = str(error) if isinstance(error, ValueError) else repr(error)
        raise InputError(f"this is no protocol that vitrail wrote ({why}); run it again") from error
    return found


def _part_from_dict(given: Mapping[str, Any]) -> Part:
    columns = tuple(
        Column(one["name"], tuple((spec, weight) for spec, weight in one["terms"])) for one in given["columns"]
    )
    sweep = given["sweep"]
    if sweep is not None:
        sweep = Sweep(sweep["axis"], {key: (line, place) for key, (line, place) in sweep["at"].items()})
    size = given["size"]
    part = Part(
        **{
            **given,
            "columns": columns,
            "ours": tuple(given["ours"]),
            "filter": Filter(**given["filter"]),
            "sweep": sweep,
            "size": None if size is None else tuple(size),
        }
    )
    _refuse(misfit(vars(part), get_type_hints(Part)))
    if not columns or not all(column.terms for column in columns):
        raise ValueError("it has a column that measures nothing")
    if not re.fullmatch(r"[\w-]+", part.name, re.ASCII):
        raise ValueError(f"{part.name!r} is no name of a part")
    return part


def _refuse(wrong: str) -> None:
    if wrong:
        raise ValueError(wrong)
