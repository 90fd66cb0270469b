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

Kept = TypeVar("Kept")

_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
"""One lock a model: its views take turns, whatever threads they run in."""

MOST_RECALLED = 2**32
"""Bytes of changed copies' states that are remembered at most."""

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Still:
    """A model that can be held still.

    Args:
        model: Any module.

    Attributes:
        precision: What it calculates in.
        compiled: Whether its blocks are compiled, or all of it where there are none.
        fused: Whether, on a GPU and where no gradient is wanted, blocks may be computed by our own kernels, as exactly
            and faster, see `vitrail.model.kernels.choose`; else the model's own code runs.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.precision: Precision = "fp32"
        self.compiled = False
        self.fused = True
        self._lock = _LOCKS.setdefault(model, threading.RLock())
        self._held = False
        self._evaluation = Evaluation(model)
        self._memory: dict[tuple[Any, ...], tuple[Tensor, Any]] | None = None
        self._remembered: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has, or one from a pickle: it takes turns of its own, and remembers no traces."""
        return vars(self) | {"_lock": None, "_held": False, "_memory": None, "_remembered": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = _LOCKS.setdefault(self.model, threading.RLock())

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
        """Whether traces are kept at the moment, see `remembering`."""
        return self._memory is not None

    @contextmanager
    def still(self) -> Iterator[None]:
        """Hold the model in evaluation mode, one thread at a time, and give it back exactly as it was."""
        with self._lock:
            if self._held:
                yield
                return
            self._held = True
            try:
                with self._surroundings(), self._evaluation.on():
                    yield
            finally:
                self._held = False

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Random state put aside (a few bytes on the host, also a GPU's), gradients possible, the precision wanted."""
        device = self.device
        random = torch.random.fork_rng([device] if device.type == "cuda" else [])
        # Out of inference mode, so that gradients are possible inside, also under no_grad.
        with random, torch.inference_mode(False), usual_device(), self.calculating():
            yield

    def calculating(self) -> AbstractContextManager[Any]:
        """The surroundings in which the model calculates at the precision wanted."""
        if self.precision == "tf32":
            return _products(fast=True)
        return nullcontext() if self.precision == "fp32" else torch.autocast(self.device.type, _DTYPES[self.precision])

    @contextmanager
    def using(
        self, precision: Precision | None, compiled: bool | None = None, fused: bool | None = None
    ) -> Iterator[None]:
        """Keep the view to oneself for a while, at another precision, blocks compiled or not, fused or not."""
        if precision not in (None, *get_args(Precision)):
            raise InputError(
                f"{option('precision')} must be one of {', '.join(get_args(Precision))}, but {precision!r} was given"
            )
        with self._lock:
            before = self.precision, self.compiled, self.fused
            self.precision = precision or self.precision
            self.compiled = self.compiled if compiled is None else compiled
            self.fused = self.fused if fused is None else fused
            try:
                yield
            finally:
                self.precision, self.compiled, self.fused = before

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Inside, the model calculates as its weights are, whatever precision is wanted around it.

        Half precision leaves no order in what is read of gradients, of squares and of small differences.
        """
        products = _products(fast=False) if self.precision == "tf32" else nullcontext()
        with self._lock, torch.autocast(self.device.type, enabled=False), products:
            before, self.precision = self.precision, "fp32"
            try:
                yield
            finally:
                self.precision = before

    @contextmanager
    def remembering(self, images: Tensor) -> Iterator[None]:
        """Inside, the same trace of these images is computed once: several targets share one forward pass.

        Args:
            images: Only they: changed copies are made anew for each target, and their traces would fill the memory.
        """
        with self._lock:
            before = self._memory, self._remembered
            self._memory, self._remembered = {} if self._memory is None else self._memory, images
            try:
                yield
            finally:
                if before[0] is not None and before[1] is not images:
                    # Those outside are still remembered; these are done with, and their traces are large.
                    for key in [key for key, (of, _) in before[0].items() if of is images]:
                        del before[0][key]
                self._memory, self._remembered = before

    def kept(self, images: Tensor, key: tuple[Any, ...], make: Callable[[], Kept]) -> Kept:
        """A pass over images with its graph, as ``make`` gives it; while they are remembered, made once for a key."""
        key = (id(images), *key)
        if self._memory is not None and key in self._memory:
            known: Kept = self._memory[key][1]
            return known
        made = make()
        if self._memory is not None and self._remembered is images:
            self._memory[key] = (images, made)  # with the images, so that their id stays theirs
        return made

    def recalled(self, images: Tensor, key: tuple[Any, ...], make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gives; while these images are remembered, made once for a key, if it is not too large."""
        if self._memory is None or self._remembered is not images:
            return make()
        key = (id(images), *key)
        if key not in self._memory:
            made = make()
            held = sum(known.nbytes for _, known in self._memory.values() if isinstance(known, Tensor))
            if held + made.nbytes > MOST_RECALLED:
                return made
            self._memory[key] = (images, made)
        found: Tensor = self._memory[key][1]
        return found


def take_turns(model: nn.Module, view: Still) -> None:
    """Let all views of a model, none of which is made yet, take turns with another model's view."""
    _LOCKS.setdefault(model, view._lock)


@contextmanager
def usual_device() -> Iterator[None]:
    """Inside, new tensors lie on the CPU where no device is named, whatever default the caller has set."""
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        yield


@contextmanager
def _products(*, fast: bool) -> Iterator[None]:
    """Whether float32 matrix products may round their factors to 10 bits (TF32), on GPUs that can."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = fast
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
