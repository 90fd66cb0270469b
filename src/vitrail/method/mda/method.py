"""MDA: the order of patches that the insertion and deletion metrics like best, with magnitudes that MAS likes best."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import number, value
from vitrail.method.attention.biattn import BiAttnHeads
from vitrail.method.base import Method, State, register
from vitrail.method.batch import Batch, clean_logits
from vitrail.method.cam.gradients import GradCAM
from vitrail.method.cells import FINEST, MOST_CELLS, filled
from vitrail.method.enlargement import Enlargement
from vitrail.method.mda import authors
from vitrail.method.mda.magnitude import concave_steps, dense_of, monotone, sparse_of, strictly_falling
from vitrail.method.mda.search import BLANK, BLURRED, Found, Search
from vitrail.model import View
from vitrail.perturb import (
    AdaptiveBlur,
    Baseline,
    Canvas,
    PixelCanvas,
    Responder,
    ZeroNorm,
    cell_canvas,
    order_of,
    ranks_of,
)

NO_WAY = (
    "the model is as sure of the blurred picture as of the whole one, so there is nothing to insert: "
    "{what} (another baseline, such as zero_norm, may leave less to see)"
)


@register(
    "mda",
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
            ``auto`` is ``bt_h``, as in the paper, where the model shows attention between all patches, else ``gradcam``
            where it has a feature map, else None.
        tau: The share of the clean response at which insertion stops. 1 inserts to the end, and order and magnitudes
            are for insertion alone; 0 deletes from the beginning, for deletion alone.
        window: How many patches are tried at a step; twice the side of the grid by default.
        kappa: The magnitude from which on a patch counts as important in the dense map.
        gamma: 0 for the sparse map, 1 for the dense one; between them a mixture. See `Explanation.with_`.
        baseline: What insertion starts from.
        blank: What deletion ends at.
        cells: Cells along a side of the picture; the model's own grid by default.
        enlarged: How the map gets the picture's size: every cell stays ``whole``, or ``smooth`` (bilinear; with
            ``compat=authors`` as in their code, which makes the map small again first).
        compat: ``authors`` does what their code does, not what the paper says.
    """

    half = True

    seed: Method | Literal["auto"] | None = "auto"
    tau: float = number(0.9, low=0, high=1, note="0 for deletion alone, 1 for insertion alone")
    window: int | None = number(None, low=1, high=MOST_CELLS)
    kappa: float = number(0.005, low=0, high=1, stage="render")
    gamma: float = number(0.0, low=0, high=1, note="0 for the sparse map, 1 for the dense one", stage="render")
    baseline: Baseline = AdaptiveBlur()
    blank: Baseline = ZeroNorm()
    cells: int | None = number(None, low=1, high=FINEST)
    enlarged: Literal["whole", "smooth"] = value("whole", stage="render")
    compat: Literal["none", "authors"] = "none"

    def __post_init__(self) -> None:
        if self.tau == 1:
            self.refuse_unread("tau=1", "never deletes", ["blank"], "give a tau below 1")
            if self.compat == "authors":
                rule, why = "tau=1, compat=authors", "has the sparse map alone, as their code does"
                self.refuse_unread(rule, why, ["gamma"], "give a tau below 1")
        if self.tau == 0 and self.compat == "none":
            self.refuse_unread("tau=0", "never inserts", ["baseline"], "give a tau above 0")
        if self.seed is None:
            self.refuse_unread("seed=None", "tries all patches that are left", ["window"], "give a seed")
        if self.gamma == 0:
            self.refuse_unread("gamma=0", "shows the sparse map alone", ["kappa"], "give a gamma above 0")

    def seeding(self, view: View) -> Method | None:
        """The method whose order says which patches are tried first on this model."""
        if self.seed != "auto":
            return self.seed
        for method in (BiAttnHeads(), GradCAM()):
            if all(view.can_give(need) for need in method.requirements()):
                return method
        return None

    def check(self, view: View) -> None:
        if isinstance(self.seed, Method):
            try:
                self.seed.check(view)
            except InputError as error:
                raise InputError(
                    f"mda runs on any model, but not its seed: {error}; give mda another seed, such as "
                    "mda(seed=gradcam), or leave it out"
                ) from error
        super().check(view)
        if self.window is not None and self.seeding(view) is None:
            raise InputError(
                f"mda's window says how many of the seed's best are tried, but {view.name} offers nothing to make a "
                "seed of; leave window out, or give a seed that needs answers alone, such as mda(seed=occlusion)"
            )

    def shape(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        return view.grid_at(size) if self.cells is None else (self.cells, self.cells)

    @property
    def enlargement(self) -> Enlargement:
        if self.compat == "authors":
            return "shifted_cells" if self.enlarged == "whole" else "shifted_cells_smooth"
        return "cells" if self.enlarged == "whole" else "bilinear"

    def _window(self, patches: int, seed: Method | None) -> int:
        if seed is None:
            return patches
        most = authors.MOST_TRIED if self.compat == "authors" else patches
        return min(self.window or min(2 * math.isqrt(patches), most), patches)

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        rows, columns = self.shape(view, size)
        first = self.seeding(view)
        patches, window = rows * columns, self._window(rows * columns, first)
        seed = Passes(1) if first is None else first.passes(view, size)
        curves = patches if self.compat == "none" else patches + 2 * authors.steps_of(size)
        return Passes((patches - window) * window + window * (window + 1) // 2 + curves).plus(seed)

    def search(self, view: View, batch: Batch) -> State:
        target = batch.settle(view)
        rows, columns = self.shape(view, batch.size)
        if rows * columns > MOST_CELLS:
            raise InputError(
                f"{self.spec} would have {rows * columns} cells on {view.name}; give it fewer: mda(cells=14)"
            )
        first = self.seeding(view)
        order = self._seed_order(view, batch, first, (rows, columns))
        # Where nothing is inserted (or deleted), one picture serves for both.
        starts = self.blank if self.tau == 0 and self.compat == "none" else self.baseline
        fills = [filled(view, [batch], baseline) for baseline in (starts, self.blank)]
        canvas = self._canvas(view, batch.images, fills, (rows, columns))
        ask = Responder(canvas, target, wide=self.compat == "none", heard=[batch.heard])
        which = torch.arange(len(batch), device=batch.images.device)
        whole = ask.read(clean_logits(batch), which)
        nothing = torch.zeros(len(batch), canvas.cells, dtype=torch.bool, device=which.device)
        blurred, blank = (ask(which, nothing, fill) for fill in (BLURRED, BLANK))
        if self.tau > 0:
            what = "the map is the order alone" if self.tau == 1 else "the order is that of deletion alone"
            batch.note(NO_WAY.format(what=what), ~(whole > blurred))
        until, late = self._until(blurred, whole), self.compat == "authors"
        window = self._window(canvas.cells, first)
        found = Search(ask, ranks_of(order), window, (blurred, blank, whole), until, late).run()
        sparse = authors.magnitudes(self, view, batch, fills, found) if late else self._magnitudes(found)
        placed = torch.zeros(order.shape).scatter(1, found.order.cpu(), torch.from_numpy(sparse))
        curves = {name: getattr(found, name) for name in ("order", "insertion", "deletion")}
        return curves | {"sparse": placed.view(len(batch), rows, columns)}

    def _seed_order(self, view: View, batch: Batch, seed: Method | None, grid: tuple[int, int]) -> Tensor:
        """(B, N) the patches as they are tried."""
        if seed is None:
            return torch.arange(grid[0] * grid[1], device=batch.images.device).expand(len(batch), -1)
        with nullcontext() if seed.keeps_half() else view.exactly():
            heat = seed.maps(view, batch)
        if self.compat == "authors":
            heat = authors.blurred_seed(heat, batch.size, grid)
        return order_of(F.adaptive_avg_pool2d(heat[:, None], grid).flatten(1))

    def _canvas(self, view: View, images: Tensor, fills: list[Tensor], grid: tuple[int, int]) -> Canvas:
        if self.compat == "none":
            return cell_canvas(view, images, fills, grid)
        size = (images.shape[2], images.shape[3])
        return PixelCanvas(view, images, fills, authors.shifted_labels(size, grid))

    def _until(self, blurred: Tensor, whole: Tensor) -> Tensor:
        """(B,) the response at which insertion stops; NaN where there is none, infinite where it never stops."""
        if self.tau == 0:
            return torch.full_like(whole, torch.nan)
        if self.tau == 1:
            return torch.full_like(whole, torch.inf)
        # Where the blurred image answers more than the clean one there is nothing to bring back.
        until = torch.where(whole > blurred, blurred + self.tau * (whole - blurred), torch.nan)
        return until.clamp_max(authors.RAW_STOP) if self.compat == "authors" else until

    def _magnitudes(self, found: Found) -> NDArray[np.float32]:
        """(B, N) sparse magnitudes, in the order of importance."""
        share = self.tau if self.tau in (0, 1) else 0.5  # of insertion
        sparse = []
        for insertion, deletion in zip(found.insertion.double().cpu().numpy(), found.deletion.double().cpu().numpy()):
            rising = monotone(insertion, insertion[0], insertion[-1], rising=True)
            turned = 1 - monotone(deletion, deletion[-1], deletion[0], rising=False)
            sparse.append(sparse_of(concave_steps(share * rising + (1 - share) * turned)))
        return np.stack(sparse)

    def extras(self, state: State) -> State:
        return state | {"dense": self.dense(state)}

    def with_fields(self, **fields: Any) -> Method:
        # A sparse map knows no kappa: it is forgotten there.
        forgets = fields.get("gamma", self.gamma) == 0 and "kappa" not in fields
        return super().with_fields(**(fields | {"kappa": MDA.kappa} if forgets else fields))

    def dense(self, state: State) -> Tensor:
        """(B, rows, columns): the dense map at this method's kappa, from the sparse one."""
        sparse, order = state["sparse"].cpu(), state["order"].cpu()
        rows = []
        for values in sparse.flatten(1).gather(1, order).numpy():
            row = dense_of(values, self.kappa)
            if self.compat == "authors":
                row = row / max(row.max(), np.finfo(float).tiny) * values.max()
            rows.append(row.astype(np.float32) if self.compat == "authors" else strictly_falling(row))
        return torch.zeros(order.shape).scatter(1, order, torch.from_numpy(np.stack(rows))).view_as(sparse)

    def render(self, state: State) -> Tensor:
        sparse, dense, order = state["sparse"].cpu(), self.dense(state), state["order"].cpu()
        mixed = ((1 - self.gamma) * sparse.double() + self.gamma * dense.double()).flatten(1).gather(1, order)
        falling = torch.from_numpy(np.stack([strictly_falling(row) for row in mixed.numpy()]))
        return torch.zeros_like(falling).scatter(1, order, falling).view_as(sparse).to(state["order"].device)
