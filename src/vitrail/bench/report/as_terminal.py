"""The terminal: tables cut into blocks of columns that fit its width."""

import io
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleRenderable
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vitrail.bench.report.result import Cell, Heading, Result, Row, Section
from vitrail.bench.report.words import Notes, closing, cost, figure, marks, mean_rank, notes, published, source

Column = tuple[str, Sequence[Text | str]]
"""A heading, and a cell for each method."""

LABEL = 34
"""The widest that the column of methods gets; longer names are folded."""


def terminal(result: Result, width: int | None = None, colour: bool | None = None) -> str:
    """The result as text for a terminal.

    Args:
        result: What a run found.
        width: Letters in a line; those of this terminal by default.
        colour: Whether it shows bold and dim letters; the marks say the same without.
    """
    here = Console()
    width, colour = width or here.width, here.is_terminal if colour is None else colour
    text = io.StringIO()
    console = Console(
        file=text, width=width, force_terminal=colour, no_color=not colour, highlight=False, emoji=False, markup=False
    )
    console.print(Text(result.title, style="bold"))
    console.print(source(result).replace("`", ""))
    for section in result.sections:
        console.print()
        if len(result.sections) > 1:
            console.rule(section.name, align="left")
        for block in _blocks(section, width):
            console.print(block)
        for line in _lines(notes(section)):
            console.print(line)
    console.print()
    for line in _lines([*closing(result), ("Marks", [marks("*", "†")])]):
        console.print(line)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _blocks(section: Section, width: int) -> Iterator[ConsoleRenderable | str]:
    """Tables, each with as many columns as fit; what a method costs is in the last."""
    columns: list[Column] = [
        (heading.name, [_cell(row.cells[i], heading) for row in section.rows])
        for i, heading in enumerate(section.headings)
    ]
    more: list[Column] = [("mean rank", [mean_rank(row) for row in section.rows])] if len(columns) > 1 else []
    more.append(("s/image", [cost(row.seconds) for row in section.rows]))
    more.append(("forwards", [cost(row.forwards) for row in section.rows]))
    more.append(("backwards", [cost(row.backwards) for row in section.rows]))
    labels = [_label(row) for row in section.rows]
    first = min(max(map(len, ["method", *labels])), LABEL)
    for block in _fitting([*([column] for column in columns), more], width - first):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
        table.add_column("method", max_width=LABEL, overflow="fold")
        for name, _ in block:
            table.add_column(name, justify="right", overflow="fold")
        for i, label in enumerate(labels):
            table.add_row(label, *(cells[i] for _, cells in block))
        yield table
        yield ""


def _fitting(groups: Sequence[list[Column]], room: int) -> Iterator[list[Column]]:
    """Columns side by side as far as there is room; those of a group stay together."""
    block: list[Column] = []
    left = room
    for group in groups:
        needed = sum(
            3 + max(len(line) for text in [name, *map(str, cells)] for line in text.split("\n"))
            for name, cells in group
        )
        if block and needed > left:
            yield block
            block, left = [], room
        block = [*block, *group]
        left -= needed
    yield block


def _label(row: Row) -> str:
    return f"{row.label} (ours)" if row.ours else row.label


def _cell(cell: Cell, heading: Heading) -> Text:
    found = Text(figure(cell.value, heading.decimals), style="bold" if cell.best else "")
    if cell.known:
        found.append("*" if cell.best else "†" if cell.tied else " ")
        found.append(f" ±{figure(cell.half, heading.decimals)}", style="not bold dim")
    if published(cell, heading):
        found.append(f"\npaper {published(cell, heading)}", style="not bold dim")
    return found


def _lines(found: Notes) -> Iterator[ConsoleRenderable | str]:
    for title, lines in found:
        yield Text(title, style="bold")
        yield from (Padding(Text(line.replace("`", "")), (0, 0, 0, 2)) for line in lines)
