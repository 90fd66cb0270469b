"""Much work in parts that fit memory: when it runs out, half as much at a time, and on from there."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: a GPU's has a name of its own, the CPU's only a sentence."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def in_parts(count: int, together: int, ask: Callable[[slice], T]) -> Iterator[tuple[slice, T]]:
    """Ask about ``count`` things, ``together`` at a time; half as many from where memory runs out.

    Args:
        count: How many there are.
        together: How many to begin with.
        ask: What is to be known about those in a slice; it may be asked again, about fewer.

    Yields:
        The slices, in order, and what was found.
    """
    first = 0
    while first < count:
        part = slice(first, min(first + together, count))
        try:
            found = ask(part)
        except RuntimeError as error:
            if not is_out_of_memory(error) or part.stop - first == 1:
                raise
        else:
            yield part, found
            first = part.stop
            continue
        # Out here, where the failed pass holds no memory any more.
        together = (part.stop - first) // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
