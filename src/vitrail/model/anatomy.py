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
from vitrail.model.tap import Tap
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
    """The last spatial feature map of a model without token blocks, and the order of its axes (L: row by row)."""

    module: nn.Module
    order: Literal["NCHW", "NHWC", "NLC"]
    grid: tuple[int, int]


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


def watch(model: nn.Module, image: Tensor) -> list[Visit]:
    """Run ``model`` on one image and note every submodule's call, in the order the calls began."""
    visits: list[Visit] = []
    running: list[Visit] = []
    clock = iter(range(10**9))

    def before(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            visit = Visit(name, module, next(clock), (*map(_shape_of, args[:1]), *args[1:]), kwargs)
            visits.append(visit)
            running.append(visit)

        return hook

    def after(_: nn.Module, __: tuple[Any, ...], ___: dict[str, Any], output: Any) -> None:
        visit = running.pop()
        visit.end = next(clock)
        visit.output = tuple(map(_shape_of, output)) if isinstance(output, tuple) else _shape_of(output)

    handles: list[Any] = []
    try:
        for name, module in model.named_modules():
            if name:
                handles.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
                handles.append(module.register_forward_hook(after, with_kwargs=True))
        with torch.no_grad(), _Witness(running, clock):
            model(image)
    finally:
        for handle in handles:
            handle.remove()
    return visits


def _shape_of(value: Any) -> Any:
    """A tensor without its numbers: only shapes are looked at, and a large model's activations are many."""
    return value.to("meta") if isinstance(value, Tensor) else value


def find_blocks(visits: Sequence[Visit]) -> Blocks | None:
    """The longest row of sister modules that mix all tokens by attention and keep their (batch, tokens, channels)."""
    groups: dict[tuple[str, type], list[Visit]] = {}
    for visit in visits:
        tokens, mixed = visit.args[0] if visit.args else None, visit.result
        if not (isinstance(tokens, Tensor) and isinstance(mixed, Tensor)) or tokens.ndim != 3:
            continue
        if tokens.shape != mixed.shape or not visit.attention:
            continue
        batch, count, _ = tokens.shape
        if all(shape[0] == batch and shape[-2:] == (count, count) for shape in visit.attention):
            groups.setdefault((visit.name.rpartition(".")[0], type(visit.module)), []).append(visit)
    if not groups:
        return None
    chain = max(groups.values(), key=lambda group: (len(group), -group[0].name.count(".")))
    last = chain[-1]
    entry = next(
        (
            visit.module
            for visit in visits
            if last.start < visit.start < last.end
            and isinstance(visit.result, Tensor)
            and visit.result.shape == last.args[0].shape
        ),
        last.module,
    )
    return Blocks(
        modules=tuple(visit.module for visit in chain),
        tuples=tuple(isinstance(visit.output, tuple) for visit in chain),
        attention=all(len(visit.attention) == 1 for visit in chain),
        entry=entry,
        projections=tuple(_projection(visits, block) for block in chain),
    )


def _projection(visits: Sequence[Visit], block: Visit) -> nn.Linear | None:
    """The first linear layer that runs after a block's attention."""
    for visit in visits:
        if not block.start < visit.start < block.end:
            continue
        if isinstance(visit.module, nn.MultiheadAttention):
            return visit.module.out_proj
        if visit.start > block.attended and isinstance(visit.module, nn.Linear):
            return visit.module
    return None


def find_layout(visits: Sequence[Visit], blocks: Blocks, size: tuple[int, int]) -> Layout | None:
    """The patch grid from the last convolution before the blocks; what is left over are prefix tokens."""
    calls = {id(visit.module): visit for visit in visits}
    chain = [calls[id(module)] for module in blocks.modules if id(module) in calls]
    if len(chain) != len(blocks.modules):
        return None
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


def find_features(visits: Sequence[Visit], size: tuple[int, int]) -> Features | None:
    """The last feature map that still has the picture's shape, before it is pooled."""
    attention = {shape for visit in visits for shape in visit.attention}
    for visit in sorted(visits, key=lambda visit: visit.end, reverse=True):
        x = visit.result
        if not isinstance(x, Tensor) or x.shape in attention:
            continue
        if x.ndim == 4 and _is_grid(x.shape[2], x.shape[3], size):
            return Features(visit.module, "NCHW", (x.shape[2], x.shape[3]))
        if x.ndim == 4 and _is_grid(x.shape[1], x.shape[2], size):
            return Features(visit.module, "NHWC", (x.shape[1], x.shape[2]))
        if x.ndim == 3:
            rows = round(math.sqrt(x.shape[1] * size[0] / size[1]))
            columns = x.shape[1] // max(rows, 1)
            if rows * columns == x.shape[1] and _is_grid(rows, columns, size):
                return Features(visit.module, "NLC", (rows, columns))
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

    Only the instances' ``forward`` is covered, and uncovered again whatever happens inside.
    """

    def passing(i: int) -> Callable[..., Any]:
        def forward(tokens: Tensor, *_: Any, **__: Any) -> Any:
            tokens = entering(tokens) if i == 0 else tokens
            return (tokens,) if blocks.tuples[i] else tokens

        return forward

    own = [vars(module).get("forward") for module in blocks.modules]
    try:
        for i, module in enumerate(blocks.modules):
            vars(module)["forward"] = passing(i)
        yield
    finally:
        for module, forward in zip(blocks.modules, own):
            vars(module).pop("forward", None)
            if forward is not None:
                vars(module)["forward"] = forward


@contextmanager
def caught(module: nn.Module | None, outputs: list[Tensor]) -> Iterator[None]:
    """Keep the outputs of one module while it runs."""
    if module is None:
        yield
        return
    handle = module.register_forward_hook(lambda _, __, output: outputs.append(first_of(output)))
    try:
        yield
    finally:
        handle.remove()
