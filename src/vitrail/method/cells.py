"""What methods that ask about half-hidden pictures share: their cells and their random numbers."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.method.base import MAP, SharedPasses, State
from vitrail.method.batch import Batch
from vitrail.model import View
from vitrail.perturb import Baseline, Canvas, Responder, Score, cell_canvas

MOST_CELLS = 4096
"""More cells than this are pixels of a model without a grid: no method here has an answer for them in any time."""

FINEST = 64
"""Rows, and columns, of as many cells."""

MOST_SHOWN = 50_000_000
"""Cells in all pictures of an image together: more would not fit the memory of most machines."""


class Cells(SharedPasses):
    """A method that shows and hides cells: those of the model's own grid, or of ``grid`` rows and columns.

    Each method declares these parameters itself, so that their order and their defaults are its own.
    """

    grid: int | None
    baseline: Baseline
    score: Score
    seed: int

    def shape(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        return view.grid_at(size) if self.grid is None else (self.grid, self.grid)

    def count(self, view: View, size: tuple[int, int]) -> int:
        """How many cells there are."""
        return math.prod(self.shape(view, size))

    def asking(self, view: View, batches: Sequence[Batch], pictures: int) -> Responder:
        """Answers about the cells of the images; a column a target.

        Args:
            view: The model.
            batches: The images, once for each target.
            pictures: How many half-hidden pictures of each image are held at once.
        """
        batch = batches[0]
        cells = self.count(view, batch.size)
        if cells > MOST_CELLS:
            raise InputError(f"{self.spec} would have {cells} cells on {view.name}; give it fewer, such as grid=14")
        if cells * pictures > MOST_SHOWN:
            raise InputError(
                f"{self.spec} would hold {pictures:,} pictures of {cells:,} cells on {view.name}, more than fit in "
                f"memory; at most {MOST_SHOWN // cells:,} of so many cells do"
            )
        fill = filled(view, batches, self.baseline)
        grid = None if self.grid is None else (self.grid, self.grid)
        return asking(cell_canvas(view, batch.images, [fill], grid), batches, self.score)

    def laid_out(self, view: View, batch: Batch, values: Tensor) -> list[State]:
        """(B, cells, targets) -> the state for each target."""
        return [{MAP: one.reshape(-1, *self.shape(view, batch.size))} for one in values.unbind(-1)]

    def drawn(self, batch: Batch, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        """(B, ...): what ``draw`` makes of each image's own random numbers."""
        found = [draw(batch.generator(i, self.seed)) for i in range(len(batch))]
        return torch.stack(found).to(batch.images.device)


def asking(canvas: Canvas, batches: Sequence[Batch], score: Score = "probability") -> Responder:
    """Answers about the images on a canvas, a column for each of the batches' targets, which are settled."""
    return Responder(canvas, [batch.target for batch in batches], score, heard=[batch.heard for batch in batches])


def filled(view: View, batches: Sequence[Batch], baseline: Baseline) -> Tensor:
    """A baseline's pictures for the images of batches that share them; what a reader must know of them is noted."""
    targets = [batch.settle(view) for batch in batches]
    pictures, sentences = baseline.fill_and_tell(view, batches[0].images, targets[0])
    for sentence in dict.fromkeys(filter(None, sentences)):
        for batch in batches:
            batch.note(sentence, torch.tensor([one == sentence for one in sentences]))
    return pictures


def ends(ask: Responder) -> tuple[Tensor, Tensor]:
    """(B, targets) the scores with every cell hidden, and with none."""
    both = torch.arange(2, device=ask.canvas.view.device).bool()[:, None].expand(2, ask.canvas.cells)
    none, whole = ask.each(both).unbind(1)
    return none, whole
