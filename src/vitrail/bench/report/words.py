"""What every form of a report says, in words and figures. Code stands between backticks; each form sets it its way."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from vitrail.bench.report.compare import LEVEL
from vitrail.bench.report.result import Cell, Heading, Result, Row, Section
from vitrail.notes import evidence

NOTHING = "\N{EN DASH}"
"""Where there is no number."""

FEW = 30
"""Bootstrap intervals of fewer pictures than this are too narrow to be relied on."""

RANKS = (
    "Mean ranks over pictures, 1 for the best; closer than the critical difference they are not told apart (Nemenyi)"
)

Notes = list[tuple[str, list[str]]]


def figure(value: float, decimals: int) -> str:
    """A number of a column, or a dash.

    Example:
        >>> figure(0.7454, 3)
        '0.745'
    """
    return f"{value:.{decimals}f}" if np.isfinite(value) else NOTHING


def published(cell: Cell, heading: Heading) -> str:
    """The paper's number with the digits that the paper gives; empty where it has none."""
    return "" if cell.published is None else f"{cell.published:.{heading.published_decimals}f}"


def interval(cell: Cell, heading: Heading) -> str:
    """``0.730 to 0.760``: a dash would be taken for the sign of a number below zero."""
    return f"{figure(cell.low, heading.decimals)} to {figure(cell.high, heading.decimals)}"


def cost(value: float) -> str:
    """Seconds or passes, to three digits that count."""
    if not np.isfinite(value):
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def mean_rank(row: Row) -> str:
    """The mean of a method's ranks over the columns."""
    return figure(row.rank, 2)


def marks(best: str, tied: str) -> str:
    """What the marks in a table mean.

    Args:
        best: How the best is marked.
        tied: How those are that are not significantly worse.
    """
    return (
        f"95 % intervals by bootstrap over pictures. Best: {best}. Not significantly worse than the best: {tied} "
        f"(paired bootstrap on the same pictures, {100 * LEVEL:g} %, Holm's correction over the methods of a column)."
    )


def source(result: Result) -> str:
    """The protocol, and whose it is."""
    return ", ".join(filter(None, (f"`{result.name}`", _plain(result.paper))))


def notes(section: Section) -> Notes:
    """All that stands below a table: titles, each with its lines."""
    found = {
        "How it was measured": _measured(section),
        "Model and data": _setting(section),
        "Pictures": _pictures(section),
        "Against the paper": _against(section),
        "Between the methods": _between(section),
    }
    return [(title, lines) for title, lines in found.items() if lines]


def closing(result: Result) -> Notes:
    """What stands at the end of a report."""
    found = {
        "Note": [_plain(result.note)] if result.note else [],
        "To run it again": [f"`{_plain(line)}`" for line in (result.command or "").splitlines()],
    }
    return [(title, lines) for title, lines in found.items() if lines]


def typeset(text: str, word: Callable[[str], str], code: Callable[[str], str]) -> str:
    """A line of notes in a form's own way.

    Args:
        text: The line, with code between backticks.
        word: What becomes of the words.
        code: What becomes of the code.
    """
    return "".join(code(piece) if i % 2 else word(piece) for i, piece in enumerate(text.split("`")))


def _plain(text: str) -> str:
    """Text from elsewhere, on one line and without backticks: they would be taken for code."""
    return " ".join(text.replace("`", "'").split())


def _measured(section: Section) -> list[str]:
    lines = []
    for heading in section.headings:
        terms = heading.column.terms
        if len(terms) == 1 and terms[0][1] == 1:
            said = f"`{terms[0][0]}`"
        else:
            said = "".join(_term(i, *term) for i, term in enumerate(terms))
            said += ", picture by picture" if len(terms) > 1 else ""
        if heading.own_total:
            said += (
                "; the total is of all pictures together, not their mean; marks and mean ranks go by single pictures"
                if len(terms) == 1
                else "; the mean over pictures, which is not the metric's own total"
            )
        lines.append(f"{_plain(heading.name)}: {said}")
    specs = {row.label: row.spec for row in section.rows if row.spec and row.label != row.spec}
    lines += [f"{_plain(label)}: `{spec}`" for label, spec in specs.items()]
    lines += [f"{_plain(row.label)}: the paper's alone, not run" for row in section.rows if not row.spec]
    return lines


def _term(place: int, spec: str, weight: float) -> str:
    sign = ("-" if weight < 0 else "") if place == 0 else (" - " if weight < 0 else " + ")
    size = "" if abs(weight) == 1 else f"{abs(weight):.4g} "
    return f"{sign}{size}`{spec}`"


def _setting(section: Section) -> list[str]:
    facts = section.facts
    if not facts:
        return []
    arithmetic = f"{facts['precision']}{', compiled' if facts['compiled'] else ''}"
    whose = "the true class" if facts["explains"] == "label" else "the predicted class"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        f"Model `{facts['model']}`, weights `{str(facts['weights'])[:16]}`, {arithmetic}; {whose} is explained",
        f"Data `{facts['data']}`, {facts['images']:,} pictures, list `{str(facts.get('images hash', ''))[:16]}`",
        f"Filter `{_settings(facts['filter'])}`" if facts["filter"] else "No filter",
        f"Versions: {versions}",
    ]
    if any(np.isfinite(row.seconds) for row in section.rows):
        lines.append(
            "Seconds an image: the median, on the machine that ran it; forwards and backwards: passes an image"
        )
    if section.published_for:
        lines.append(f"The paper's numbers are for {_plain(section.published_for)}")
    return lines


def _settings(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given.items())


def _pictures(section: Section) -> list[str]:
    if section.state:
        return [section.state]
    facts, dropped = section.facts, sum(section.left_out.values())
    lines = [f"{section.images:,} of {facts['images']:,} take part"]
    if dropped:
        lines.append(f"Left out by the filter: {dropped:,} ({_counted(section.left_out)})")
    spare = facts["images"] - section.images - dropped
    if spare > 0:
        lines.append(f"Not needed for the limit of {facts.get('limit')}: {spare:,}")
    lines += [
        f"{_plain(row.label)} has no map of {sum(row.failed.values()):,} ({_counted(row.failed)})"
        for row in section.run
        if row.failed
    ]
    for row in section.run:
        nothing = evidence(row.empty, row.maps)
        lines += [f"{_plain(row.label)}: {nothing}"] if nothing else []
        lines += [f"{_plain(said)} ({count:,} of {row.maps:,} pictures)" for said, count in row.told.items()]
    lines += _uneven(section)
    if section.missing:
        wanted = section.wanted * len(section.run)
        each = ", ".join(f"{_plain(label)} {count:,}" for label, count in section.missing.items())
        lines.append(f"Unfinished: {sum(section.missing.values()):,} of {wanted:,} units of work are missing ({each})")
    if section.images < FEW:
        lines.append(f"Fewer than {FEW} pictures: the intervals are too narrow to be relied on")
    return lines


def _uneven(section: Section) -> Iterator[str]:
    """Columns where not all pictures count for all methods: those means are not of the same pictures."""
    for i, heading in enumerate(section.headings):
        counts = [row.cells[i].images for row in section.run if row.cells[i].known]
        if counts and min(counts) < section.images:
            span = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
            uneven = "" if min(counts) == max(counts) else ", not the same for all methods"
            yield f"{_plain(heading.column.name)} counts {span} of them{uneven}"


def _counted(reasons: Mapping[str, int], most: int = 4) -> str:
    shown = [f"{count:,}: {_plain(reason)}" for reason, count in list(reasons.items())[:most]]
    more = len(reasons) - len(shown)
    return "; ".join([*shown, f"and {more} more reasons"] if more else shown)


def _against(section: Section) -> list[str]:
    return [
        f"{_plain(heading.column.name)}: Spearman's rho {figure(found.rho, 2)}, Kendall's tau {figure(found.tau, 2)} "
        f"over {found.methods} methods"
        for heading in section.headings
        if (found := heading.agreement) is not None
    ]


def _between(section: Section) -> list[str]:
    lines, labels = [], {row.spec: row.label for row in section.run}
    for heading in section.headings:
        found = heading.standing
        if found is not None:
            ranks = sorted(found.ranks.items(), key=lambda pair: pair[1])
            each = ", ".join(f"{_plain(labels[spec])} {rank:.2f}" for spec, rank in ranks)
            lines.append(
                f"{_plain(heading.column.name)}: {each}; critical difference {found.critical_difference:.2f}, "
                f"Friedman's p {_p(found.p)}, {found.images:,} pictures"
            )
    return [RANKS, *lines] if lines else []


def _p(value: float) -> str:
    if not np.isfinite(value):
        return NOTHING
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
