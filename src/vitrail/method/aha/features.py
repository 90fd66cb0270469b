"""What an explainer sees of a picture: feature maps of a frozen model at up to four scales, and its logits."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.model import View, full

SCALES = 4
"""At most so many feature maps are read, as in the paper."""

APART = 1.5
"""Two maps are at different scales when one has so many times more rows."""

PASSED_BY = (nn.Dropout, nn.Identity, nn.Softmax)
"""They may answer (batch, heads, tokens, tokens) attention, which looks like a feature map; features pass elsewhere."""


Order = Literal["NCHW", "NHWC", "NLC"]
"""Of a feature map's axes; L is row by row."""


class Place(NamedTuple):
    """Where a feature map is read: a module's ``call``-th answer, and the order of its axes."""

    module: nn.Module
    call: int
    order: Order


_PLACES: WeakKeyDictionary[View, tuple[Place, ...]] = WeakKeyDictionary()


def look(view: View, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One forward pass without gradients: (B, classes) logits, and (B, C, rows, columns) features, finest first.

    A transformer gives the patch tokens behind the blocks at a quarter, half, three quarters and the end of its depth;
    any other model the last answer at each of its four coarsest resolutions. Every place is normalised over its
    channels, because the scales of a model's layers lie orders of magnitude apart.
    """
    with view.still(), torch.no_grad():
        if view.blocks is not None:
            # A trace, because a view that remembers makes it once for several classes or methods.
            trace = view.trace(images, start=view.depth)
            layout = view.layout((images.shape[-2], images.shape[-1]))
            states = [trace.states[behind] for behind in depths(view.depth)]
            found = [view.patch_map(_even(state).transpose(1, 2), layout) for state in states]
            return trace.logits.detach(), found
        places = places_of(view)
        with _caught([place.module for place in places]) as answers:
            logits = view.logits(images)
        size = (images.shape[-2], images.shape[-1])
        return logits, [_read(answers[place.module][place.call], place.order, size) for place in places]


def depths(blocks: int) -> list[int]:
    """Behind how many blocks the tokens are read; fewer than four on a model of fewer blocks."""
    return sorted({math.ceil(blocks * part / SCALES) for part in range(1, SCALES + 1)})


def places_of(view: View) -> tuple[Place, ...]:
    """Where the feature maps of a model without token blocks are read, finest first; found by watching it run once."""
    if view not in _PLACES:
        _PLACES[view] = _find(view)
    return _PLACES[view]


def _find(view: View) -> tuple[Place, ...]:
    # Two pictures, so that windows of one picture are not taken for a batch.
    images = torch.zeros(2, 3, *view.size, device=view.device, dtype=view.dtype)
    modules = [module for module in view.model.modules() if not isinstance(module, PASSED_BY)]
    last: dict[int, Place] = {}  # by rows; a later answer replaces an earlier one
    calls: dict[nn.Module, int] = {}

    def note(module: nn.Module, _: Any, output: Any) -> None:
        call = calls[module] = calls.get(module, -1) + 1
        answer = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(answer, Tensor) or len(answer) != len(images):
            return
        seen = _order(answer.shape, view.size)
        if seen is not None:
            last[seen[1]] = Place(module, call, seen[0])

    handles = [module.register_forward_hook(note) for module in modules]
    try:
        with view.still(), torch.no_grad():
            view.model(images)
    finally:
        for handle in handles:
            handle.remove()
    chosen: list[Place] = []
    finest = 0.0
    for rows in sorted(last):
        if rows >= finest * APART and len(chosen) < SCALES:
            chosen.append(last[rows])
            finest = rows
    return tuple(reversed(chosen))


def _order(shape: Sequence[int], size: tuple[int, int]) -> tuple[Order, int] | None:
    """The order of axes in which an answer has the picture's shape, and its rows; None if there is none."""
    if len(shape) == 4 and _is_shrunk(shape[2], shape[3], size):
        return "NCHW", shape[2]
    if len(shape) == 4 and _is_shrunk(shape[1], shape[2], size):
        return "NHWC", shape[1]
    if len(shape) == 3:
        rows, columns = _rows_and_columns(shape[1], size)
        if rows * columns == shape[1] and _is_shrunk(rows, columns, size):
            return "NLC", rows
    return None


def _rows_and_columns(places: int, size: tuple[int, int]) -> tuple[int, int]:
    rows = max(1, round(math.sqrt(places * size[0] / size[1])))
    return rows, places // rows


def _is_shrunk(rows: int, columns: int, size: tuple[int, int]) -> bool:
    """Whether the picture, made smaller by one stride of 2 or more, has so many rows and columns, give or take one."""
    if min(rows, columns) < 2:
        return False
    stride = math.sqrt(size[0] * size[1] / (rows * columns))
    return stride > 1.5 and abs(size[0] / stride - rows) < 1 and abs(size[1] / stride - columns) < 1


@contextmanager
def _caught(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """Keep all answers of some modules while they run."""
    answers: dict[nn.Module, list[Tensor]] = {module: [] for module in modules}

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        answers[module].append(output[0] if isinstance(output, tuple) else output)

    handles = [module.register_forward_hook(keep) for module in answers]
    try:
        yield answers
    finally:
        for handle in handles:
            handle.remove()


def _read(answer: Tensor, order: Order, size: tuple[int, int]) -> Tensor:
    """(B, C, rows, columns) of an answer in any order, even over its channels."""
    if order == "NCHW":
        answer = answer.permute(0, 2, 3, 1)
    elif order == "NLC":
        answer = answer.unflatten(1, _rows_and_columns(answer.shape[1], size))
    return _even(answer).permute(0, 3, 1, 2)


def _even(channels_last: Tensor) -> Tensor:
    """The last axis brought to mean 0 and variance 1, in float32 at least."""
    return F.layer_norm(full(channels_last), channels_last.shape[-1:])
