"""The command line's own language: messages name flags, not the parameters of Python's functions."""

import shlex
from dataclasses import fields
from typing import Any

from vitrail.errors import Words

OTHERWISE = {
    ("bench", "batch"): "chunk",
    ("train", "encoder"): "backbone",
    ("train", "objective_steps"): "curve",
}
"""Flags that are not called as the parameter is: of which verb, and which parameter -> the flag."""

_LINES = "give --labels FILE.csv with a line for each class of a picture, and --target label"
_KNOWN = (
    "measure with vitrail bench on --data that knows them, such as a table with several rows a picture (docs/data.md)"
)

ELSEWHERE = {
    ("evaluate", "boxes"): "boxes in a column of --labels",
    ("explain", "rivals"): _LINES,
    ("evaluate", "rivals"): _LINES,
    ("report", "repair"): "--repair",
    ("bench", "rivals"): _KNOWN,
    ("recommend", "rivals"): _KNOWN,
}
"""What is given inside another flag: of which verb, and which parameter -> what to say."""


def flags_of(verb: Any) -> Words:
    """How a verb calls what can be set: ``--labels``; a parameter that it has no flag for keeps its plain name.

    Args:
        verb: The verb, a dataclass with a field a flag.

    Example:
        >>> from vitrail.cli.explain import Explain
        >>> words = flags_of(Explain(images=("cat.jpg",)))
        >>> words("precision", "bf16"), words("masks", None)
        ('--precision bf16', 'masks')
    """
    known = {field.name for field in fields(verb)}

    def words(name: str, value: Any) -> str:
        asked = type(verb).__name__.lower(), name
        if asked in ELSEWHERE:
            return ELSEWHERE[asked]
        own = OTHERWISE.get(asked, name)
        values = [] if value is None else list(value) if isinstance(value, tuple | list) else [value]
        flag = f"--{own.replace('_', '-')}" if own in known else name.replace("_", " ")
        return " ".join([flag, *(shlex.quote(str(one)) for one in values)])

    return words
