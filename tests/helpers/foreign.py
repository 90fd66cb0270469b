"""Which words of a message are Python's own, and no user's of the command line."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import vitrail
from vitrail import bench, perturb
from vitrail.method import METHODS
from vitrail.metric import METRICS
from vitrail.train import Training

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    vitrail.explain,
    vitrail.evaluate,
    vitrail.load,
    bench.perform,
    bench.run,
    bench.recommend.recommend,
    bench.Ray.__init__,
    bench.Plan,
    Training,
)
KEYWORDS = {name for function in FUNCTIONS for name in inspect.signature(function).parameters} - {"self"}
"""What Python's users set by name, and the command line's by flags."""

BASELINES = [one for one in vars(perturb).values() if inspect.isclass(one) and hasattr(one, "__dataclass_fields__")]
DATA = {"count", "objects", "seed", "shortcut", "mask", "split"}  # scenes:100,objects=2 and hf:NAME,split=train
FIELDS = {field.name for one in (*METHODS.values(), *METRICS.values(), *BASELINES) for field in fields(one)} | DATA
"""What stands in specs, which everyone writes alike: ``ig(steps=20)``, ``scenes:100,objects=2``."""

GAP = "\0"
"""Stands for what a message fills in."""


def foreign(text: str) -> list[str]:
    """The keywords of Python that a message names, outside of specs such as ``ig(steps=20)``."""
    text = re.sub(rf"[\w{GAP}]?\([^()]*=[^()]*\)", "", text)
    text = re.sub(r"\bbut ([a-z_]+=[^;]*?) (was|were) given", _strange, text)
    found = []
    for name, value in re.findall(rf"(?<![\w.-])([a-z_]+)=({GAP}|\S)?", text):
        reported = value == GAP and name in FIELDS  # "stride=3 is more than", of a spec's own parameter
        if not reported and (name in KEYWORDS or name not in FIELDS):
            found.append(f"{name}=")
    return found


def _strange(clause: re.Match[str]) -> str:
    """What was given, where a spec has no such parameter: ``but steps=0 was given`` repeats the user's own words."""
    return " ".join(f"{name}=" for name in re.findall(r"([a-z_]+)=", clause.group(1)) if name not in FIELDS)
