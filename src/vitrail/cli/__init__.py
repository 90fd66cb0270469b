"""The command line: one file per verb."""

import ctypes
import errno
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitrail import __version__
from vitrail.cli.bench import Bench
from vitrail.cli.checks import check_values
from vitrail.cli.demo import Demo
from vitrail.cli.evaluate import Evaluate
from vitrail.cli.explain import Explain
from vitrail.cli.methods import Methods
from vitrail.cli.metrics import Metrics
from vitrail.cli.protocols import Protocols
from vitrail.cli.recommend import Recommend
from vitrail.cli.report import Report
from vitrail.cli.scenes import Scenes
from vitrail.cli.train import Train
from vitrail.cli.words import flags_of
from vitrail.errors import BrokenPlugin, InputError, Renamed, speaking

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
    | Annotated[Scenes, tyro.conf.subcommand("scenes")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
)

VERBS: dict[str, type] = {
    verb.__name__.lower(): verb
    for verb in (Explain, Evaluate, Bench, Recommend, Train, Methods, Metrics, Protocols, Report, Scenes, Demo)
}

TRIM_ABOVE, MOST_MAPPED = -1, -4
"""Two settings of glibc's mallopt: how much free memory it keeps, and how many blocks it maps one by one."""

LISTS = ("--method", "--metric", "--target", "--methods", "--metrics", "--classes", "--images", "--data", "--part")
"""Flags that may be repeated: ``--method ig --method rollout`` means ``--method ig rollout``."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Why what is printed cannot be written."""

SWITCHES = ("--quiet", "--compiled", "--repair")
"""Flags that stand alone."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``vitrail``.

    Exit codes: 0 done, 1 what it prints cannot be written, 2 bad input, 130 interrupted, 141 nobody reads that.
    """
    _prepare_streams()
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # here, not at the end of the process, where Python would print a traceback
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:  # of a file that has a name
            raise
        _forget_output()
        return _refuse(f"what it prints cannot be written ({error.strerror or error})", 1)
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # rich's answer to one
            return _unread()
        raise


def _prepare_streams() -> None:
    """Print nowhere where a stream is closed; print what no encoding knows, as names of files may hold, as a code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  until the process ends
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _unread() -> int:
    """What reads the output has ended, as ``| head`` does: end too, without a word."""
    _forget_output()
    return 141


def _forget_output() -> None:
    """Let what is still to be printed go nowhere: Python tries once more when it ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(sentence: object, code: int = 2) -> int:
    """Say what is wrong, as far as anything can be said; the exit code."""
    try:
        print(f"vitrail: {sentence}", file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError:
        pass
    return code


def _run(argv: list[str]) -> int:
    arguments = merged(argv)
    try:
        if arguments and arguments[0] in VERBS and not {"-h", "--help"} & set(arguments):
            check_values(arguments, VERBS[arguments[0]])
    except InputError as error:
        return _refuse(error)
    if arguments == ["--version"]:
        print(f"vitrail {__version__}")
        return 0
    verb = tyro.cli(
        Verb,
        prog="vitrail",
        description="See what an image classifier looks at. vitrail --version says which version this is.",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
    )
    keep_freed_memory()
    try:
        with speaking(flags_of(verb)), warning_plainly():
            verb.run()
    except InputError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        return _refuse("stopped", 130)
    return 0


@contextmanager
def warning_plainly() -> Iterator[None]:
    """Print what users are warned of as the sentence that it is, without the line of code it comes from."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, Renamed | BrokenPlugin):
                print(f"vitrail: {message}", file=sys.stderr)
            else:
                others(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def keep_freed_memory() -> None:
    """Let memory that was freed be used again, not given back: CNNs on a CPU make 1.5 x as many gradients, and more.

    By default glibc asks the system for every large tensor anew, and the system fills each with zeros first. Only here,
    in a process of our own; docs/performance.md has what it brings.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MOST_MAPPED, 0)
        libc.mallopt(TRIM_ABOVE, -1)


def merged(argv: list[str]) -> list[str]:
    """Gather the values of repeated list flags at the end, and leave picture files that follow them where they are."""
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
        (plain if current is None or _is_picture(word, current, gathered[current]) else gathered[current]).append(word)
    targets = gathered.get("--target", [])
    flags = [before.startswith("--") and before not in SWITCHES for before in plain]
    given = [word for flag, word in zip(flags, plain[1:]) if not flag and not word.startswith("--")]
    if len(targets) > 1 and not given and Path(targets[-1]).is_dir():
        plain.append(targets.pop())  # a folder whose name could be a class, and no picture but this one
    return plain + [word for name, values in gathered.items() for word in (name, *values)]


def _is_picture(word: str, flag: str, before: list[str]) -> bool:
    """Whether a word behind a list flag is a picture file, or a folder of pictures, and no value of the flag."""
    if flag == "--target" and (not before or word.isdecimal()):
        return False
    named = not word or word.isidentifier()  # an empty word is no path, though Path takes it for the folder one is in
    return flag in ("--method", "--metric", "--target") and not named and Path(word).exists()
