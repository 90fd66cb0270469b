"""Images that can be shown in part: what is hidden comes from a baseline, or is not there at all."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.model import View


class Canvas(ABC):
    """B images cut into cells, each of which can be shown or hidden, in as many copies as wanted.

    Attributes:
        view: The model that looks at them.
        images: How many images there are.
        cells: How many cells each one has.
        weight: The numbers in one copy, from which the room it needs is guessed.
    """

    view: View
    images: int
    cells: int
    weight: int

    @abstractmethod
    def logits(self, which: Tensor, shown: Tensor, fill: Tensor | int = 0) -> Tensor:
        """The model's answers to M copies.

        Args:
            which: (M,) the image each copy is made of.
            shown: (M, cells) boolean, True where the image is seen; where a canvas allows it, a share between 0 and 1.
            fill: Which of the fills hides the rest, one for all or (M,).

        Returns:
            (M, classes).
        """


class PixelCanvas(Canvas):
    """Hidden pixels take those of a fill. Works on every model; cells are regions of pixels, or the pixels themselves.

    Args:
        view: The model.
        images: (B, 3, H, W) model inputs.
        fills: One or more sets of fills, shaped as the images.
        labels: (H, W), or (B, H, W), the cell each pixel belongs to; None makes every pixel its own cell.
    """

    def __init__(self, view: View, images: Tensor, fills: Sequence[Tensor], labels: Tensor | None = None) -> None:
        self.view, self.images, self.weight = view, len(images), images[0].numel()
        self._images, self._fills = images, torch.stack(list(fills))
        self._labels = None
        if labels is not None:
            self._labels = labels.to(images.device).expand(len(images), *images.shape[2:]).flatten(1)
        self.cells = images[0, 0].numel() if self._labels is None else int(self._labels.max()) + 1

    def logits(self, which: Tensor, shown: Tensor, fill: Tensor | int = 0) -> Tensor:
        images, fills = self._images[which], _taken(self._fills, fill, which)
        mask = shown if self._labels is None else shown.gather(1, self._labels[which])
        mask = mask.view(len(which), 1, *images.shape[2:])
        if mask.dtype == torch.bool:
            return self.view.logits(torch.where(mask, images, fills))
        return self.view.logits(torch.lerp(fills, images, mask.to(images.dtype)))


class TokenCanvas(Canvas):
    """The same for whole patches, in the space of their embeddings: nothing is embedded twice.

    Exact where a patch's embedding depends on that patch alone, see `embeds_patches_apart`.

    Args:
        view: A model with token blocks.
        images: (B, 3, H, W) model inputs.
        fills: One or more sets of fills, shaped as the images.
    """

    def __init__(self, view: View, images: Tensor, fills: Sequence[Tensor]) -> None:
        self.view, self.images = view, len(images)
        self._layout = view.layout((images.shape[2], images.shape[3]))
        with torch.no_grad():
            self._tokens = view.embed(images)
            self._fills = torch.stack([view.embed(fill) for fill in fills])
        self.cells, self.weight = self._layout.patches, self._tokens[0].numel()

    def logits(self, which: Tensor, shown: Tensor, fill: Tensor | int = 0) -> Tensor:
        if shown.dtype != torch.bool:
            raise InputError("patches are shown or hidden whole; for shares between 0 and 1 use a pixel canvas")
        mask = torch.cat([shown.new_ones(len(shown), self._layout.prefix), shown], 1)[:, :, None]
        return self.view.answer(torch.where(mask, self._tokens[which], _taken(self._fills, fill, which)), self._layout)


class RemovalCanvas(Canvas):
    """Hidden patches are not there: their tokens are dropped, or no other token can see them.

    Where all copies show equally many patches, ``shown`` may be (M, n) whole numbers, the patches themselves (not all).

    Args:
        view: A model with token blocks.
        images: (B, 3, H, W) model inputs.
    """

    def __init__(self, view: View, images: Tensor) -> None:
        self.view, self.images = view, len(images)
        self._layout = view.layout((images.shape[2], images.shape[3]))
        with torch.no_grad():
            self._tokens = view.embed(images)
        self.cells, self.weight = self._layout.patches, self._tokens[0].numel()

    def logits(self, which: Tensor, shown: Tensor, fill: Tensor | int = 0) -> Tensor:
        return self.view.respond(self._tokens[which], shown, self._layout)


def _taken(fills: Tensor, fill: Tensor | int, which: Tensor) -> Tensor:
    """``fills[fill, which]``: torch copies the rows of one table several times as fast as those of two."""
    return fills.flatten(0, 1)[fill * fills.shape[1] + which]


def cell_canvas(
    view: View, images: Tensor, fills: Sequence[Tensor], grid: tuple[int, int] | None = None
) -> TokenCanvas | PixelCanvas:
    """A canvas over a grid of cells, in embedding space where that is exact, else in pixels.

    Args:
        view: The model.
        images: (B, 3, H, W) model inputs.
        fills: One or more sets of fills, shaped as the images.
        grid: Rows and columns; the model's own grid by default.
    """
    size = (images.shape[2], images.shape[3])
    native = view.grid_at(size)
    if view.blocks is not None and grid in (None, native) and embeds_patches_apart(view, size):
        return TokenCanvas(view, images, fills)
    return PixelCanvas(view, images, fills, grid_labels(size, grid or native))


def grid_labels(size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(H, W): the cell every pixel belongs to, row by row; cells differ by a pixel where the grid does not fit.

    Example:
        >>> grid_labels((2, 4), (1, 2)).tolist()
        [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    if grid[0] > size[0] or grid[1] > size[1] or min(grid) < 1:
        raise InputError(f"a grid of {grid[0]} x {grid[1]} cells does not fit {size[0]} x {size[1]} pixels")
    rows, columns = (torch.arange(pixels) * cells // pixels for pixels, cells in zip(size, grid))
    return rows[:, None] * grid[1] + columns


def embeds_patches_apart(view: View, size: tuple[int, int]) -> bool:
    """Whether each patch is embedded by itself, so that mixing embeddings is mixing patches: tried once a size."""
    return view.memo.once("perturb/canvas: apart", size, lambda: _mixes(view, size, view.grid_at(size)))


def _mixes(view: View, size: tuple[int, int], grid: tuple[int, int]) -> bool:
    """Whether two pictures, mixed by patches, embed as their embeddings mixed."""
    if size[0] % grid[0] or size[1] % grid[1]:
        return False
    one, other = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    labels = grid_labels(size, grid)
    shown = torch.rand(grid[0] * grid[1], generator=torch.Generator().manual_seed(1)) < 0.5
    mixed = torch.where(shown[labels], one, other)
    with torch.no_grad(), torch.autocast(view.device.type, enabled=False):
        a, b, c = view.embed(torch.stack([one, other, mixed]))
    prefix = a.shape[0] - len(shown)
    mask = torch.cat([shown.new_ones(prefix), shown]).to(a.device)
    error = (torch.where(mask[:, None], a, b) - c).abs().max()
    return bool(error <= (1e-4 if a.dtype in (torch.float32, torch.float64) else 5e-2) * c.abs().max())
