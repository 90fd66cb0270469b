"""The command line: one file per verb."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.bench import Bench
from vitrail.cli.demo import Demo
from vitrail.cli.evaluate import Evaluate
from vitrail.cli.explain import Explain
from vitrail.cli.methods import Methods
from vitrail.cli.metrics import Metrics
from vitrail.cli.protocols import Protocols
from vitrail.cli.recommend import Recommend
from vitrail.cli.report import Report
from vitrail.cli.train import Train
from vitrail.errors import InputError

__all__ = ["main"]

Verb = (
    Annotated[Explain, tyro.conf.subcommand("explain")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Recommend, tyro.conf.subcommand("recommend")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Methods, tyro.conf.subcommand("methods")]
    | Annotated[Metrics, tyro.conf.subcommand("metrics")]
    | Annotated[Protocols, tyro.conf.subcommand("protocols")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
)

LISTS = ("--method", "--metric", "--methods", "--metrics", "--classes", "--images")
"""Flags that may be repeated: ``--method ig --method rollout`` means ``--method ig rollout``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``vitrail``. Exit codes: 0 done, 2 bad input, 130 interrupted."""
    arguments = merged(list(sys.argv[1:] if argv is None else argv))
    verb = tyro.cli(
        Verb,
        prog="vitrail",
        description="See what an image classifier looks at.",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
    )
    try:
        verb.run()
    except InputError as error:
        print(f"vitrail: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vitrail: stopped", file=sys.stderr)
        return 130
    return 0


def merged(argv: list[str]) -> list[str]:
    """Gather the values of repeated list flags at the end; picture files behind specs are pictures still."""
    plain: list[str] = []
    gathered: dict[str, list[str]] = {}
    current: str | None = None
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            current = name if name in LISTS else None
            if current is not None:
                gathered.setdefault(current, []).extend([value] if equals else [])
                continue
        is_picture = current in ("--method", "--metric") and not word.isidentifier() and Path(word).exists()
        (plain if current is None or is_picture else gathered[current]).append(word)
    return plain + [word for name, values in gathered.items() for word in (name, *values)]
