"""AtMan: the attention that a patch gets is turned down in every layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.events import Passes
from vitrail.fields import number
from vitrail.method.base import MAP, SharedPasses, State, register
from vitrail.method.batch import Batch, clean_logits
from vitrail.method.cells import asking
from vitrail.model import Need, Tap, View, full
from vitrail.perturb import Canvas, grid_labels


@register(
    "atman",
    paper="Deiseroth et al. 2023",
    cost="1 forward a patch, 1 forward",
    needs=(Need.ATTENTION,),
)
@dataclass(frozen=True)
class AtMan(SharedPasses):
    """Attention manipulation: log p(target) - log p(target with the attention to a patch turned down).

    In every layer and head, the scores of the patch before the softmax are multiplied by ``suppression``, counted from
    the lowest score of each query. Patches that look like it are turned down with it, the less alike the less: by
    ``suppression`` + (1 - ``suppression``) (1 - cosine) of the tokens that enter the first block. Class tokens and
    other prefix tokens never are. For a target that is no class, the difference of its scores.

    Always runs at the model's own precision: these are small differences.

    Attributes:
        suppression: The factor, 0 for the most.
        similarity: The cosine from which on a patch is turned down with another one; None turns down each one alone.
        grid: Rows and columns of cells whose patches are turned down all at once, for fewer passes; each patch is a
            cell by default.
    """

    suppression: float = number(0.1, low=0, below=1)
    similarity: float | None = number(0.6, low=-1, high=1, note="a cosine")
    grid: int | None = number(None, low=1, high=1000)

    def cells(self, view: View, size: tuple[int, int]) -> Tensor:
        """(N,): the cell of every patch."""
        rows, columns = view.grid_at(size)
        grid = (rows, columns) if self.grid is None else (min(self.grid, rows), min(self.grid, columns))
        return grid_labels((rows, columns), grid).flatten()

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(int(self.cells(view, size).max()) + 2)

    @property
    def signed(self) -> bool:
        return True

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        batch, targets = batches[0], [own.settle(view) for own in batches]
        canvas = SuppressionCanvas(view, batch.images)
        ask = asking(canvas, batches)
        cells = self.cells(view, batch.size).to(batch.images.device)
        factors = self.factors(canvas.patches)
        if self.grid is not None:
            factors = torch.stack([factors[:, cells == cell].amin(1) for cell in range(int(cells.max()) + 1)], 1)
        scores = ask.each(factors)
        clean = ask.read(clean_logits(batch), torch.arange(len(batch), device=scores.device))[:, None]
        found = []
        for k, target in enumerate(targets):
            before, after = clean[..., k], scores[..., k]
            if target.function is None and view.num_classes > 1:
                before, after = (p.clamp_min(torch.finfo(p.dtype).tiny).log() for p in (before, after))
            found.append({MAP: view.patch_map((before - after)[:, cells], view.layout(batch.size))})
        return found

    def factors(self, tokens: Tensor) -> Tensor:
        """(B, N, D) patch tokens -> (B, N, N): the factors of all patches when one of them is turned down, each row."""
        unit = F.normalize(full(tokens), dim=-1)
        itself = torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
        cosine = (unit @ unit.transpose(1, 2)).clamp(-1, 1).masked_fill(itself, 1)
        alike = itself if self.similarity is None else cosine >= self.similarity
        return torch.where(alike, self.suppression + (1 - self.suppression) * (1 - cosine), 1.0)


class SuppressionCanvas(Canvas):
    """Images whose patches get less attention: the share shown is the factor of a patch's attention scores.

    Args:
        view: A model with attention between its tokens.
        images: (B, 3, H, W) model inputs.
    """

    def __init__(self, view: View, images: Tensor) -> None:
        self.view, self.images = view, len(images)
        self._layout = view.layout((images.shape[2], images.shape[3]))
        with torch.no_grad():
            self._tokens = view.embed(images)
        self.cells = self._layout.patches
        self.weight = self._tokens[0].numel() + self._layout.tokens**2

    @property
    def patches(self) -> Tensor:
        """(B, N, D) the patches' tokens as they enter the first block."""
        return self._tokens[:, self._layout.prefix :]

    def logits(self, which: Tensor, shown: Tensor, fill: Tensor | int = 0) -> Tensor:
        factors = torch.cat([shown.new_ones(len(shown), self._layout.prefix), shown], 1)
        self.view.meter.begin(len(which))
        with Tap(scaled=factors):
            tokens = self.view.encode(self._tokens[which], self._layout)[-1]
            return self.view.head(tokens, self._layout)
