"""The floor: a map that knows nothing."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.fields import random_seed
from vitrail.method.base import Batch, Method, register
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

    def maps(self, view: View, batch: Batch) -> Tensor:
        grid = view.grid_at(batch.size)
        return torch.stack([torch.rand(grid, generator=batch.generator(i, self.seed)) for i in range(len(batch))])
