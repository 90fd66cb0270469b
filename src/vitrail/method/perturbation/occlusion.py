"""A window that slides over the picture: what is lost when it is hidden, and what is left when only it is shown."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import number
from vitrail.method.base import MAP, SharedPasses, State, register
from vitrail.method.batch import Batch, clean_logits
from vitrail.method.cells import asking, filled
from vitrail.model import View
from vitrail.perturb import Baseline, PixelCanvas, Score, ZeroNorm


class Sliding(SharedPasses):
    """One value for each place of a window; a pixel gets the mean over the windows that cover it.

    The last window of a row or column ends at the border, cut where it does not fit.
    """

    window: int
    stride: int
    baseline: Baseline
    score: Score

    pixels = True

    def __post_init__(self) -> None:
        if self.stride > self.window:
            raise InputError(
                f"{self.id} would leave gaps between its windows: stride={self.stride} is more than "
                f"window={self.window}"
            )

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(math.prod(len(windows(length, self.window, self.stride)) for length in size) + 1)

    @abstractmethod
    def shown(self, inside: Tensor) -> Tensor:
        """(M, pixels) the pixels inside each window -> those that are shown."""

    @abstractmethod
    def values(self, scores: Tensor, clean: Tensor) -> Tensor:
        """Scores of windows, and those of the whole images -> what the windows are worth; (B, windows, targets)."""

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        batch = batches[0]
        if self.window > min(batch.size):
            raise InputError(
                f"{self.id}'s window of {self.window} pixels does not fit images of "
                f"{batch.size[0]} x {batch.size[1]} pixels"
            )
        fill = filled(view, batches, self.baseline)
        ask = asking(PixelCanvas(view, batch.images, [fill]), batches, self.score)
        down, right = (windows(length, self.window, self.stride).to(view.device) for length in batch.size)
        which = torch.arange(len(batch), device=view.device)
        place = torch.arange(len(down) * len(right), device=view.device).repeat(len(batch))

        def shown(part: slice) -> Tensor:
            rows, columns = down[place[part] // len(right)], right[place[part] % len(right)]
            return self.shown((rows[:, :, None] & columns[:, None, :]).flatten(1))

        scores = ask(which.repeat_interleave(len(down) * len(right)), shown).view(len(batch), -1, len(batches))
        values = self.values(scores, ask.read(clean_logits(batch), which)[:, None])
        grid = (len(down), len(right))
        return [{MAP: spread(own.reshape(-1, *grid), down, right)} for own in values.unbind(2)]


def windows(length: int, window: int, stride: int) -> Tensor:
    """(places, length): the pixels of one side that lie inside the window at each of its places.

    Example:
        >>> windows(5, 3, 2).int().tolist()
        [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]]
    """
    starts = torch.arange(1 + math.ceil(max(0, length - window) / stride))[:, None] * stride
    pixels = torch.arange(length)
    return (pixels >= starts) & (pixels < starts + window)


def spread(values: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """(B, R, C) values of windows -> (B, H, W): the mean of those that cover a pixel."""
    rows, columns = down.double(), right.double()  # double: half precision, where asked for, is not for sums
    cover = rows.sum(0)[:, None] * columns.sum(0)
    return (rows.T @ values.double() @ columns / cover).to(values.dtype)


@register("occlusion", paper="Zeiler and Fergus 2014", cost="1 forward a window", needs=())
@dataclass(frozen=True)
class Occlusion(Sliding):
    """What the score loses when a window is hidden, averaged over the windows that cover a pixel.

    Attributes:
        window: Side of the window, in pixels.
        stride: How far it moves, in pixels.
        baseline: What stands in the window.
        score: What of the answer counts.
    """

    window: int = number(32, low=1, high=10_000)
    stride: int = number(16, low=1, high=10_000)
    baseline: Baseline = ZeroNorm()
    score: Score = "probability"

    @property
    def signed(self) -> bool:
        return True

    def shown(self, inside: Tensor) -> Tensor:
        return ~inside

    def values(self, scores: Tensor, clean: Tensor) -> Tensor:
        return clean - scores


@register("pami", paper="Shi et al. 2023", cost="1 forward a window", needs=())
@dataclass(frozen=True)
class PAMI(Sliding):
    """The score when only a window is shown, averaged over the windows that cover a pixel.

    Attributes:
        window: Side of the window, in pixels.
        stride: How far it moves, in pixels.
        baseline: What stands around the window.
        score: What of the answer counts.
    """

    half = True

    window: int = number(64, low=1, high=10_000)
    stride: int = number(16, low=1, high=10_000)
    baseline: Baseline = ZeroNorm()
    score: Score = "probability"

    def shown(self, inside: Tensor) -> Tensor:
        return inside

    def values(self, scores: Tensor, clean: Tensor) -> Tensor:
        return scores
