"""Find out how a classifier is built by watching it run once: its blocks, its patch grid, what its head reads.

Nothing is looked up by layer name, so the same code serves timm, torchvision, Hugging Face, open_clip and home-made
models. What is found is checked by running the parts one after another and comparing with the model itself.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.model.anatomy.flat import own
from vitrail.model.anatomy.hooks import Hooks, covered
from vitrail.model.rules.tap import Tap
from vitrail.model.trace import first_of

MOST_PREFIX_TOKENS = 64
"""More tokens than this before the patches means that the grid was misread."""


@dataclass
class Visit:
    """One call of one submodule during the watched run."""

    name: str
    module: nn.Module
    start: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    end: int = -1
    output: Any = None
    attention: list[torch.Size] = field(default_factory=list)
    attended: int = -1  # the moment of its last attention call

    @property
    def result(self) -> Any:
        """The output tensor (the first one where a block returns a tuple)."""
        return self.output[0] if isinstance(self.output, tuple) and self.output else self.output


@dataclass(frozen=True)
class Readout:
    """Which of the last block's tokens the head reads: prefix tokens, the mean over patches, or an attention pool."""

    prefix: tuple[int, ...]
    patches: bool
    attention: bool


@dataclass(frozen=True)
class Blocks:
    """A plain chain of transformer blocks over (batch, tokens, channels).

    Attributes:
        modules: The blocks, first to last.
        tuples: Whether each block returns a tuple, as some Hugging Face models' do.
        attention: Whether every block shows attention between all its tokens.
        entry: The first normalisation of the last block, where Grad-CAM is usually read on a ViT.
        projections: Each block's linear layer behind the attention, which mixes the heads' values; None if not found.
    """

    modules: tuple[nn.Module, ...]
    tuples: tuple[bool, ...]
    attention: bool
    entry: nn.Module
    projections: tuple[nn.Linear | None, ...]


@dataclass(frozen=True)
class Layout:
    """The token sequence at one input size: prefix tokens first, then the grid row by row.

    Attributes:
        size: Input height and width in pixels.
        grid: Rows and columns of patches.
        prefix: Tokens before the patches (class token, distillation token, registers).
        extras: What each block is given besides its tokens (rotary embeddings, position biases).
    """

    size: tuple[int, int]
    grid: tuple[int, int]
    prefix: int
    extras: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]

    @property
    def patches(self) -> int:
        """The number of patch tokens."""
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        """The number of tokens, prefix included."""
        return self.prefix + self.patches


@dataclass(frozen=True)
class Features:
    """The last spatial feature map of a model without token blocks, and the order of its axes (L: row by row).

    Attributes:
        module: Whose answer it is.
        order: Of the axes.
        grid: Rows and columns.
        prefix: Tokens before the grid, in the order NLC.
    """

    module: nn.Module
    order: Literal["NCHW", "NHWC", "NLC"]
    grid: tuple[int, int]
    prefix: int = 0


class _Witness(Tap):
    """Tells every running visit the shape of each attention call, and keeps nothing."""

    def __init__(self, running: list[Visit], clock: Iterator[int]) -> None:
        super().__init__(read=True)
        self.running = running
        self.clock = clock

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except InputError:  # attention that a tap cannot read is passed by: other methods do not need it
            return func(*args, **(kwargs or {}))

    def keep(self, probabilities: Tensor) -> Tensor:
        now = next(self.clock)
        for visit in self.running:
            visit.attention.append(probabilities.shape)
            visit.attended = now
        return probabilities

    def merge(self, mixed: Tensor) -> None:
        for visit in self.running:
            visit.attention[-2:] = [mixed.shape]


def watch(model: nn.Module, image: Tensor) -> list[Visit]:
    """Run ``model`` on one image and note every submodule's call, in the order the calls began."""
    visits: list[Visit] = []
    running: list[Visit] = []
    clock = iter(range(10**9))

    def entering(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            visit = Visit(name, module, next(clock), (*map(_shape_of, args[:1]), *args[1:]), kwargs)
            visits.append(visit)
            running.append(visit)

        return hook

    def left(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        visit = running.pop()
        visit.end = next(clock)
        visit.output = tuple(map(_shape_of, output)) if isinstance(output, tuple) else _shape_of(output)

    with Hooks() as hooks:
        for name, module in model.named_modules():
            if name:
                hooks.before(module, entering(name), named=True)
                hooks.behind(module, left)
        with torch.no_grad(), _Witness(running, clock):
            model(image)
    return visits


def _shape_of(value: Any) -> Any:
    """A tensor without its numbers: only shapes are looked at, and a large model's activations are many."""
    return value.to("meta") if isinstance(value, Tensor) else value


def find_layout(visits: Sequence[Visit], blocks: Blocks, size: tuple[int, int]) -> Layout | None:
    """The patch grid from the last convolution before the blocks; what is left over are prefix tokens."""
    calls = {id(visit.module): visit for visit in visits}
    chain = [calls[id(own(module))] for module in blocks.modules if id(own(module)) in calls]
    if len(chain) != len(blocks.modules):
        return None
    if chain[0].args[0].ndim == 4:
        rows, columns = grid = (chain[0].args[0].shape[1], chain[0].args[0].shape[2])
        at_grid = tuple((visit.args[1:], {**visit.kwargs, "grid": grid}) for visit in chain)
        return Layout(size, grid, 0, at_grid) if _is_grid(rows, columns, size) else None
    count = chain[0].args[0].shape[1]
    extras = tuple((visit.args[1:], visit.kwargs) for visit in chain)
    for visit in reversed(visits):
        if visit.end < 0 or visit.end > chain[0].start or not isinstance(visit.module, nn.Conv2d):
            continue
        rows, columns = visit.result.shape[-2:]
        if 0 <= count - rows * columns <= MOST_PREFIX_TOKENS:
            return Layout(size, (rows, columns), count - rows * columns, extras)
    # No convolution made the patches (unfold and a linear layer): the fewest prefix tokens that leave a whole grid.
    for prefix in range(min(MOST_PREFIX_TOKENS, count - 4) + 1):
        rows = round(math.sqrt((count - prefix) * size[0] / size[1]))
        columns = (count - prefix) // max(rows, 1)
        if rows * columns == count - prefix and rows * size[1] == columns * size[0]:
            return Layout(size, (rows, columns), prefix, extras)
    return None


def find_features(visits: Sequence[Visit], size: tuple[int, int]) -> Iterator[Features]:
    """Feature maps of the picture's shape, the last one before it is pooled first; each is still to be tried."""
    attention = {shape for visit in visits for shape in visit.attention}
    # Grids seen along the way tell tokens behind a class token from others.
    grids = {tuple(x.shape[2:]) for visit in visits if isinstance(x := visit.result, Tensor) and x.ndim == 4}
    seen: set[int] = set()
    for visit in sorted(visits, key=lambda visit: visit.end, reverse=True):
        x = visit.result
        if not isinstance(x, Tensor) or x.shape in attention or x.shape[0] != 1 or id(visit.module) in seen:
            continue
        seen.add(id(visit.module))  # a module called several times shows its last answer
        found = _as_map(x, size, grids)
        if found is not None:
            yield Features(visit.module, *found)


def features_at(visits: Sequence[Visit], size: tuple[int, int], known: Features) -> Features | None:
    """The same module's feature map at another input size."""
    for found in find_features(visits, size):
        if found.module is known.module and (found.order, found.prefix) == (known.order, known.prefix):
            return found
    return None


def _as_map(
    x: Tensor, size: tuple[int, int], grids: set[tuple[int, ...]]
) -> tuple[Literal["NCHW", "NHWC", "NLC"], tuple[int, int], int] | None:
    """The order of a map's axes, its grid and the tokens before it; None where it is no map of the picture."""
    if x.ndim == 4 and _is_grid(x.shape[2], x.shape[3], size):
        return "NCHW", (x.shape[2], x.shape[3]), 0
    if x.ndim == 4 and _is_grid(x.shape[1], x.shape[2], size):
        return "NHWC", (x.shape[1], x.shape[2]), 0
    if x.ndim != 3:
        return None
    rows = round(math.sqrt(x.shape[1] * size[0] / size[1]))
    columns = x.shape[1] // max(rows, 1)
    if rows * columns == x.shape[1] and _is_grid(rows, columns, size):
        return "NLC", (rows, columns), 0
    for prefix in (1, 2):  # a class token, one more for distillation
        for grid in grids:
            if grid[0] * grid[1] == x.shape[1] - prefix and _is_grid(grid[0], grid[1], size):
                return "NLC", (grid[0], grid[1]), prefix
    return None


def _is_grid(rows: int, columns: int, size: tuple[int, int]) -> bool:
    """Whether one stride, rounded up or down, makes rows x columns out of a picture of ``size``."""
    if min(rows, columns) < 2 or rows > size[0] or columns > size[1]:
        return False
    shortest = max(size[0] / (rows + 1), size[1] / (columns + 1))
    longest = min(size[0] / (rows - 1), size[1] / (columns - 1))
    return shortest < longest


@contextmanager
def bypassed(blocks: Blocks, entering: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let the model run without its blocks: ``entering`` gets the first block's input, its answer leaves the last.

    In this thread alone; see `covered`.
    """

    def passing(i: int) -> Callable[..., Any]:
        def forward(tokens: Tensor, *_: Any, **__: Any) -> Any:
            if i == 0:
                grid = tokens.shape[1:3]
                tokens = entering(tokens.flatten(1, 2)).unflatten(1, grid) if tokens.ndim == 4 else entering(tokens)
            return (tokens,) if blocks.tuples[i] else tokens

        return forward

    with covered({own(module): passing(i) for i, module in enumerate(blocks.modules)}):
        yield


@contextmanager
def caught(module: nn.Module | None, outputs: list[Tensor]) -> Iterator[None]:
    """Keep the outputs of one module while it runs."""
    if module is None:
        yield
        return
    with Hooks() as hooks:
        hooks.behind(module, lambda _, __, output: outputs.append(first_of(output)))
        yield
