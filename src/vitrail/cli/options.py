"""Options that several verbs share."""

import sys
from typing import Annotated

import tyro

Device = Annotated[str | None, tyro.conf.arg(help="cpu, cuda, cuda:1, mps; the GPU by default if there is one.")]
Quiet = Annotated[bool, tyro.conf.arg(help="Print nothing but errors.")]


def watched(quiet: bool) -> bool:
    """Whether to show progress: to a person at a terminal, not in a log file."""
    return not quiet and sys.stderr.isatty()


def say(text: str, quiet: bool) -> None:
    """Print a line, unless quiet was asked for."""
    if not quiet:
        print(text)
