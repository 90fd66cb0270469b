"""Hold a model still while it is looked at: evaluation mode, one thread at a time, given back exactly as it was."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, option
from vitrail.model.evaluation import Evaluation
from vitrail.model.trace import Precision
from vitrail.model.turns import Turns, products

Kept = TypeVar("Kept")

_LOCKS: WeakKeyDictionary[nn.Module, Turns] = WeakKeyDictionary()
"""One lock a model: its views take turns, whatever threads they run in."""

MOST_RECALLED = 2**32
"""Bytes of changed copies' states that are remembered at most."""

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class _Own(threading.local):
    """What each thread that uses a view has for itself; None where it has not said anything."""

    precision: Precision | None = None
    compiled: bool | None = None
    fused: bool | None = None
    memory: dict[tuple[Any, ...], tuple[Tensor, Any]] | None = None
    remembered: Tensor | None = None


class Still:
    """A model that can be held still.

    Threads may use one view at the same time, each at its own precision: they take turns, pass by pass.

    Args:
        model: Any module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._precision: Precision = "fp32"
        self._compiled = False
        self._fused = True
        self._lock = _LOCKS.setdefault(model, Turns())
        self._own = _Own()
        self._depth = 0  # how often the thread whose turn it is holds the model
        self._turns = False  # whether it gives others their turns
        self._evaluation = Evaluation(model)

    @property
    def precision(self) -> Precision:
        """What this thread calculates in."""
        return self._own.precision or self._precision

    @precision.setter
    def precision(self, value: Precision) -> None:
        self._precision = value

    @property
    def compiled(self) -> bool:
        """Whether the blocks are compiled, or all of the model where there are none."""
        return self._compiled if self._own.compiled is None else self._own.compiled

    @compiled.setter
    def compiled(self, value: bool) -> None:
        self._compiled = value

    @property
    def fused(self) -> bool:
        """Whether, on a GPU and where no gradient is wanted, blocks may be computed by our own kernels.

        They are as exact and faster, see `vitrail.model.kernels`; else the model's own code runs.
        """
        return self._fused if self._own.fused is None else self._own.fused

    @fused.setter
    def fused(self, value: bool) -> None:
        self._fused = value

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has, or one from a pickle: it takes turns of its own, and remembers no traces."""
        return vars(self) | {"_lock": None, "_own": None, "_depth": 0, "_turns": False, "_turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self._own = _LOCKS.setdefault(self.model, Turns()), _Own()

    @property
    def device(self) -> torch.device:
        """Where the model's weights live."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The floating point type of the model's weights."""
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    @property
    def remembers(self) -> bool:
        """Whether this thread keeps traces at the moment, see `remembering`."""
        return self._own.memory is not None

    @contextmanager
    def still(self, *, turns: bool = False) -> Iterator[None]:
        """Hold the model in evaluation mode, one thread at a time, and give it back exactly as it was.

        Args:
            turns: For work of many passes: before each of them, threads that wait have their turns. What changes the
                model for more than a pass (a hook, say) does that inside, in a `still` of its own.
        """
        with self._lock:
            if self._depth:
                between = self._depth == 1 and self._turns
                if between and self._lock.waiting:
                    self._give_way()
                self._depth += not (between and turns)
                try:
                    yield
                finally:
                    self._depth -= not (between and turns)
                return
            # Out of inference mode, so that gradients are possible inside, also under no_grad.
            with torch.inference_mode(False), usual_device(), self._autocast():
                self._turn = self._held()
                self._turn.__enter__()
                self._depth, self._turns = 1, turns
                try:
                    yield
                finally:
                    self._depth = 0
                    self._turn.__exit__(None, None, None)

    def _give_way(self) -> None:
        """Let the threads that wait have their turns, the model given back in between."""
        self._depth = 0
        self._turn.__exit__(None, None, None)
        try:
            self._lock.give_way()
        finally:
            self._turn = self._held()
            self._turn.__enter__()
            self._depth, self._turns = 1, True

    @contextmanager
    def _held(self) -> Iterator[None]:
        """What other threads must not see: random state put aside, the model evaluated, the switch for products."""
        device = self.device
        # A few bytes on the host, also a GPU's.
        random = torch.random.fork_rng([device] if device.type == "cuda" else [])
        fast = products(fast=True) if self.precision == "tf32" else nullcontext()
        with random, fast, self._evaluation.on():
            yield

    def _autocast(self) -> AbstractContextManager[Any]:
        half = _DTYPES.get(self.precision)
        return nullcontext() if half is None else torch.autocast(self.device.type, half)

    @contextmanager
    def calculating(self) -> Iterator[None]:
        """The surroundings in which the model calculates at the precision wanted."""
        with self._autocast(), products(fast=True) if self.precision == "tf32" else nullcontext():
            yield

    @contextmanager
    def using(
        self, precision: Precision | None = None, compiled: bool | None = None, fused: bool | None = None
    ) -> Iterator[None]:
        """Inside, this thread uses the view at another precision, blocks compiled or not, fused or not."""
        if precision not in (None, *get_args(Precision)):
            raise InputError(
                f"{option('precision')} must be one of {', '.join(get_args(Precision))}, but {precision!r} was given"
            )
        own = self._own
        before = own.precision, own.compiled, own.fused
        own.precision = precision or own.precision
        own.compiled = own.compiled if compiled is None else compiled
        own.fused = own.fused if fused is None else fused
        try:
            yield
        finally:
            own.precision, own.compiled, own.fused = before

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Inside, the model calculates as its weights are, whatever precision is wanted around it.

        Half precision leaves no order in what is read of gradients, of squares and of small differences.
        """
        exact = products(fast=False) if self.precision == "tf32" else nullcontext()
        with torch.autocast(self.device.type, enabled=False), exact:
            before, self._own.precision = self._own.precision, "fp32"
            try:
                yield
            finally:
                self._own.precision = before

    @contextmanager
    def remembering(self, images: Tensor) -> Iterator[None]:
        """Inside, this thread computes the same trace of these images once: several targets share one forward pass.

        Args:
            images: Only they: changed copies are made anew for each target, and their traces would fill the memory.
        """
        own = self._own
        before = own.memory, own.remembered
        own.memory, own.remembered = {} if own.memory is None else own.memory, images
        try:
            yield
        finally:
            if before[0] is not None and before[1] is not images:
                # Those outside are still remembered; these are done with, and their traces are large.
                for key in [key for key, (of, _) in before[0].items() if of is images]:
                    del before[0][key]
            own.memory, own.remembered = before

    def kept(self, images: Tensor, key: tuple[Any, ...], make: Callable[[], Kept]) -> Kept:
        """A pass over images with its graph, as ``make`` gives it; while they are remembered, made once for a key."""
        key, memory = (id(images), *key), self._own.memory
        if memory is not None and key in memory:
            known: Kept = memory[key][1]
            return known
        made = make()
        if memory is not None and self._own.remembered is images:
            memory[key] = (images, made)  # with the images, so that their id stays theirs
        return made

    def recalled(self, images: Tensor, key: tuple[Any, ...], make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gives; while these images are remembered, made once for a key, if it is not too large."""
        memory = self._own.memory
        if memory is None or self._own.remembered is not images:
            return make()
        key = (id(images), *key)
        if key not in memory:
            made = make()
            held = sum(known.nbytes for _, known in memory.values() if isinstance(known, Tensor))
            if held + made.nbytes > MOST_RECALLED:
                return made
            memory[key] = (images, made)
        found: Tensor = memory[key][1]
        return found


def take_turns(model: nn.Module, view: Still) -> None:
    """Let all views of a model, none of which is made yet, take turns with another model's view."""
    _LOCKS.setdefault(model, view._lock)


@contextmanager
def usual_device() -> Iterator[None]:
    """Inside, new tensors lie on the CPU where no device is named, whatever default the caller has set."""
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        yield
