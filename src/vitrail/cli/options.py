"""Options that several verbs share."""

from typing import Annotated

import tyro

Device = Annotated[str | None, tyro.conf.arg(help="cpu, cuda, cuda:1, mps; the GPU by default if there is one.")]
Quiet = Annotated[bool, tyro.conf.arg(help="Print nothing but errors.")]


def say(text: str, quiet: bool) -> None:
    """Print a line, unless quiet was asked for."""
    if not quiet:
        print(text)
