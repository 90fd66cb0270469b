"""How alike two maps are, also as pictures: structural similarity, and histograms of oriented gradients."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.metric.faithfulness.masked import unit
from vitrail.metric.similarity import cosine, pearson, ranked

Similarity = Literal["spearman", "pearson", "cosine", "ssim", "hog"]

WINDOW, SIGMA = 11, 1.5
"""Width of the window of SSIM in pixels, and the standard deviation of its weights."""


def alike(one: Tensor, other: Tensor, similarity: Similarity) -> Tensor:
    """(B, H, W), (B, H, W) -> (B,): 1 for maps that differ in nothing but their scale, also for constant ones.

    Args:
        one: The maps.
        other: Those to compare with.
        similarity: ``ssim`` and ``hog`` compare them as pictures, brought to 0 to 1; of the features of ``hog``
            Spearman's correlation is taken.

    Example:
        >>> alike(torch.eye(4)[None], 2 * torch.eye(4)[None], "pearson").item()
        1.0
    """
    return likeness(one, similarity)(other)


def likeness(one: Tensor, similarity: Similarity) -> Callable[[Tensor], Tensor]:
    """`alike` for maps that are compared with many others: what it takes of these is calculated once."""
    one = _scaled(one)
    features = _features(one, similarity)
    compare = {"ssim": ssim, "cosine": cosine}.get(similarity, pearson)

    def compared(other: Tensor) -> Tensor:
        other = _scaled(other)
        found = compare(features, _features(other, similarity))
        return torch.where((one == other).flatten(1).all(1), 1, found)

    return compared


def _scaled(maps: Tensor) -> Tensor:
    maps = maps.double()
    return maps / maps.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)


def _features(maps: Tensor, similarity: Similarity) -> Tensor:
    """What of the maps is compared: pictures, or rows of numbers, for Spearman's correlation their ranks."""
    if similarity == "ssim":
        return unit(maps)
    flat = hog(unit(maps)) if similarity == "hog" else maps.flatten(1)
    return ranked(flat) if similarity in ("spearman", "hog") else flat


def ssim(one: Tensor, other: Tensor) -> Tensor:
    """(B, H, W), (B, H, W) -> (B,): the structural similarity of maps between 0 and 1 (Wang et al. 2004).

    A Gaussian window of 11 x 11 pixels; places where it does not fit are left out, and variances are those of a sample
    of 121, as scikit-image has it with ``gaussian_weights=True, data_range=1``.

    Example:
        >>> ssim(torch.eye(16)[None], torch.eye(16)[None]).item()
        1.0
    """
    if one.shape != other.shape or one.ndim != 3 or min(one.shape[1:]) < WINDOW:
        raise InputError(
            f"ssim compares maps (images, height, width) of {WINDOW} x {WINDOW} pixels or more, "
            f"but {tuple(one.shape)} and {tuple(other.shape)} were given"
        )
    one, other = one.double(), other.double()
    moments = _smoothed(torch.stack([one, other, one * one, other * other, one * other]))
    mean, mean_other, square, square_other, product = moments.unbind()
    sample = WINDOW**2 / (WINDOW**2 - 1)
    variances = sample * (square - mean**2 + square_other - mean_other**2)
    covariance = sample * (product - mean * mean_other)
    tiny, small = 0.01**2, 0.03**2
    light = (2 * mean * mean_other + tiny) / (mean**2 + mean_other**2 + tiny)
    return (light * (2 * covariance + small) / (variances + small)).mean((1, 2))


def _smoothed(maps: Tensor) -> Tensor:
    """(M, B, H, W) averaged under a Gaussian window, where all of it lies inside."""
    places = torch.arange(WINDOW, device=maps.device, dtype=maps.dtype) - WINDOW // 2
    weights = torch.exp(-(places**2) / (2 * SIGMA**2))
    weights = weights / weights.sum()
    flat = F.conv2d(maps.flatten(0, 1)[:, None], weights.view(1, 1, -1, 1))
    return F.conv2d(flat, weights.view(1, 1, 1, -1)).view(*maps.shape[:2], flat.shape[2], -1)


def hog(maps: Tensor, cell: int = 16, block: int = 3, orientations: int = 9) -> Tensor:
    """(B, H, W) -> (B, N): histograms of the gradient's directions, cell by cell (Dalal & Triggs 2005).

    A pixel counts by the length of its gradient, in one of the directions between 0 and 180 degrees. Cells are put
    together in overlapping blocks, each brought to length 1, cut off at 0.2 and brought to length 1 again (L2-Hys).
    Cells that do not fit at the right and below are left out.

    Args:
        maps: The maps.
        cell: Side of a cell in pixels.
        block: Side of a block in cells.
        orientations: How many directions are told apart.

    Example:
        >>> hog(torch.rand(2, 64, 64)).shape
        torch.Size([2, 324])
    """
    if maps.ndim != 3 or min(maps.shape[1:]) < cell * block:
        raise InputError(
            f"hog needs maps (images, height, width) of {cell * block} x {cell * block} pixels or more, "
            f"but {tuple(maps.shape)} was given"
        )
    maps = maps.double()
    down, across = torch.zeros_like(maps), torch.zeros_like(maps)
    down[:, 1:-1] = maps[:, 2:] - maps[:, :-2]
    across[:, :, 1:-1] = maps[:, :, 2:] - maps[:, :, :-2]
    angles = torch.rad2deg(torch.atan2(down, across)) % 180
    # A whole turn is none: what rounding lifts to 180 degrees belongs to the first direction.
    direction = (angles * orientations / 180).floor().long() % orientations
    strength = torch.hypot(down, across)
    histograms = torch.stack(
        [F.avg_pool2d(torch.where(direction == k, strength, 0), cell) for k in range(orientations)], -1
    )
    blocks = histograms.unfold(1, block, 1).unfold(2, block, 1)  # (B, rows, columns, orientations, block, block)
    flat = blocks.permute(0, 1, 2, 4, 5, 3).flatten(3)
    return _unit_length(_unit_length(flat).clamp_max(0.2)).flatten(1)


def _unit_length(values: Tensor) -> Tensor:
    """The last axis brought to length 1; zeros stay zeros."""
    return values / (values.square().sum(-1, keepdim=True) + math.pow(1e-5, 2)).sqrt()
