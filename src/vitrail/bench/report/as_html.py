"""HTML: one file that needs nothing else, readable in light and dark."""

import base64
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from vitrail.bench.report.plots import plot
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

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #66707a; --line: #dfe3e8; --page: #fbfbfa; --card: #fff;
  --best: #e2f0e8; --mark: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --soft: #98a2ad; --line: #333b44; --page: #14181c;
  --card: #1b2026; --best: #1e3a2e; --mark: #56b4e9; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1400px; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 3rem 0 .8rem; }
h3 { font-size: .95rem; margin: 0 0 .3rem; }
p { margin: .3rem 0; }
.soft, small { color: var(--soft); }
code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere; }
.warn { border-left: 4px solid #d55e00; padding: .2rem .8rem; margin: .8rem 0; background: var(--card); }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--card); margin: 1rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .75rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
thead th { white-space: nowrap; vertical-align: bottom; cursor: pointer; }
tbody th, thead th:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
tbody th { font-weight: 500; min-width: 9rem; }
td small, th small { display: block; font-weight: 400; font-size: .78rem; white-space: nowrap; }
th small { white-space: normal; overflow-wrap: anywhere; }
td svg { display: block; margin: .15rem 0 .1rem auto; }
.best { background: var(--best); } .best b { font-weight: 700; } td b { font-weight: 400; }
.tied b { text-decoration: underline; text-underline-offset: 3px; }
tr.ours > th::after { content: "ours"; font-size: .7rem; color: var(--mark); border: 1px solid; border-radius: 4px;
  padding: 0 .3em; margin-left: .5em; }
.plot { background: #fff; border-radius: 8px; padding: .5rem; max-width: 100%; box-sizing: border-box; }
.notes { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1.2rem 2rem;
  font-size: .88rem; margin-top: 1.2rem; }
.notes ul { margin: 0; padding-left: 1.1rem; }
"""

SORT = """
for (const head of document.querySelectorAll("th[data-way]")) head.onclick = () => {
  const body = head.closest("table").tBodies[0], at = head.cellIndex;
  const way = head.dataset.way = -head.dataset.way;
  const number = row => { const v = parseFloat(row.cells[at].dataset.v); return isNaN(v) ? Infinity : way * v; };
  body.append(...[...body.rows].sort((a, b) => number(a) - number(b)));
};
"""
"""A click on a column's head sorts by it, the best first."""


def html(result: Result) -> str:
    """The result as one HTML file: no network, no other files.

    Args:
        result: What a run found.
    """
    shown = {"bold": "<b>bold</b>", "underlined": "<u>underlined</u>"}
    legend = typeset(marks("`bold`", "`underlined`"), escape, shown.__getitem__)
    body = [
        f"<h1>{escape(result.title)}</h1>",
        f'<p class="soft">{typeset(source(result), escape, _code)}</p>',
        f'<p class="soft">{legend} Small graphs: the interval, on one scale for a column; a ring is the paper\'s.</p>',
    ]
    for section in result.sections:
        body += _section(section, named=len(result.sections) > 1)
    body += _notes(closing(result))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(result.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + f"\n</main>\n<script>{SORT}</script>\n</body>\n</html>\n"
    )


def _section(section: Section, named: bool) -> Iterator[str]:
    if named:
        yield f"<h2>{escape(section.name)}</h2>"
    if section.state:
        yield f'<p class="warn">{escape(section.state)}</p>'
    elif section.missing:
        yield '<p class="warn">The run is unfinished: the numbers are of what is there so far.</p>'
    if section.sweep is not None:
        data = base64.b64encode(plot(section, "svg")).decode()
        yield f'<img class="plot" alt="{escape(section.name)}" src="data:image/svg+xml;base64,{data}">'
    yield from ('<div class="wide"><table>', *_table(section), "</table></div>")
    yield from _notes(notes(section))


def _table(section: Section) -> Iterator[str]:
    ranked = len(section.headings) > 1
    # The sign is turned before the first click sorts: rising numbers come first where less is better.
    heads = [(heading.name, 1 if heading.column.higher_is_better else -1) for heading in section.headings]
    heads += [*([("mean rank", -1)] if ranked else []), ("s / image", -1), ("forwards", -1), ("backwards", -1)]
    cells = "".join(f'<th data-way="{way}">{escape(name)}</th>' for name, way in heads)
    yield f"<thead><tr><th>method</th>{cells}</tr></thead>\n<tbody>"
    spans = [_span([row.cells[i] for row in section.rows]) for i in range(len(section.headings))]
    for row in section.rows:
        found = [_cell(*one) for one in zip(row.cells, section.headings, spans)]
        more = [*([(row.rank, mean_rank(row))] if ranked else [])]
        more += [(value, cost(value)) for value in (row.seconds, row.forwards, row.backwards)]
        found += [f"<td{_sorted_by(value)}>{text}</td>" for value, text in more]
        yield f"<tr{' class=ours' if row.ours else ''}>{_head(row)}{''.join(found)}</tr>"
    yield "</tbody>"


def _head(row: Row) -> str:
    spec = row.spec if row.spec != row.label else ""
    said = f"<small><code>{escape(spec)}</code></small>" if spec else "" if row.spec else "<small>not run</small>"
    return f"<th>{escape(row.label)}{said}</th>"


def _cell(cell: Cell, heading: Heading, span: tuple[float, float]) -> str:
    parts = [f"<b>{figure(cell.value, heading.decimals)}</b>"]
    if cell.known:
        parts += [f"<small>{interval(cell, heading)}</small>", _whisker(cell, *span)]
    if published(cell, heading):
        parts.append(f"<small>paper {published(cell, heading)}</small>")
    kind = "best" if cell.best else "tied" if cell.tied else ""
    rank = "not ranked" if cell.rank is None else f"rank {cell.rank}"
    place = f' title="{rank}, {cell.images} pictures"' if cell.known else ""
    return f"<td{_sorted_by(cell.value)}{f' class={kind}' if kind else ''}{place}>{''.join(parts)}</td>"


def _sorted_by(value: float) -> str:
    return f' data-v="{value:.6g}"' if np.isfinite(value) else ""


def _span(cells: Sequence[Cell]) -> tuple[float, float]:
    """From the least to the largest number that a column's cells show."""
    numbers = [n for cell in cells for n in (cell.low, cell.value, cell.high, cell.published) if n is not None]
    finite = [n for n in numbers if np.isfinite(n)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def _whisker(cell: Cell, least: float, largest: float) -> str:
    """The interval as a line with a dot, on the same scale in all of a column; the paper's number as a ring."""
    low, value, high, ring = (
        4 + 72 * (n - least) / ((largest - least) or 1) if n is not None and np.isfinite(n) else None
        for n in (cell.low, cell.value, cell.high, cell.published)
    )
    drawn = f'<circle cx="{value:.1f}" cy="5" r="2.5" fill="var(--mark)"/>'
    if low is not None and high is not None:
        drawn += f'<path d="M{low:.1f} 5H{high:.1f}" stroke="var(--mark)" stroke-width="1.5"/>'
    if ring is not None:
        drawn += f'<circle cx="{ring:.1f}" cy="5" r="3.2" fill="none" stroke="#d55e00" stroke-width="1.3"/>'
    return f'<svg width="80" height="10" aria-hidden="true">{drawn}</svg>'


def _notes(found: Notes) -> Iterator[str]:
    if not found:
        return
    yield '<div class="notes">'
    for title, lines in found:
        items = "".join(f"<li>{typeset(line, escape, _code)}</li>" for line in lines)
        yield f"<div><h3>{escape(title)}</h3><ul>{items}</ul></div>"
    yield "</div>"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
