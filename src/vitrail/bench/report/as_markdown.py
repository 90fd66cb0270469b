"""Markdown: tables that stay readable with many columns, and the fine print below."""

import re
from collections.abc import Iterator, Mapping

from vitrail.bench.report.result import Cell, Heading, Result, Row, Section
from vitrail.bench.report.words import (
    Notes,
    closing,
    cost,
    figure,
    interval,
    marks,
    mean_rank,
    notes,
    published,
    source,
    typeset,
)

NARROW = 4
"""So many columns have room for whole intervals; in wider tables they are folded away."""


def markdown(result: Result, plots: Mapping[str, str] | None = None) -> str:
    """The result as Markdown.

    Args:
        result: What a run found.
        plots: Where the pictures of sweeps are, by the part's name.
    """
    lines = [f"# {escape(result.title)}", "", _line(source(result)), ""]
    lines += [marks("**bold**", "†"), ""]
    for section in result.sections:
        if len(result.sections) > 1:
            lines += [f"## {escape(section.name)}", ""]
        if section.state:
            lines += [f"**{section.state}**", ""]
        if plots and section.name in plots:
            lines += [f"![{escape(section.name)}]({plots[section.name]})", ""]
        lines += [*_table(section), "", *_folded(section), *_notes(notes(section))]
    return "\n".join([*lines, *_notes(closing(result))])


def escape(text: str) -> str:
    r"""Words as they are, whatever Markdown would make of them.

    Example:
        >>> print(escape("a|b <c>"))
        a\|b \<c\>
    """
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", re.sub(r"\s+", " ", text))


def _table(section: Section) -> Iterator[str]:
    ranked = len(section.headings) > 1
    heads = [escape(heading.name) for heading in section.headings]
    more = [*(["mean rank"] if ranked else []), "s / image", "forwards", "backwards"]
    yield f"| method | {' | '.join([*heads, *more])} |"
    yield f"|---|{'---:|' * (len(heads) + len(more))}"
    for row in section.rows:
        cells = [_cell(cell, heading, len(heads)) for cell, heading in zip(row.cells, section.headings)]
        cells += [*([mean_rank(row)] if ranked else []), *map(cost, (row.seconds, row.forwards, row.backwards))]
        yield f"| {_label(row)} | {' | '.join(cells)} |"


def _label(row: Row) -> str:
    return f"{escape(row.label)}{' (ours)' if row.ours else ''}"


def _cell(cell: Cell, heading: Heading, columns: int) -> str:
    text = figure(cell.value, heading.decimals)
    if cell.known:
        text = f"**{text}**" if cell.best else f"{text}†" if cell.tied else text
        spread = f"({interval(cell, heading)})" if columns <= NARROW else f"±{figure(cell.half, heading.decimals)}"
        text = f"{text} {spread}"
    return f"{text} · paper {published(cell, heading)}" if published(cell, heading) else text


def _folded(section: Section) -> Iterator[str]:
    """Where the table above has no room for them: intervals and ranks."""
    if len(section.headings) <= NARROW or section.state:
        return
    yield from ("<details><summary>Intervals and ranks</summary>", "")
    yield f"| method | {' | '.join(escape(heading.name) for heading in section.headings)} |"
    yield f"|---|{'---:|' * len(section.headings)}"
    for row in section.rows:
        cells = [
            f"{interval(cell, heading)} {'not ranked' if cell.rank is None else f'#{cell.rank}'}"
            if cell.known
            else figure(cell.value, 0)
            for cell, heading in zip(row.cells, section.headings)
        ]
        yield f"| {_label(row)} | {' | '.join(cells)} |"
    yield from ("", "</details>", "")


def _notes(found: Notes) -> Iterator[str]:
    for title, lines in found:
        yield from (f"**{title}**", "", *(f"- {_line(line)}" for line in lines), "")


def _line(text: str) -> str:
    return typeset(text, escape, lambda code: f"`{code}`")
