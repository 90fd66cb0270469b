"""Whether what is read at a cell of the grid lies there in the picture: change patches and see which cells answer."""

from collections.abc import Sequence

import torch
from torch import Tensor

FARTHEST = 0.5
"""A grid is believed when answers lie less than this share of the distance at random from the patches changed."""
CLEAR = 0.1
"""So near, a few patches are enough to tell; one random grid in thirty passes for a true one by six patches alone."""
_ROUNDS = 20
_FAINT = 1e-5
"""An answer so far below the loudest one anywhere is rounding."""


def one_patch_changed(
    image: Tensor, grid: tuple[int, int], wanted: Sequence[tuple[int, int]] | None = None
) -> tuple[Tensor, Tensor]:
    """Copies of a picture, the pixels of another cell replaced in each: some far apart, some neighbours.

    Args:
        image: (1, 3, H, W).
        grid: Rows and columns of cells.
        wanted: The cells; six by default.

    Returns:
        (P, 3, H, W) copies, and the (P, 2) rows and columns of the cells.
    """
    (rows, columns), (height, width) = grid, image.shape[2:]
    if wanted is None:
        top, left, bottom, right = rows // 4, columns // 4, 3 * rows // 4, 3 * columns // 4
        wanted = [(top, left), (top, left + 1), (top + 1, left), (bottom, right), (top, right), (bottom, left)]
    cells = list(dict.fromkeys((min(r, rows - 1), min(c, columns - 1)) for r, c in wanted))
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(1)).to(image) * 2
    copies = []
    for row, column in cells:
        copy = image.clone()
        box = (
            ...,
            slice(row * height // rows, max((row + 1) * height // rows, row * height // rows + 1)),
            slice(column * width // columns, max((column + 1) * width // columns, column * width // columns + 1)),
        )
        copy[box] = noise[box]
        copies.append(copy)
    return torch.cat(copies), torch.tensor(cells)


def spread(grid: tuple[int, int], count: int) -> list[tuple[int, int]]:
    """At most ``count`` cells of a grid, any of them, each once."""
    rows, columns = grid
    chosen = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(2))[:count].tolist()
    return [(cell // columns, cell % columns) for cell in chosen]


def lie_there(features: Tensor, cells: Tensor) -> bool:
    """Whether each changed patch moved the features of its own cell more than patches elsewhere did.

    Args:
        features: (1 + P, channels, rows, columns), of the picture and of its copies.
        cells: (P, 2), the cell changed in each copy.
    """
    return displacement(features, cells) <= FARTHEST


def displacement(features: Tensor, cells: Tensor) -> float:
    """How far the answers lie from the patches changed, as a share of the distance at random; see `lie_there`."""
    answers = (features[1:] - features[:1]).double().norm(dim=1)
    places = (cells[:, 0] * answers.shape[2] + cells[:, 1]).to(answers.device)
    seen = answers.flatten(1)[:, places].cpu()  # (patch, cell)
    loudest = float(answers.max())
    if not bool(torch.isfinite(answers).all()) or loudest == 0:
        return 0.0  # nothing answers: nothing speaks against it
    if float(seen.max()) <= _FAINT * loudest:
        return 1.0  # all answers lie elsewhere
    for _ in range(_ROUNDS):  # strong patches and excitable cells count like the others
        seen = seen / seen.sum(1, keepdim=True).clamp_min(1e-300)
        seen = seen / seen.sum(0, keepdim=True).clamp_min(1e-300)
    away = (cells[:, None] - cells[None]).double().norm(dim=-1)
    found = away[seen.argmax(0), torch.arange(len(cells))]
    return float(found.mean() / away.mean()) if len(cells) > 1 else 0.0
