"""Tell observers how far a piece of work is, and stop it on request.

Work is anything that makes passes through a model: explaining pictures, judging maps, a benchmark run. `working` begins
it; the passes that are made inside count for it, and for the work around it. An observer is any function of an `Event`:
a progress bar, a log line, the stream of a server. `Cancel` stops the work between two batches of passes.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias


class Passes(NamedTuple):
    """How many images are pushed through a model.

    Attributes:
        forwards: Forward.
        backwards: Backward.
    """

    forwards: float
    backwards: float = 0

    @property
    def total(self) -> float:
        """Both together."""
        return self.forwards + self.backwards

    def times(self, count: float) -> "Passes":
        """So many times as many."""
        return Passes(self.forwards * count, self.backwards * count)

    def plus(self, other: "Passes") -> "Passes":
        """These and others."""
        return Passes(self.forwards + other.forwards, self.backwards + other.backwards)


Kind = Literal["started", "stage", "passes", "done", "finished"]


@dataclass(frozen=True)
class Event:
    """What has happened in some work, and how far it is.

    Attributes:
        kind: ``started``; ``stage``: another part of the work begins; ``passes``: a batch of passes begins; ``done``:
            some of the things are done; ``finished``, whether all was done or not.
        task: What the work is, such as ``ig(steps=20)``.
        stage: The part of it.
        done: How many things are done.
        of: Of how many.
        unit: What they are: ``image``, ``map``, ``unit``, ``step``.
        passes: Passes begun so far.
        expected: About how many passes there will be, where that is known.
        seconds: Since the start.
    """

    kind: Kind
    task: str
    stage: str
    done: int
    of: int
    unit: str
    passes: Passes
    expected: Passes | None
    seconds: float


Observer: TypeAlias = Callable[[Event], object]
"""Told of every event, in the thread that does the work. What it raises ends the work."""


class Cancelled(BaseException):
    """Work was stopped on request. No error of the work: what catches those lets it pass."""


class Cancel:
    """A request to stop that any thread can make.

    Example:
        >>> cancel = Cancel()
        >>> cancel.request()
        >>> cancel.requested
        True
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def request(self) -> None:
        """Ask for the end. Work that was given this token raises `Cancelled` before its next batch of passes."""
        self._event.set()

    @property
    def requested(self) -> bool:
        """Whether the end was asked for."""
        return self._event.is_set()


class Work:
    """A piece of work. Several threads may share it.

    Args:
        task: What it is.
        of: How many things there are to do.
        unit: What they are.
        expected: About how many passes there will be.
        observers: Told of every event.
        cancel: Stops it.
        around: The work that this is a part of: its passes are counted there too, and its end is the end of this.
    """

    def __init__(
        self,
        task: str,
        of: int,
        unit: str,
        expected: Passes | None,
        observers: tuple[Observer, ...],
        cancel: Cancel | None,
        around: "Work | None",
    ) -> None:
        self.task, self.of, self.unit, self.expected = task, of, unit, expected
        self.made, self.done, self.stage = Passes(0, 0), 0, ""
        self._observers, self._cancel, self._around = observers, cancel, around
        self._start, self._lock = time.perf_counter(), threading.RLock()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start

    def check(self) -> None:
        """Raise `Cancelled` where the end of this work, or of the work around it, was asked for."""
        if self._cancel is not None and self._cancel.requested:
            raise Cancelled(f"{self.task} was stopped")
        if self._around is not None:
            self._around.check()

    def begin_passes(self, forwards: float = 0, backwards: float = 0) -> None:
        """Count passes that begin now, unless the work is to end."""
        self.check()
        with self._lock:
            self.made = Passes(self.made.forwards + forwards, self.made.backwards + backwards)
            self._tell("passes")
        if self._around is not None:
            self._around.begin_passes(forwards, backwards)

    def enter(self, stage: str) -> None:
        """Go over to another part of the work."""
        with self._lock:
            self.stage = stage
            self._tell("stage")

    def finish_some(self, count: int = 1) -> None:
        """Count things that are done."""
        with self._lock:
            self.done += count
            self._tell("done")

    def _tell(self, kind: Kind) -> None:
        if not self._observers:
            return
        event = Event(
            kind, self.task, self.stage, self.done, self.of, self.unit, self.made, self.expected, self.seconds
        )
        for observer in self._observers:
            observer(event)


_NOW: ContextVar[Work | None] = ContextVar("work", default=None)


def current() -> Work | None:
    """The work that this thread does at the moment."""
    return _NOW.get()


@contextmanager
def working(
    task: str,
    of: int,
    unit: str,
    *,
    expected: Passes | None = None,
    observers: Iterable[Observer] = (),
    cancel: Cancel | None = None,
) -> Iterator[Work]:
    """Begin a piece of work; inside, passes through any model count for it. For the arguments see `Work`.

    Example:
        >>> with working("counting", 1, "image") as work:
        ...     work.finish_some()
        >>> work.done
        1
    """
    work = Work(task, of, unit, expected, tuple(observers), cancel, _NOW.get())
    token = _NOW.set(work)
    try:
        work.check()
        work._tell("started")
        yield work
    finally:
        _NOW.reset(token)
        work._tell("finished")


@contextmanager
def within(work: Work) -> Iterator[None]:
    """Inside, this thread does a part of a work that another thread began."""
    token = _NOW.set(work)
    try:
        yield
    finally:
        _NOW.reset(token)


def begin_passes(forwards: float = 0, backwards: float = 0) -> None:
    """Count passes for the work of this thread, if it does any; raise `Cancelled` where its end was asked for."""
    work = _NOW.get()
    if work is not None:
        work.begin_passes(forwards, backwards)


def observers_of(progress: bool, observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """The observers, and a progress bar where one is wanted."""
    return (*((Bar(),) if progress else ()), *observers)


MANY = 10
"""A progress bar counts passes where a thing takes more than so many."""


class Bar:
    """A progress bar at a terminal or in a notebook: of passes where a thing takes many, else of things done."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __call__(self, event: Event) -> None:
        """Show an event."""
        from tqdm.auto import tqdm

        counts = event.expected is not None and event.expected.total > MANY * event.of
        if event.kind == "started":
            total = event.expected.total if counts and event.expected is not None else event.of
            unit = "pass" if counts else event.unit
            self._bar = tqdm(total=round(total), desc=event.task, unit=unit, unit_scale=counts, leave=False)
        if self._bar is None:
            return
        bar, now = self._bar, round(event.passes.total) if counts else event.done
        if event.kind == "stage":
            bar.set_postfix_str(event.stage)
        if event.kind == "done" and counts:
            # What was expected was a guess: the rest is guessed from what was needed so far.
            bar.total = max(now, round(now / event.done * event.of))
        bar.update(now - bar.n)
        if event.kind == "done":
            bar.refresh()
        if event.kind == "finished":
            bar.close()
            self._bar = None


class LogLines:
    """A line in a log when work begins, every so often, and when it ends.

    Args:
        logger: Where to; the logger ``vitrail`` by default.
        every: Seconds between two lines.
    """

    def __init__(self, logger: logging.Logger | None = None, every: float = 30.0) -> None:
        self._logger, self._every, self._last = logger or logging.getLogger("vitrail"), every, 0.0

    def __call__(self, event: Event) -> None:
        """Log an event, unless the last line is fresh."""
        ends = event.kind in ("started", "finished")
        if not ends and event.seconds - self._last < self._every:
            return
        self._last = event.seconds
        stage = f", {event.stage}" if event.stage else ""
        self._logger.info(
            "%s%s: %s, %d of %d %ss, %s passes, %.1f s",
            event.task,
            stage,
            event.kind if ends else "going on",
            event.done,
            event.of,
            event.unit,
            f"{event.passes.total:,.0f}",
            event.seconds,
        )
