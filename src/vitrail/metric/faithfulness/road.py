"""Remove and debias (ROAD): what is removed is painted over from around it, so that no outline tells where it was."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.fields import number, random_seed
from vitrail.method import Batch
from vitrail.metric.base import Metric, register
from vitrail.metric.case import Answers, Case, Enlarge, Sign, Whose
from vitrail.metric.faithfulness.curve import TENTHS, hits
from vitrail.model import View, full
from vitrail.perturb import Canvas, counted, order_of, ranks_of

TOLERANCE = 1e-5
"""Where the solver stops: the error's energy, which is the root of the weighted sum of its squared differences between
neighbours. In two dimensions that is about the largest error itself, however wide the hole."""

MOST = 100
"""Steps at most; a dozen are usual."""

COARSEST = 4
"""The grids of the preconditioner are halved while their shorter side stays as long as this."""


def impute(images: Tensor, hidden: Tensor) -> Tensor:
    """Paint over hidden pixels so that each is the mean of its neighbours: 1/6 from each side, 1/12 from each corner.

    Beyond the border there are no neighbours, and the weights of the others grow. One linear system an image and
    channel, all solved together by conjugate gradients, with a multigrid cycle as preconditioner. A picture of which
    nothing is left becomes its mean colour.

    Args:
        images: (M, C, H, W).
        hidden: (M, H, W) booleans.

    Returns:
        (M, C, H, W), within about 1e-4 of the solution in float32.

    Example:
        >>> ramp = torch.arange(4.0).expand(1, 1, 4, 4)
        >>> hole = torch.zeros(1, 4, 4, dtype=torch.bool)
        >>> hole[:, 1:3, 1:3] = True
        >>> torch.allclose(impute(ramp, hole), ramp, atol=1e-4)
        True
    """
    # A few pictures at a time stay in a CPU's cache; a GPU wants many.
    together = 4 if images.device.type == "cpu" else max(1, len(images))
    parts = zip(images.split(together), hidden.split(together))
    return torch.cat([torch.where(mask[:, None], _solved(part, mask), part) for part, mask in parts])


def _solved(images: Tensor, hidden: Tensor) -> Tensor:
    values = full(images)
    unknown = hidden[:, None].to(values.dtype)
    # Around the mean, which also is where the search begins: smaller numbers, smaller rounding errors.
    middle = values.mean((2, 3), keepdim=True)
    found = (values - middle) * (1 - unknown)
    precondition = _Multigrid(unknown)
    weights = neighbours(torch.ones_like(unknown[:1]))

    left = unknown * neighbours(found)
    ahead = way = precondition(left)
    energy = _dot(left, ahead)
    for _ in range(MOST):
        # Systems that are done stand still, so that none depends on the others. The weights here are twelvefold.
        going = energy > 12 * TOLERANCE**2
        if not going.any():
            break
        pushed = neighbours(way).addcmul_(weights, way, value=-1).mul_(unknown)
        length = torch.where(going, energy / _dot(way, pushed), 0)
        found.addcmul_(length, way, value=-1)
        left.addcmul_(length, pushed, value=-1)
        ahead = precondition(left)
        before, energy = energy, torch.where(going, _dot(left, ahead), energy)
        way = way.mul_(torch.where(going, energy / before, 0)).add_(ahead)
    return (found + middle).to(images.dtype)


def neighbours(values: Tensor) -> Tensor:
    """(..., H, W): twice the sum of the four neighbours plus that of the corners; zeros beyond the border.

    In whole weights, hence free of rounding where all neighbours are equal, and in sums of shifted pictures: faster
    than a convolution with so small a kernel, and never rounded to TF32.
    """
    wide = F.pad(values, (1, 1, 1, 1))
    rows = (wide[..., :-2] + wide[..., 2:]).add_(wide[..., 1:-1], alpha=2)
    return (rows[..., :-2, :] + rows[..., 2:, :]).add_(rows[..., 1:-1, :], alpha=2).sub_(values, alpha=4)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum((2, 3), keepdim=True)


class _Multigrid:
    """One V-cycle: an approximate inverse of the system, symmetric as conjugate gradients need it.

    Each coarser grid has the same stencil, and is unknown where all that it stands for is. One Jacobi step on every
    grid on the way down and one on the way up: on this stencil it already divides rough errors by three.

    Args:
        unknown: (M, 1, H, W) ones where pixels are looked for, else zeros.
    """

    def __init__(self, unknown: Tensor) -> None:
        self._size = unknown.shape[2:]
        halvings = max(0, int(math.log2(min(self._size) / COARSEST)))
        self._beyond = (0, -self._size[1] % 2**halvings, 0, -self._size[0] % 2**halvings)
        unknown = F.pad(unknown, self._beyond, mode="replicate")
        self._unknown, self._weights = [unknown], [neighbours(torch.ones_like(unknown[:1]))]
        for _ in range(halvings):
            self._unknown.append(-F.max_pool2d(-self._unknown[-1], 2))
            self._weights.append(neighbours(torch.ones_like(self._unknown[-1][:1])))
        self._step = [unknown / weights for unknown, weights in zip(self._unknown, self._weights)]

    def __call__(self, left: Tensor) -> Tensor:
        """(M, C, H, W) what is left of the equations -> a correction."""
        return self._cycle(F.pad(left, self._beyond), 0)[..., : self._size[0], : self._size[1]]

    def _cycle(self, left: Tensor, level: int) -> Tensor:
        step, unknown = self._step[level], self._unknown[level]
        found = step * left
        if level + 1 < len(self._step):
            coarse = coarser(self._rest(left, found, level).mul_(unknown)).mul_(self._unknown[level + 1])
            coarse = self._cycle(coarse, level + 1)
            found.addcmul_(unknown, F.interpolate(coarse, scale_factor=2, mode="bilinear"))
        else:
            for _ in range(2):
                found.addcmul_(step, self._rest(left, found, level))
        return found.addcmul_(step, self._rest(left, found, level))

    def _rest(self, left: Tensor, found: Tensor, level: int) -> Tensor:
        return neighbours(found).addcmul_(self._weights[level], found, value=-1).add_(left)


def coarser(values: Tensor) -> Tensor:
    """(..., H, W) -> (..., H / 2, W / 2): the transpose of bilinear doubling."""
    wide = F.pad(values, (1, 1, 1, 1), mode="replicate")
    rows = (wide[..., 1:-2:2] + wide[..., 2:-1:2]).mul_(3).add_(wide[..., :-3:2]).add_(wide[..., 3::2])
    both = (rows[..., 1:-2:2, :] + rows[..., 2:-1:2, :]).mul_(3).add_(rows[..., :-3:2, :]).add_(rows[..., 3::2, :])
    return both.div_(16)


class ImputedCanvas(Canvas):
    """Hidden pixels are painted over from around them, with a little noise: one picture of it for all copies.

    Args:
        view: The model.
        images: (B, 3, H, W) model inputs.
        noise: (B, 3, H, W) what is added to the pixels that are hidden.
    """

    def __init__(self, view: View, images: Tensor, noise: Tensor) -> None:
        self.view, self.images, self.weight = view, len(images), images[0].numel()
        self.cells = images[0, 0].numel()
        self._images, self._noise = images, noise

    def logits(self, which: Tensor, shown: Tensor, fill: Tensor | int = 0) -> Tensor:
        images, hidden = self._images[which], ~shown.view(len(which), *self._images.shape[2:])
        return self.view.logits(impute(images, hidden) + hidden[:, None] * self._noise[which])


@dataclass(frozen=True)
class _Road(Metric):
    """The answers while pixels are painted over, highest first (MoRF) and lowest first (LeRF).

    Attributes:
        shares: The shares of the pixels that are removed, whose answers are averaged.
        noise: Standard deviation of the noise on what is painted over, in model inputs.
        score: The probability of a class, or the ``accuracy``: whether the model still gives it, as in the paper.
        sign: What of the map orders the pixels.
        target: The class; the paper's accuracy is of the ``label``.
        enlarge: How the map gets the picture's size.
        seed: Another seed draws other noise.
    """

    shares: tuple[float, ...] = number(TENTHS, low=0, high=1, most=1000)
    noise: float = number(0.01, low=0, high=1000)
    score: Literal["probability", "accuracy"] = "probability"
    sign: Sign = "signed"
    target: Whose = "explained"
    enlarge: Enlarge = "auto"
    seed: int = random_seed()

    def _means(self, case: Case) -> tuple[Tensor, Tensor]:
        """(B,) the mean answers with the highest pixels removed, and with the lowest."""
        case.classes(self.target)
        key = ("road", self.shares, self.noise, self.sign, self.enlarge, self.seed)
        answers = case.once(key, lambda: self._ask(case))
        values = hits(case, answers, self.target) if self.score == "accuracy" else answers.probability[self.target]
        morf, lerf = values.unflatten(1, (2, len(self.shares))).mean(2).unbind(1)
        return morf, lerf

    def _ask(self, case: Case) -> Answers:
        heat = case.heat(self.sign, self.enlarge).flatten(1)
        # Both ways, ties go by place: where a map is the same everywhere the two curves are the same.
        ranks = torch.stack([ranks_of(order_of(heat)), ranks_of(order_of(-heat))])
        counts = torch.tensor([counted(share, heat.shape[1]) for share in self.shares], device=heat.device)
        batch = Batch(case.images)
        drawn = [torch.randn(case.images.shape[1:], generator=batch.generator(i, self.seed)) for i in range(len(case))]
        canvas = ImputedCanvas(case.view, case.images, self.noise * torch.stack(drawn).to(case.images))

        def shown(which: Tensor, number: Tensor) -> Tensor:
            return ranks[number // len(counts), which] >= counts[number % len(counts)][:, None]

        return case.ask(canvas, shown, 2 * len(counts))


ROAD = "Rong et al. 2022 (ROAD)"


@register("road", ROAD, higher_is_better=True)
@dataclass(frozen=True)
class Road(_Road):
    """Half of what the answer to the lowest points removed exceeds that to the highest removed: (LeRF - MoRF) / 2."""

    def measure(self, case: Case) -> Tensor:
        morf, lerf = self._means(case)
        return (lerf - morf) / 2


@register("road_morf", ROAD, higher_is_better=False)
@dataclass(frozen=True)
class RoadMoRF(_Road):
    """The mean answer while the highest points of the map are painted over from around them."""

    def measure(self, case: Case) -> Tensor:
        return self._means(case)[0]


@register("road_lerf", ROAD, higher_is_better=True)
@dataclass(frozen=True)
class RoadLeRF(_Road):
    """The mean answer while the lowest points of the map are painted over from around them."""

    def measure(self, case: Case) -> Tensor:
        return self._means(case)[1]
