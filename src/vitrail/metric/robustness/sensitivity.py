"""How far a map moves when the picture hardly does: noise too weak to see, and the method asked again."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.fields import number, random_seed
from vitrail.method import Batch, checksum
from vitrail.metric.base import Metric, register
from vitrail.metric.case import Case

YEH = "Yeh et al. 2019"

AGAIN = "would explain each image {} times"

STEADY = 1e-3
"""Maps that move by less, when a method draws other random numbers, are those of a method that draws none."""


def sensitivities(maps: Tensor, moved: Tensor) -> Tensor:
    """How far maps lie from the clean ones, as a share of the clean one's length; all zeros count as length 1.

    Args:
        maps: (B, rows, columns) of the clean images.
        moved: (K, B, rows, columns) of K changed copies of each.

    Returns:
        (K, B) float64.

    Example:
        >>> clean = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]])
        >>> sensitivities(clean, clean[None] + 1).round(decimals=3).tolist()
        [[0.283, 1.414]]
    """
    clean = maps.double().flatten(1)
    length = clean.norm(dim=1)
    moves: Tensor = (moved.double().flatten(2) - clean).norm(dim=2)
    return moves / torch.where(length > 0, length, 1)


def noisy(images: Tensor, seeds: Tensor, radius: float) -> Tensor:
    """(B, 3, H, W) images, (B, K) seeds -> (K, B, 3, H, W): copies with noise drawn evenly from -radius to radius."""
    draws = [[torch.Generator().manual_seed(seed) for seed in row] for row in seeds.T.tolist()]
    noise = torch.stack([torch.stack([torch.rand(images.shape[1:], generator=g) for g in row]) for row in draws])
    return images + radius * (2 * noise.to(images) - 1)


@dataclass(frozen=True)
class _Sensitivity(Metric):
    """The change of the map at its own grid, relative to its length, under uniform noise; the target stays.

    Attributes:
        samples: Noisy copies of each image.
        radius: The most that a value of the model's input moves.
        seed: Another seed draws other noise.
        draws: The random numbers of a method that draws some: ``new`` for each copy, so that its own unsteadiness
            counts too, or the ``same`` as for the clean picture, so that the noise alone does.
    """

    samples: int = number(10, low=1, high=10_000, cost=AGAIN)
    radius: float = number(0.02, low=0, high=1000)
    seed: int = random_seed()
    draws: Literal["new", "same"] = "new"

    def beside(self) -> tuple[Metric, ...]:
        return (NoiseFloor(self.samples, self.seed),) if self.draws == "new" and self.radius else ()

    def _each(self, case: Case) -> Tensor:
        """(samples, B), asked for once, whatever is made of them."""
        key = ("sensitivity", self.samples, self.radius, self.seed, self.draws)
        return case.once(key, lambda: moves(case, self.samples, self.radius, self.seed, self.draws))


def moves(case: Case, samples: int, radius: float, seed: int, draws: Literal["new", "same"]) -> Tensor:
    """(samples, B) float64: how far the maps of noisy copies lie from those of the case."""
    batch = Batch(case.images)
    # A seed for each copy, so that a part that ran out of memory draws the same noise again.
    generators = (batch.generator(i, seed) for i in range(len(batch)))
    seeds = torch.stack([torch.randint(2**62, (samples,), generator=draw) for draw in generators])
    own = checksum(case.images)

    def ask(part: slice) -> Tensor:
        with case.view.still(turns=True):  # never in inference mode, whose tensors no gradient can use
            copies = noisy(case.images, seeds[:, part], radius)
            keys = seeds[:, part].T.flatten() if draws == "new" else own.repeat(len(copies))
            moved = case.explain(copies.flatten(0, 1), case.target.repeat(len(copies)), keys=keys)
        if moved.shape[1:] != case.maps.shape[1:]:
            raise InputError(
                f"sensitivity compares maps at their own grid, {moved.shape[1]} x {moved.shape[2]}, but the case has "
                f"maps of {case.maps.shape[1]} x {case.maps.shape[2]}; give them as the method made them"
            )
        return sensitivities(case.maps, moved.unflatten(0, copies.shape[:2]))

    return torch.cat(list(batch.in_parts(samples, ask)))


@register("max_sensitivity", YEH, higher_is_better=False, needs=["method"])
@dataclass(frozen=True)
class MaxSensitivity(_Sensitivity):
    """The largest change of the map under noise too weak to see, relative to the map's length.

    Attributes:
        samples: Noisy copies of each image.
        radius: The most that a value of the model's input moves.
        seed: Another seed draws other noise.
        draws: A method's own random numbers: ``new`` for each copy, or the ``same`` as for the clean picture.
    """

    def measure(self, case: Case) -> Tensor:
        return self._each(case).amax(0)


@register("avg_sensitivity", YEH, higher_is_better=False, needs=["method"])
@dataclass(frozen=True)
class AvgSensitivity(_Sensitivity):
    """The mean change of the map under noise too weak to see, relative to the map's length.

    Attributes:
        samples: Noisy copies of each image.
        radius: The most that a value of the model's input moves.
        seed: Another seed draws other noise.
        draws: A method's own random numbers: ``new`` for each copy, or the ``same`` as for the clean picture.
    """

    def measure(self, case: Case) -> Tensor:
        return self._each(case).mean(0)


@register("noise_floor", "vitrail", higher_is_better=False, needs=["method"])
@dataclass(frozen=True)
class NoiseFloor(Metric):
    """The largest change of the map when nothing changes but the method's own random numbers: none, where it has none.

    What `max_sensitivity` is at radius 0. A method that hardly moves the first time is not asked again.

    Attributes:
        samples: Times that the method draws anew.
        seed: Another seed draws other numbers.
    """

    samples: int = number(10, low=1, high=10_000, cost=AGAIN)
    seed: int = random_seed()

    def measure(self, case: Case) -> Tensor:
        first = moves(case, 1, 0.0, self.seed, "new")[0]
        if (first < STEADY).all() or self.samples == 1:
            return first
        every = moves(case, self.samples, 0.0, self.seed, "new").amax(0)
        return torch.where(first < STEADY, first, every)
