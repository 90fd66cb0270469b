"""Tables of what there is, as wide as the window: the columns that fit, or all there is to say about a single thing."""

import os
from collections.abc import Sequence
from typing import Any

from vitrail.fields import Range

WIDEST = 30
"""Letters that a column is wished to have at most; what is longer is folded."""

WITHOUT_WINDOW = 200
"""Letters of a line where the table goes into a file."""


def parameter(told: dict[str, Any]) -> str:
    """A parameter as its schema tells it: ``steps=50 (1 to 2,000): Points on the way.``."""
    may_be = [str(choice) for choice in told.get("choices", ())]
    may_be += [str(Range(**told[key])) for key in ("range", "whole") if key in told]
    allowed = f" ({' or '.join(may_be)})" if may_be else ""
    return f"{told['name']}={told['default']}{allowed}: {told['doc']}"


def show(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, or a single row as a list.

    Args:
        headings: Of the columns, the most important first: those that do not fit are left out, and named.
        rows: Of the table, one at least.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=WITHOUT_WINDOW)
    if len(rows) == 1:
        alone = Table.grid(padding=(0, 2))
        for heading, cell in zip(headings, rows[0]):
            alone.add_row(f"[bold]{heading}[/bold]", escape(cell))
        console.print(alone)
        return
    shown = _fitting(headings, rows, console.width)
    table = Table()
    for i, heading in enumerate(headings[:shown]):
        table.add_column(heading, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*row[:shown])
    console.print(table)
    if shown < len(headings):
        left_out = ", ".join(headings[shown:])
        print(f"Not shown, because the window is too narrow: {left_out}. Give one name to see all, or --json.")


def _fitting(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    """How many columns fit, two at least."""
    left = width - 1
    for i, column in enumerate(zip(headings, *rows)):
        left -= min(WIDEST, max(map(len, column))) + 3
        if left < 0:
            return max(2, i)
    return len(headings)
