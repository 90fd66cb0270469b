"""How an explainer is trained: the settings, and what of them changes from step to step."""

import math
from dataclasses import dataclass, field
from typing import Literal

from vitrail.errors import InputError
from vitrail.method import Objective
from vitrail.model import Precision

WARM = 0.1
"""The share of the steps in which the learning rate rises."""

Switch = Literal["on", "off"]
Report = Literal["full", "short"]


@dataclass(frozen=True)
class Training:
    """The settings of a training, the paper's where it tells them.

    Attributes:
        steps: How many.
        batch: Pictures a step, on all devices together.
        rate: The highest learning rate (AdamW; up in a tenth of the steps, down along a cosine).
        decay: Weight decay.
        clip: The gradient's norm, at most.
        objective: What is learned.
        temperatures: Of the soft ranks, first and last; in between in equal ratios.
        noises: The share of Gumbel noise, first and last; in between in equal steps.
        cells: The fewest and the most cells a side that the picture is cut into.
        others: How often another class than the most probable one is explained.
        encoder: Whose features the explainer sees: ``self``, the target's own, or a timm model's.
        channels: Width of the decoder; by default what suits the encoder.
        evidence: Whether the explainer sees what speaks for a class in the target's own features; ``off`` with another
            encoder in any case.
        precision: Arithmetic of the target's passes.
        seed: Another seed draws everything else.
        held: Pictures that are never learned from, at most; a tenth where there are fewer.
        look: Steps between two looks at them, and between two checkpoints.
        sheet: Steps between two picture sheets.
        gates: Stop when the maps are no better than chance, or rank no more clearly than untrained ones, at a quarter
            of the way.
        limit: Learn from so many pictures only, evenly spread; what is held out stays the same.
        report: ``full`` compares the explainer, plain and refined, with other methods; ``short`` with chance alone.
    """

    steps: int = 2000
    batch: int = 64
    rate: float = 3e-4
    decay: float = 1e-3
    clip: float = 1.0
    objective: Objective = field(default_factory=lambda: Objective(steps=8))
    temperatures: tuple[float, float] = (0.1, 0.01)
    noises: tuple[float, float] = (0.05, 0.0)
    cells: tuple[int, int] = (7, 14)
    others: float = 0.2
    encoder: str = "self"
    channels: int | None = None
    evidence: Switch = "on"
    precision: Precision = "fp32"
    seed: int = 0
    held: int = 64
    look: int = 100
    sheet: int = 500
    gates: Switch = "on"
    limit: int | None = None
    report: Report = "full"

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "look", "sheet", "held"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, but {getattr(self, name)} was given")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit must be 1 or more, but {self.limit} was given; leave it out to take all")
        if min(self.temperatures) <= 0 or not 2 <= self.cells[0] <= self.cells[1]:
            raise InputError(
                f"temperatures must be above 0 and cells from 2 up, but {self.temperatures} and {self.cells} were given"
            )

    def temperature(self, step: int) -> float:
        """Of the soft ranks at a step."""
        first, last = self.temperatures
        return float(first * (last / first) ** self._way(step))

    def noise(self, step: int) -> float:
        """The share of Gumbel noise at a step."""
        first, last = self.noises
        return first + (last - first) * self._way(step)

    def rate_at(self, step: int) -> float:
        """The learning rate at a step: up along a half cosine, down along another."""
        way = self._way(step)
        if way < WARM:
            return self.rate * (1 - math.cos(math.pi * (step + 1) / (WARM * self.steps + 1))) / 2
        return self.rate * (1 + math.cos(math.pi * (way - WARM) / (1 - WARM))) / 2

    def _way(self, step: int) -> float:
        return step / max(self.steps - 1, 1)
