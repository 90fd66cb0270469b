"""The one error a user can cause, and what users are warned of: sentences in the user's own words."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

Words: TypeAlias = Callable[[str, Any], str]
"""How a setting is called: from its name in Python and, where one is proposed, a value."""


class InputError(ValueError):
    """Something given to vitrail cannot be used. The command line prints the sentence and exits with code 2."""


class Renamed(FutureWarning):
    """Something was asked for by a word that it no longer has. It is found all the same."""


class BrokenPlugin(UserWarning):
    """A package that adds to vitrail cannot be loaded; everything else works."""


def option(name: str, value: Any = None, *, python: str | None = None) -> str:
    """How the user sets something: ``labels`` and ``precision='bf16'`` in Python, ``--labels`` on the command line.

    Every message that names a parameter of `explain`, `evaluate`, `load` and the like names it by this. Parameters in a
    spec are written the same everywhere, ``ig(steps=20)``, and need it not.

    Args:
        name: The parameter's name in Python.
        value: What to set it to; several in a tuple or list. By default the parameter alone is named.
        python: What to say in Python instead, of something that is not set by one parameter there.

    Example:
        >>> option("labels"), option("precision", "bf16")
        ('labels', "precision='bf16'")
    """
    return python if python is not None and _spoken[-1] is _python else _spoken[-1](name, value)


@contextmanager
def speaking(words: Words) -> Iterator[None]:
    """Call settings otherwise for a while: the command line calls them by their flags."""
    _spoken.append(words)
    try:
        yield
    finally:
        _spoken.pop()


def _python(name: str, value: Any) -> str:
    return name if value is None else f"{name}={value!r}"


_spoken: list[Words] = [_python]
"""Of the whole process, not of a thread: work that the command line gives to threads speaks its language too."""
