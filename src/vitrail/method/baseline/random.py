"""The floor: a map that knows nothing."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.events import Passes
from vitrail.fields import random_seed
from vitrail.method.base import Method, register
from vitrail.method.batch import Batch
from vitrail.model import View


@register("random", paper="none", cost="none", needs=())
@dataclass(frozen=True)
class Random(Method):
    """Uniform random numbers: what any method must beat.

    Attributes:
        seed: Another seed draws other numbers.
    """

    classless: ClassVar[bool] = True
    seed: int = random_seed()

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(1)

    def maps(self, view: View, batch: Batch) -> Tensor:
        grid = view.grid_at(batch.size)
        return torch.stack([torch.rand(grid, generator=batch.generator(i, self.seed)) for i in range(len(batch))])
