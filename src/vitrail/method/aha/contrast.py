"""From an order to magnitudes: the power of a map whose sum grows, region by region, as the answer does.

What AHA learns by, insertion and deletion, looks at the order of a map and at nothing else. How much higher one region
is than another is left to chance, though everybody who looks at the picture reads it. MDA solves that picture by
picture; here one number is found for an explainer, on held-out pictures, and costs nothing afterwards.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.method.aha.objective import Grid

POWERS = tuple(2 ** (i / 8) for i in range(-16, 33))
"""From a quarter to 16, each an eleventh higher than the one before."""


def brought(curves: Tensor) -> Tensor:
    """(B, 2, S) answers of deletion and insertion, up to all regions -> (B, S) the share that the best regions bring.

    What is missing without them and what is there with them alone, in the mean, as shares of the way from the picture
    that is wholly hidden to the whole one; neither ever turns back.

    Example:
        >>> brought(torch.tensor([[[0.5, 0.1], [0.9, 0.9]]])).tolist()
        [[0.75, 1.0]]
    """
    deletion, insertion = curves.unbind(1)
    hidden, whole = deletion[:, -1:], insertion[:, -1:]
    way = torch.stack([whole - deletion, insertion - hidden]) / (whole - hidden).clamp_min(1e-6)
    return way.clamp(0, 1).cummax(2).values.mean(0)


def held(regions: Tensor, order: Tensor, counts: Tensor) -> Tensor:
    """(B, K) values of regions, (B, K) their order, (S,) counts -> (B, S) the share of the sum in the first of them."""
    sums = regions.gather(1, order).cumsum(1)
    return sums[:, counts - 1] / sums[:, -1:].clamp_min(1e-30)


def misfits(maps: Tensor, grid: Grid, counts: Tensor, shares: Tensor, powers: Sequence[float] = POWERS) -> Tensor:
    """(powers, B): how far each power of the maps is from the shares that their regions bring, in the mean.

    Args:
        maps: (B, H, W) between 0 and 1.
        grid: The regions.
        counts: (S,) numbers of regions, the last of them all.
        shares: (B, S) what the regions bring, of `brought`.
        powers: The powers.
    """
    maps, counts = maps.double(), counts.to(maps.device)
    order = grid.pool(maps).argsort(1, descending=True)
    found = [held(grid.pool(maps**power), order, counts) for power in powers]
    return (torch.stack(found) - shares.to(maps)).abs().mean(2)
