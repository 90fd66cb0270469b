"""What AHA learns from: soft deletion and insertion over the regions of a grid, and a wish for smooth maps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError
from vitrail.method.aha.sinkhorn import ITERATIONS, hard_top, soft_top
from vitrail.method.batch import COPIES_ON_CPU, COPIES_ON_GPU
from vitrail.model import in_parts

Ask = Callable[[Tensor, Tensor], Tensor]
"""(M, 3, H, W) pictures and (M,) the numbers of the images they were made of -> (M,) probabilities of the class."""


@dataclass(frozen=True)
class Grid:
    """A picture cut into regions by straight lines, so that pooling is a product with two small matrices.

    Attributes:
        rows: Where rows of cells begin and end, in pixels: 0, ..., H.
        columns: Where columns do: 0, ..., W.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        for lines in (self.rows, self.columns):
            if len(lines) < 2 or lines[0] != 0 or any(a >= b for a, b in pairwise(lines)):
                raise InputError(f"the lines of a grid must rise from 0 to the size of the picture, not {lines}")

    @classmethod
    def regular(cls, size: tuple[int, int], cells: int) -> Self:
        """``cells`` rows and columns, as equal as whole pixels allow.

        Example:
            >>> Grid.regular((8, 6), 3)
            Grid(rows=(0, 3, 5, 8), columns=(0, 2, 4, 6))
        """
        _check_cells(size, cells, cells, least=1)
        return cls(*(_lines(side, cells) for side in size))

    @classmethod
    def drawn(cls, size: tuple[int, int], fewest: int, most: int, generator: torch.Generator) -> Self:
        """Between ``fewest`` and ``most`` rows and as many columns, moved by up to half a cell each way.

        The cells at a border are half to one and a half cells wide: a narrower one would have joined its neighbour. So
        there are always as many cells as in the regular grid, and none has less than a quarter of the full area.
        """
        _check_cells(size, fewest, most, least=2)
        cells = int(torch.randint(fewest, most + 1, (), generator=generator, device=generator.device))
        moved = (torch.rand(2, generator=generator, device=generator.device, dtype=torch.float64) - 0.5).tolist()
        return cls(*(_lines(side, cells, shift) for side, shift in zip(size, moved)))

    @property
    def size(self) -> tuple[int, int]:
        """H, W: that of the picture."""
        return self.rows[-1], self.columns[-1]

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns of cells there are."""
        return len(self.rows) - 1, len(self.columns) - 1

    @property
    def count(self) -> int:
        """K: how many cells there are."""
        return math.prod(self.shape)

    def pool(self, maps: Tensor) -> Tensor:
        """(B, H, W) -> (B, K): the mean over each cell."""
        if maps.ndim != 3 or maps.shape[1:] != self.size:
            raise InputError(f"a grid for pictures of {self.size} cannot pool maps of shape {tuple(maps.shape)}")
        with torch.autocast(maps.device.type, enabled=False):
            exact = maps if maps.dtype == torch.float64 else maps.float()
            rows, columns = (_members(lines, exact) for lines in (self.rows, self.columns))
            means = (rows / rows.sum(1, keepdim=True)) @ exact @ (columns / columns.sum(1, keepdim=True)).T
        return means.flatten(1)

    def spread(self, masks: Tensor) -> Tensor:
        """(..., K) -> (..., H, W): every pixel has the value of its cell."""
        with torch.autocast(masks.device.type, enabled=False):
            rows, columns = (_members(lines, masks) for lines in (self.rows, self.columns))
            found: Tensor = rows.T @ (masks.unflatten(-1, self.shape) @ columns)
        return found


class Losses(NamedTuple):
    """One number for each image, (B,): what is minimised, and the parts it is made of."""

    total: Tensor
    deletion: Tensor
    insertion: Tensor
    regulariser: Tensor


@dataclass(frozen=True)
class Objective:
    """The loss of AHA, equation 11 and the regulariser.

    A curve is the mean of its answers over counts k = 1, ..., K, as in the paper: no trapezoids, and no k = 0.

    Attributes:
        deletion: Weight of the answers to pictures whose best regions are hidden.
        insertion: Weight of the answers to pictures of which only the best regions are shown, which are to be high.
        regularise: Weight of the mean squared difference between a map and its local average.
        steps: Points of each curve.
        kernel: Pixels of the local average, each way. It is taken over those inside the picture, so that a constant map
            costs nothing. The paper does not say how many.
        iterations: The most turns of Sinkhorn's algorithm.
    """

    deletion: float = 1.0
    insertion: float = 1.0
    regularise: float = 2.5e-3
    steps: int = 16
    kernel: int = 11
    iterations: int = ITERATIONS

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"AHA needs steps to be 1 or more, but steps={self.steps} was given")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InputError(f"AHA needs an odd kernel, but kernel={self.kernel} was given")

    def counts(self, regions: int, generator: torch.Generator | None = None) -> Tensor:
        """(S,) numbers of regions, one in each of S equal parts of 1, ..., K: ceil((s - u) K / S) for s = 1, ..., S.

        With u drawn from (0, 1), the mean over them is on average that over all K. Without a generator u is 1/2.

        Example:
            >>> Objective(steps=4).counts(16).tolist()
            [2, 6, 10, 14]
        """
        place = 0.5
        if generator is not None:
            place = float(torch.rand((), generator=generator, device=generator.device, dtype=torch.float64))
        steps = torch.arange(1, self.steps + 1, dtype=torch.float64)
        return ((steps - place) * regions / self.steps).ceil().long().clamp(1, regions)

    def loss(
        self,
        ask: Ask,
        images: Tensor,
        references: Tensor,
        maps: Tensor,
        grid: Grid,
        temperature: float,
        *,
        noise: float = 0.0,
        generator: torch.Generator | None = None,
        seeds: Sequence[int] | None = None,
        counts: Tensor | None = None,
        at_once: int | None = None,
    ) -> Losses:
        """The losses of maps, to be averaged by whoever calls: each image's are its own.

        Gradients reach the maps and nothing else. Those of the model's answers are taken part by part as the answers
        come, so ``at_once`` bounds the memory of the whole. Each answer must depend on its own picture alone, as that
        of a model in evaluation mode does.

        Args:
            ask: The model's answers.
            images: (B, 3, H, W).
            references: (B, 3, H, W) what stands where an image is hidden.
            maps: (B, H, W) in [0, 1].
            grid: The regions that are ranked.
            temperature: That of the soft ranking.
            noise: Gumbel noise in the ranking.
            generator: For the counts and the noise. None: evenly spaced counts, and noise from torch's own state.
            seeds: One an image for the noise, which then does not depend on who else is in the batch.
            counts: (S,) given, they are not drawn.
            at_once: The most pictures asked about in one call, half as many where memory runs out; all 2 S B by
                default.
        """
        _check_pictures(images, references, maps)
        if counts is None:
            counts = self.counts(grid.count, generator)
        soft = partial(soft_top, noise=noise, iterations=self.iterations, generator=generator, seeds=seeds)
        masks = soft(grid.pool(maps), counts, temperature)
        deletion, insertion = _curves(ask, images, references, masks, grid, at_once).mean(2).T
        regulariser = self.regulariser(maps)
        total = self.deletion * deletion - self.insertion * insertion + self.regularise * regulariser
        return Losses(total, deletion, insertion, regulariser)

    def regulariser(self, maps: Tensor) -> Tensor:
        """(B, H, W) -> (B,): the mean squared difference between a map and its average over kernel x kernel pixels."""
        average = partial(F.avg_pool2d, stride=1, padding=self.kernel // 2, count_include_pad=False)
        return (maps - average(maps[:, None], self.kernel).squeeze(1)).square().mean((1, 2))

    @staticmethod
    @torch.no_grad()
    def hard(
        ask: Ask,
        images: Tensor,
        references: Tensor,
        maps: Tensor,
        grid: Grid,
        counts: Tensor,
        *,
        at_once: int | None = None,
    ) -> Tensor:
        """(B, 2, S) answers of deletion and insertion with regions wholly hidden or shown: what soft ones stand for."""
        _check_pictures(images, references, maps)
        return _curves(ask, images, references, hard_top(grid.pool(maps), counts), grid, at_once)


def at_once(device: torch.device) -> int:
    """How many pictures go through the target together, forward and back."""
    return COPIES_ON_CPU if device.type == "cpu" else COPIES_ON_GPU


def _curves(ask: Ask, images: Tensor, references: Tensor, masks: Tensor, grid: Grid, at_once: int | None) -> Tensor:
    """(B, S, K) masks of the best regions -> (B, 2, S) the answers with these hidden, and with all others hidden."""
    if at_once is not None and at_once < 1:
        raise InputError(f"AHA needs at_once to be 1 or more, but {at_once} was given")
    hidden = torch.cat([masks, 1 - masks], 1).to(images.dtype)
    which = torch.arange(len(images), device=images.device).repeat_interleave(hidden.shape[1])
    hidden = hidden.flatten(0, 1)
    parts = in_parts(
        len(which),
        at_once or len(which),
        lambda part: _answers(ask, images, references, grid, hidden[part], which[part]),
    )
    return torch.cat([answers for _, answers in parts]).view(len(images), 2, -1)


def _answers(ask: Ask, images: Tensor, references: Tensor, grid: Grid, hidden: Tensor, which: Tensor) -> Tensor:
    """(M, K) how far the regions are hidden, in the images ``which`` -> (M,) answers.

    Their slopes are taken here and now: (M, K) numbers, after which the model's activations may go.
    """
    leaf = hidden.detach().requires_grad_(hidden.requires_grad and torch.is_grad_enabled())
    answers = ask(torch.lerp(images[which], references[which], grid.spread(leaf)[:, None]), which)
    if answers.shape != which.shape:
        raise InputError(f"{len(which)} pictures need as many answers, but they came in shape {tuple(answers.shape)}")
    if not leaf.requires_grad:
        return answers.detach()
    if not answers.requires_grad:
        raise InputError("the answers have no gradient: ask the model without torch.no_grad or inference mode")
    (slopes,) = torch.autograd.grad(answers.sum(), leaf)
    return answers.detach() + ((hidden - leaf.detach()) * slopes).sum(
        1
    )  # the value of the one, the gradient of the other


def _lines(side: int, cells: int, shift: float = 0.0) -> tuple[int, ...]:
    """Where ``cells`` equal parts of a side begin and end, all inner lines moved by ``shift`` of a part."""
    inner = (math.floor((i + shift) * side / cells + 0.5) for i in range(1, cells))
    return 0, *inner, side


def _members(lines: Sequence[int], like: Tensor) -> Tensor:
    """(G, H): 1 where a pixel lies between a line and the next."""
    edges = torch.tensor(lines, device=like.device)
    pixels = torch.arange(lines[-1], device=like.device)
    return ((edges[:-1, None] <= pixels) & (pixels < edges[1:, None])).to(like.dtype)


def _check_cells(size: tuple[int, int], fewest: int, most: int, least: int) -> None:
    """Refuse cells of fewer than ``least`` pixels."""
    if not 1 <= fewest <= most <= min(size) // least:
        raise InputError(f"a picture of {size} can have 1 to {min(size) // least} cells a side, not {fewest} to {most}")


def _check_pictures(images: Tensor, references: Tensor, maps: Tensor) -> None:
    if images.ndim != 4 or references.shape != images.shape or maps.shape != (len(images), *images.shape[2:]):
        given = ", ".join(str(tuple(one.shape)) for one in (images, references, maps))
        raise InputError(
            f"images and references need one shape (B, 3, H, W) and maps (B, H, W), but {given} were given"
        )
