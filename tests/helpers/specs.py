"""Every spec that a user meets: the defaults, every composition over every base, and what docs and protocols print."""

import dataclasses
import inspect
import re
from pathlib import Path

import vitrail
from vitrail.bench.protocol_files import protocols, read_protocol
from vitrail.method import METHODS, Method, parse

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

COMPOSITIONS = ("plus", "skipplus", "var", "rollout", "smoothgrad")

ASKED = {
    "ig": {"steps": 16},
    "smoothgrad": {"samples": 8},
    "scorecam": {"channels": 32},
    "ablationcam": {"channels": 32},
    "rise": {"masks": 200},
    "lime": {"samples": 200},
    "kernel_shap": {"samples": 200},
    "shapley": {"samples": 4},
    "hsic": {"designs": 128},
    "tis": {"masks": 64},
    "vit_cx": {"masks": 32},
    "less_is_more": {"regions": (3, 3)},
    "mda": {"cells": 5},
}
"""At most so many answers are asked for: the arithmetic of one more is that of the ones before it."""

WANTING = ("aha", "random")
"""One is asked with an explainer of its own in tests/method/aha; the other computes nothing."""


def defaults() -> list[str]:
    """Every method as it is by default."""
    return sorted(set(METHODS) - set(WANTING))


def compositions() -> list[str]:
    """Every composition over every base that it takes."""
    found = []
    for outer in COMPOSITIONS:
        for inner, cls in sorted(METHODS.items()):
            if inspect.isabstract(cls) or inner in (outer, "var", *WANTING):
                continue
            try:
                found.append(parse(f"{outer}({inner})").spec)
            except vitrail.InputError:
                continue
    return found


def printed() -> list[str]:
    """Every spec in README, docs and protocols."""
    found = set()
    for page in PAGES:
        for code in re.findall(r"`([a-z_+]+(?:\([^`|]*\))?)`", page.read_text(encoding="utf-8")):
            try:
                found.add(parse(code).spec)
            except vitrail.InputError:
                continue  # a metric, a command, a field
    for name in protocols():
        for part in read_protocol(name).parts:
            found |= {parse(spec).spec for spec in part.methods.values()}
    return sorted(spec for spec in found if parse(spec).id not in WANTING)


def asks_much(method: Method) -> bool:
    """Whether it, or what it holds, looks at many changed copies of a picture."""
    inner = (value for value in vars(method).values() if isinstance(value, Method))
    return method.id in (*ASKED, "atman", "occlusion", "pami") or any(map(asks_much, inner))


def cheaper(method: Method) -> Method:
    """The same, with no more answers than `ASKED` has; of methods inside others too."""
    changes: dict[str, object] = {}
    for field in dataclasses.fields(method):
        value, most = getattr(method, field.name), ASKED.get(method.id, {}).get(field.name)
        if isinstance(value, Method):
            changes[field.name] = cheaper(value)
        elif most is not None:
            changes[field.name] = most if value is None or value > most else value
    return dataclasses.replace(method, **changes)
