"""What an explainer sees of a picture: feature maps of a frozen model at up to four scales, and their evidence."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.model import FROZEN, TRUE, Hooks, View, full

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


class Sight:
    """What was seen of a batch in one forward pass.

    Args:
        view: The model that looked.
        logits: (B, classes); with a graph behind them, `features` tells the evidence.
        places: Features, finest first, as the model has them.
        between: More of them, of which only the evidence counts.
        last: Brings the features at a place to (B, ..., C).
        maps: Brings (B, ..., C) to (B, C, rows, columns).

    Attributes:
        logits: (B, classes), without a graph.
    """

    def __init__(
        self,
        view: View,
        logits: Tensor,
        places: Sequence[Tensor],
        between: Sequence[Tensor],
        last: Callable[[Tensor, int], Tensor],
        maps: Callable[[Tensor], Tensor],
    ) -> None:
        self.logits = logits.detach()
        self._view, self._answers, self._last, self._maps = view, logits, last, maps
        self._places, self._between = list(places), list(between)

    def features(self, classes: Tensor) -> list[Tensor]:
        """(B, C, rows, columns) for every place, finest first; asked once, because the graph goes with the answer.

        Features are normalised over their channels, because the scales of a model's layers lie orders of magnitude
        apart. With evidence there follow, for every place but the finest, the products of features and gradients and
        their sum, and for all places that sum for each block in between. At the last place gradients are averaged over
        the picture: there only the class token may have one, but what the head would see in a patch counts.

        Args:
            classes: (B,) the class of each picture.
        """
        found = [[self._maps(_even(self._last(place.detach(), i)))] for i, place in enumerate(self._places)]
        if self._answers.requires_grad:
            first = next(i for i, place in enumerate(self._places) if place.requires_grad)
            products, between = self._products(classes, first)
            sums = [_level(self._maps(product.sum(-1, keepdim=True))) for product in [*products, *between]]
            for place, product, own in zip(found[first:], products, sums):
                place += [_level(self._maps(product)), own]
            for place in found:
                place += sums[len(products) :]
        return [torch.cat(parts, 1) for parts in found]

    def _products(self, classes: Tensor, first: int) -> tuple[list[Tensor], list[Tensor]]:
        """(B, ..., C) features times gradients, at the places from ``first`` on, and at those between."""
        asked = [*self._places[first:], *self._between]
        with torch.enable_grad():
            scores = self._answers.gather(1, classes.to(self._answers.device)[:, None])[:, 0]
            slopes = self._view.gradient(scores, asked)
        count = len(self._places) - first
        numbers = [*range(first, len(self._places)), *(-1 for _ in self._between)]
        x, slope = ([self._last(full(one.detach()), i) for one, i in zip(these, numbers)] for these in (asked, slopes))
        slope[count - 1] = slope[count - 1].mean(tuple(range(1, slope[count - 1].ndim - 1)), keepdim=True)
        products = [one * other for one, other in zip(x, slope)]
        return products[:count], products[count:]


def look(view: View, images: Tensor, *, evidence: bool = False) -> Sight:
    """One forward pass, and what was seen on the way.

    A transformer shows the patch tokens behind the blocks at a quarter, half, three quarters and the end of its depth;
    any other model the last answer at each of its four coarsest resolutions.

    Args:
        view: The model that looks.
        images: (B, 3, H, W) inputs of it.
        evidence: Keep the graph from the second place on, so that `Sight.features` can tell what speaks for a class: on
            a transformer with attention, normalisers and gates held constant, as DecompX has it. Its own gradient would
            not do: a token's size does not matter to a normaliser, so at the last block nothing would speak for any.
    """
    size = (images.shape[-2], images.shape[-1])
    if view.blocks is None:
        places = places_of(view)
        first = next(iter(places[1:] or places), None) if evidence else None
        with view.still(), torch.set_grad_enabled(first is not None), _caught(places, first) as answers:
            logits = view.logits(images)
        return Sight(
            view,
            logits,
            [answers[place] for place in places],
            [],
            lambda x, i: _channels_last(x, places[i].order, size),
            lambda x: x.permute(0, 3, 1, 2),
        )
    read = depths(view.depth)
    start = read[min(1, len(read) - 1)] if evidence else view.depth
    # A trace, because a view that remembers makes it once for several classes or methods.
    trace = view.trace(images, rule=FROZEN if evidence else TRUE, start=start)
    layout = view.layout(size)
    return Sight(
        view,
        trace.logits if evidence else trace.logits.detach(),
        [trace.states[behind] for behind in read],
        trace.states[start:-1],
        lambda x, _: x,
        lambda x: view.patch_map(x.transpose(1, 2), layout),
    )


def depths(blocks: int) -> list[int]:
    """Behind how many blocks the tokens are read; fewer than four on a model of fewer blocks."""
    return sorted({math.ceil(blocks * part / SCALES) for part in range(1, SCALES + 1)})


def places_of(view: View) -> tuple[Place, ...]:
    """Where the feature maps of a model without token blocks are read, finest first; found by watching it run once."""
    return view.memo.once("method/aha/features: places", (), lambda: _find(view))


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

    with Hooks() as hooks, view.still(), torch.no_grad():
        for module in modules:
            hooks.behind(module, note)
        view.model(images)
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
def _caught(places: Sequence[Place], first: Place | None) -> Iterator[dict[Place, Tensor]]:
    """Keep the answers at some places while a model runs; the graph begins at the ``first`` of them."""
    answers: dict[Place, Tensor] = {}
    calls: dict[nn.Module, int] = {}

    def keep(module: nn.Module, _: Any, output: Any) -> Any:
        call = calls[module] = calls.get(module, -1) + 1
        place = next((one for one in places if one.module is module and one.call == call), None)
        if place is None:
            return None
        answer = output[0] if isinstance(output, tuple) else output
        if place == first:
            answer = answer.detach().requires_grad_()
        answers[place] = answer
        if place != first:
            return None
        passed = answer.clone()  # what follows may work in place, which a leaf of the graph does not bear
        return (passed, *output[1:]) if isinstance(output, tuple) else passed

    with Hooks() as hooks:
        for module in {place.module for place in places}:
            hooks.behind(module, keep)
        yield answers


def _channels_last(answer: Tensor, order: Order, size: tuple[int, int]) -> Tensor:
    """(B, rows, columns, C) of an answer in any order."""
    if order == "NCHW":
        return answer.permute(0, 2, 3, 1)
    return answer.unflatten(1, _rows_and_columns(answer.shape[1], size)) if order == "NLC" else answer


def _even(channels_last: Tensor) -> Tensor:
    """The last axis brought to mean 0 and variance 1, in float32 at least."""
    return F.layer_norm(full(channels_last), channels_last.shape[-1:])


def _level(evidence: Tensor) -> Tensor:
    """(B, ...) with a mean square of 1 for every picture; small stays small beside large. All zeros stay so."""
    inner = tuple(range(1, evidence.ndim))
    return evidence / evidence.square().mean(inner, keepdim=True).sqrt().clamp_min(1e-20)
