"""How an explainer is trained: the settings, and what of them changes from step to step."""

import math
from dataclasses import dataclass, field
from typing import Literal

from vitrail.errors import InputError
from vitrail.method.aha import Objective
from vitrail.model import Precision

WARM = 0.1
"""The share of the steps in which the learning rate rises."""

MOST, MOST_AT_ONCE = 2**31 - 1, 2**16
"""The largest whole numbers taken: of things that are counted, and of things that memory holds at once."""

FLAGS = {
    "target": "another model",
    "pictures": "other pictures",
    "batch": "--batch",
    "rate": "--rate",
    "objective": "--curve",
    "cells": "--cells",
    "encoder": "--backbone",
    "channels": "--channels",
    "evidence": "--evidence",
    "precision": "--precision",
    "seed": "--seed",
    "look": "--look",
    "limit": "--limit",
    **{name: name for name in ("decay", "clip", "temperatures", "noises", "others", "held")},
}
"""What a training depends on, in the words of the command line, where it has any."""

Switch = Literal["on", "off"]
Report = Literal["full", "short"]


def whole(flag: str, value: int | None, least: int = 1, most: int = MOST) -> None:
    """Refuse a number that a flag of ``vitrail train`` cannot take; None was not given."""
    if value is not None and not least <= value <= most:
        raise InputError(f"{flag} must be a whole number from {least} to {most}, but {value} was given")


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
        gates: Stop when the maps are no better than untrained ones, or rank no more clearly, at a quarter of the way.
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
        """Refuse what cannot be trained with, in the words of the command line."""
        whole("--steps", self.steps)
        whole("--batch", self.batch, most=MOST_AT_ONCE)
        whole("--curve", self.objective.steps, most=MOST_AT_ONCE)
        whole("--channels", self.channels, 8, MOST_AT_ONCE)
        for cells in self.cells:
            whole("--cells", cells, 2, MOST_AT_ONCE)
        whole("--look", self.look)
        whole("--sheet", self.sheet)
        whole("--limit", self.limit)
        whole("--seed", self.seed, 0)
        whole("held", self.held)
        if self.channels is not None and self.channels % 8:
            raise InputError(f"--channels must be a multiple of 8, but {self.channels} was given")
        if self.cells[0] > self.cells[1]:
            raise InputError(f"--cells must be the fewest and the most, but {self.cells[0]} {self.cells[1]} was given")
        if not 0 < self.rate <= 1:
            raise InputError(f"--rate must be a number above 0 and at most 1, but {self.rate} was given")
        if not min(self.temperatures) > 0:
            raise InputError(f"temperatures must be above 0, but {self.temperatures} was given")

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
