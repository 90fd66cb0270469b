"""MDA: the order of patches that the insertion and deletion metrics like best, with magnitudes that MAS likes best."""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.method import mda_authors
from vitrail.method.base import Batch, Method, register
from vitrail.method.biattn import BiAttnHeads
from vitrail.method.greedy import BLANK, BLURRED, Found, Search
from vitrail.method.magnitude import concave_steps, monotone, sparse_and_dense, strictly_falling
from vitrail.model import View
from vitrail.perturb import (
    AdaptiveBlur,
    Baseline,
    Canvas,
    PixelCanvas,
    Responder,
    ZeroNorm,
    cell_canvas,
    grid_labels,
    order_of,
    ranks_of,
)


@register(
    "mda",
    family="perturbation",
    paper="Walker et al. 2025",
    cost="about window x patches forwards, and the seed's",
    needs=(),
)
@dataclass(frozen=True)
class MDA(Method):
    """Metric-driven attributions: a greedy search for the best patch order, then the magnitudes that fit it.

    Starting from a blurred image, the patch that raises the target's probability most is inserted, until a share
    ``tau`` of the clean probability is back. Starting from a blank one, the patch that raises it least is pasted, until
    only the inserted ones are left. The magnitudes are the steps of the concave curve nearest to the mean of the
    insertion and the (turned) deletion curve.

    Attributes:
        seed: The method whose order says which patches are tried first; None tries all that are left at every step.
        tau: The share of the clean response at which insertion stops.
        window: How many patches are tried at a step; twice the side of the grid by default.
        kappa: The magnitude from which on a patch counts as important in the dense map.
        gamma: 0 for the sparse map, 1 for the dense one; between them a mixture. See `Explanation.with_gamma`.
        baseline: What insertion starts from.
        blank: What deletion ends at.
        objective: ``joint``, or the order and magnitudes for one metric alone (``tau`` is then 1 or 0).
        grid: The cells: ``token`` the model's own patches, ``authors`` the same moved by one pixel, as in their code;
            ``auto`` is what ``compat`` says.
        cells: Cells along a side of the picture; the model's own grid by default.
        compat: ``authors`` does what their code does, not what the paper says.
    """

    seed: Method | None = field(default=BiAttnHeads(), metadata={"understood": True})
    tau: float = 0.9
    window: int | None = None
    kappa: float = 0.005
    gamma: float = 0.0
    baseline: Baseline = AdaptiveBlur()
    blank: Baseline = ZeroNorm()
    objective: Literal["joint", "insertion", "deletion"] = "joint"
    grid: Literal["auto", "token", "authors"] = "auto"
    cells: int | None = None
    compat: Literal["none", "authors"] = "none"

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise InputError(f"mda's tau must be above 0 and at most 1, but {self.tau} was given")
        if not 0 <= self.gamma <= 1:
            raise InputError(f"mda's gamma must be between 0 (sparse) and 1 (dense), but {self.gamma} was given")
        for name in ("window", "cells"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"mda's {name} must be 1 or more, but {value} was given")

    def shape(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        return view.grid_at(size) if self.cells is None else (self.cells, self.cells)

    def enlarge(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        grid = (maps.shape[1], maps.shape[2])
        if grid[0] > size[0] or grid[1] > size[1]:
            return super().enlarge(maps, size)
        labels = mda_authors.shifted_labels if self._shifted else grid_labels
        return maps.flatten(1)[:, labels(size, grid).to(maps.device)]

    def _window(self, patches: int) -> int:
        if self.seed is None:
            return patches
        window = self.window or 2 * math.isqrt(patches)
        return min(window, mda_authors.MOST_TRIED if self.compat == "authors" else window, patches)

    def passes(self, view: View, size: tuple[int, int]) -> int:
        rows, columns = self.shape(view, size)
        patches, window = rows * columns, self._window(rows * columns)
        seed = 0 if self.seed is None else self.seed.passes(view, size) or 20
        curves = patches if self.compat == "none" else patches + 2 * mda_authors.steps_of(size)
        return (patches - window) * window + window * (window + 1) // 2 + curves + seed

    def maps(self, view: View, batch: Batch) -> Tensor:
        target = batch.settle(view)
        rows, columns = self.shape(view, batch.size)
        if self.seed is None:
            order = torch.arange(rows * columns, device=batch.images.device).expand(len(batch), -1)
        else:
            heat = self.seed.maps(view, batch)
            if self.compat == "authors":
                heat = mda_authors.blurred_seed(heat, batch.size, (rows, columns))
            order = order_of(F.adaptive_avg_pool2d(heat[:, None], (rows, columns)).flatten(1))
        fills = [baseline.fill(view, batch.images, target) for baseline in (self.baseline, self.blank)]
        canvas = self._canvas(view, batch.images, fills, (rows, columns))
        ask = Responder(canvas, target)
        which = torch.arange(len(batch), device=batch.images.device)
        assert batch.logits is not None
        whole = ask.read(batch.logits, which)
        nothing = torch.zeros(len(batch), canvas.cells, dtype=torch.bool, device=which.device)
        blurred, blank = (ask(which, nothing, fill) for fill in (BLURRED, BLANK))
        until, late = self._until(blurred, whole), self.compat == "authors"
        found = Search(ask, ranks_of(order), self._window(canvas.cells), (blurred, blank, whole), until, late).run()
        if self.compat == "authors":
            sparse, dense = mda_authors.magnitudes(self, view, batch, fills, found)
        else:
            sparse, dense = self._magnitudes(found)
        for name in ("order", "insertion", "deletion"):
            batch.extras[name] = getattr(found, name)
        for name, values in (("sparse", sparse), ("dense", dense)):
            placed = torch.zeros(order.shape).scatter(1, found.order.cpu(), torch.from_numpy(values))
            batch.extras[name] = placed.view(len(batch), rows, columns)
        return self.blend(batch.extras).to(batch.images.device)

    @property
    def _shifted(self) -> bool:
        return self.grid == "authors" or (self.grid == "auto" and self.compat == "authors")

    def _canvas(self, view: View, images: Tensor, fills: list[Tensor], grid: tuple[int, int]) -> Canvas:
        if not self._shifted:
            return cell_canvas(view, images, fills, grid)
        size = (images.shape[2], images.shape[3])
        return PixelCanvas(view, images, fills, mda_authors.shifted_labels(size, grid))

    def _until(self, blurred: Tensor, whole: Tensor) -> Tensor:
        """(B,) the response at which insertion stops; NaN where there is none, infinite where it never stops."""
        if self.objective == "deletion":
            return torch.full_like(whole, torch.nan)
        if self.objective == "insertion" or self.tau == 1:
            return torch.full_like(whole, torch.inf)
        # Where the blurred image answers more than the clean one there is nothing to bring back.
        until = torch.where(whole > blurred, blurred + self.tau * (whole - blurred), torch.nan)
        return until.clamp_max(mda_authors.RAW_STOP) if self.compat == "authors" else until

    def _magnitudes(self, found: Found) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(B, N) sparse and dense magnitudes, in the order of importance."""
        pairs = []
        for insertion, deletion in zip(found.insertion.double().cpu().numpy(), found.deletion.double().cpu().numpy()):
            rising = monotone(insertion, insertion[0], insertion[-1], rising=True)
            turned = 1 - monotone(deletion, deletion[-1], deletion[0], rising=False)
            share = {"joint": 0.5, "insertion": 1.0, "deletion": 0.0}[self.objective]
            pairs.append(sparse_and_dense(concave_steps(share * rising + (1 - share) * turned), self.kappa))
        return np.stack([sparse for sparse, _ in pairs]), np.stack([dense for _, dense in pairs])

    def blend(self, extras: dict[str, Tensor]) -> Tensor:
        """The map at this method's gamma from what an earlier run left behind: no model is asked."""
        sparse, dense, order = (extras[name].cpu() for name in ("sparse", "dense", "order"))
        mixed = ((1 - self.gamma) * sparse.double() + self.gamma * dense.double()).flatten(1).gather(1, order)
        falling = torch.from_numpy(np.stack([strictly_falling(row) for row in mixed.numpy()]))
        return torch.zeros_like(falling).scatter(1, order, falling).view_as(sparse)
