"""How maps get the size of the picture: rules by name, so that a stored map can be drawn without its method."""

from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.perturb import grid_labels

Enlargement = Literal["bilinear", "cells", "shifted_cells", "shifted_cells_smooth"]
"""``bilinear``; ``cells`` stay whole; the last two are those of MDA's authors, see `vitrail.method.mda.authors`."""


def enlarge(maps: Tensor, size: tuple[int, int], rule: Enlargement) -> Tensor:
    """(B, rows, columns) -> (B, height, width); bilinearly where a map has more cells than the picture has pixels.

    Example:
        >>> import torch
        >>> enlarge(torch.tensor([[[1.0, 2.0]]]), (2, 4), "cells")[0].tolist()
        [[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]
    """
    if rule not in get_args(Enlargement):
        raise InputError(f"maps are enlarged by one of {', '.join(get_args(Enlargement))}, but {rule!r} was given")
    grid = (maps.shape[1], maps.shape[2])
    if rule == "bilinear" or grid[0] > size[0] or grid[1] > size[1]:
        return F.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    if rule == "cells":
        return maps.flatten(1)[:, grid_labels(size, grid).to(maps.device)]
    from vitrail.method.mda import authors

    whole = maps.flatten(1)[:, authors.shifted_labels(size, grid).to(maps.device)]
    return whole if rule == "shifted_cells" else authors.smoothed(whole, grid)
