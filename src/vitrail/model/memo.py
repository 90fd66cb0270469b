"""What others find out about a model and keep with its view."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Memo:
    """Values by what they are and by a key; they go with the view that has them, or when it forgets them.

    Rules:

    * ``what`` is written ``file: thing``, with the path of the file that asks, such as ``perturb/canvas: apart``.
    * The key holds all that the value depends on besides the code of the model: the size of the pictures, the
      precision, the seed. A value that depends on the weights has `View.fingerprint` or `View.stamp` in its key.
    * No value holds the view itself, which would then live as long as itself.

    A copy of a view, and one that was pickled, begins with an empty one.

    Example:
        >>> memo = Memo()
        >>> memo.once("here: sum", (1, 2), lambda: 1 + 2), memo.once("here: sum", (1, 2), lambda: 0)
        (3, 3)
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[Hashable, Any]] = {}

    def once(self, what: str, key: Hashable, make: Callable[[], Value]) -> Value:
        """What ``make`` gives, made once for a key."""
        known = self._known.setdefault(what, {})
        if key not in known:
            known[key] = make()
        value: Value = known[key]
        return value

    def latest(self, what: str, key: Hashable, make: Callable[[], Value], fits: Callable[[Value], bool]) -> Value:
        """The same for values so large that only the one of the last key is kept, and that only if it ``fits``."""
        known = self._known.setdefault(what, {})
        if key not in known:
            known.clear()  # before the next one takes as much memory
            made = make()
            if not fits(made):
                return made
            known[key] = made
        value: Value = known[key]
        return value

    def forget(self) -> None:
        """Begin anew."""
        self._known.clear()

    def __reduce__(self) -> tuple[type["Memo"], tuple[()]]:
        return Memo, ()
