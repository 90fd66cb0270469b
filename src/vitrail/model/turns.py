"""Let threads take turns: at a model, pass by pass, and at a switch of the whole process."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Turns:
    """A lock that threads get in the order in which they asked; the one that has it may take it again.

    Python's own locks promise no order: a thread that makes one pass after another would keep all others waiting.

    Example:
        >>> turns = Turns()
        >>> with turns, turns:
        ...     turns.waiting
        0
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._queue: deque[tuple[int, threading.Lock]] = deque()

    @property
    def waiting(self) -> int:
        """How many threads wait for their turn."""
        return len(self._queue)

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._guard:
            if self._owner in (None, me):
                self._owner = me
                self._depth += 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._queue.append((me, gate))
        try:
            gate.acquire()
        except BaseException:  # interrupted: give up the place in the queue, or the turn that has just come
            with self._guard:
                if (me, gate) in self._queue:
                    self._queue.remove((me, gate))
                else:
                    self._pass_on()
            raise

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._depth -= 1
            if not self._depth:
                self._pass_on()

    def give_way(self) -> None:
        """Let those that wait have their turns, and wait for the next one; however often this thread has the lock."""
        depth, interrupted = self._depth, None
        self._depth = 1
        self.__exit__()
        while self._owner != threading.get_ident():
            try:
                self.__enter__()
            except BaseException as error:  # this thread must have the lock again before it can let go of it
                interrupted = error
        self._depth = depth
        if interrupted is not None:
            raise interrupted

    def _pass_on(self) -> None:
        if self._queue:
            self._owner, gate = self._queue.popleft()
            self._depth = 1
            gate.release()
        else:
            self._owner, self._depth = None, 0


class _Products:
    """Torch's switch for fast, coarse float32 products (TF32), which all threads share.

    It is on while a thread wants fast products and none wants exact ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = {True: 0, False: 0}
        self._before = (False, False)

    @contextmanager
    def __call__(self, *, fast: bool) -> Iterator[None]:
        self._want(fast, 1)
        try:
            yield
        finally:
            self._want(fast, -1)

    def _want(self, fast: bool, more: int) -> None:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        with self._lock:
            if not any(self._wanted.values()):
                self._before = matmul.allow_tf32, cudnn.allow_tf32
            self._wanted[fast] += more
            if any(self._wanted.values()):
                matmul.allow_tf32 = cudnn.allow_tf32 = not self._wanted[False]
            else:
                matmul.allow_tf32, cudnn.allow_tf32 = self._before


products = _Products()
