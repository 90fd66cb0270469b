"""Reports as files: each whole or not there at all, the pictures of sweeps beside the text that shows them."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Literal

from vitrail.bench.report.as_csv import csv
from vitrail.bench.report.as_html import html
from vitrail.bench.report.as_latex import latex
from vitrail.bench.report.as_markdown import markdown
from vitrail.bench.report.as_terminal import terminal
from vitrail.bench.report.plots import plot
from vitrail.bench.report.result import Result
from vitrail.errors import InputError
from vitrail.files import write_text, write_whole

Form = Literal["terminal", "markdown", "latex", "csv", "html"]

ENDINGS: dict[Form, str] = {"terminal": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv", "html": ".html"}

LINKED: dict[Form, Callable[[Result, Mapping[str, str]], str]] = {"markdown": markdown, "latex": latex}
"""Forms that show pictures which are files of their own."""

ALONE: dict[Form, Callable[[Result], str]] = {
    "terminal": partial(terminal, width=120, colour=False),
    "csv": csv,
    "html": html,
}


def text(result: Result, form: Form) -> str:
    """The report in one form, without the pictures that would be files of their own."""
    if form == "terminal":
        return terminal(result)
    return LINKED[form](result, {}) if form in LINKED else ALONE[form](result)


def write(result: Result, out: Path, form: Form | None = None) -> list[Path]:
    """Write a report, and say which files it is.

    Args:
        result: What a run found.
        out: A file, known by its ending (.md, .tex, .csv, .html, .txt); anything else is a folder.
        form: Only this form; by default what a file's ending says, and for a folder all forms but the terminal's.
    """
    by_ending = {ending: name for name, ending in ENDINGS.items()}
    if out.suffix in by_ending and not out.is_dir():
        return _write(result, out, form or by_ending[out.suffix])
    if out.is_file():
        raise InputError(f"{out} is a file; give a folder, or a file that ends in {', '.join(by_ending)}")
    forms = [form] if form else [name for name in ENDINGS if name != "terminal"]
    return list(dict.fromkeys(path for name in forms for path in _write(result, out / f"report{ENDINGS[name]}", name)))


def _write(result: Result, path: Path, form: Form) -> list[Path]:
    plots: dict[str, str] = {}
    if form in LINKED:
        for section in result.sections:
            if section.sweep is not None:
                name = f"{path.stem}-{re.sub(r'[^A-Za-z0-9.+-]+', '-', section.name)}.png"
                write_whole(path.with_name(name), partial(_put, plot(section)))
                plots[section.name] = name
    said = LINKED[form](result, plots) if form in LINKED else ALONE[form](result)
    write_text(path, said)
    return [path, *(path.with_name(name) for name in plots.values())]


def _put(data: bytes, file: IO[bytes]) -> None:
    file.write(data)
