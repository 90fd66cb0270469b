"""Does a map lie on the object? Maps at the size of the picture, against masks of what is true."""

from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from vitrail.errors import InputError


def _checked(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    if maps.shape != masks.shape or maps.ndim != 3:
        raise InputError(
            f"maps and masks must both be (images, height, width), but {tuple(maps.shape)} and {tuple(masks.shape)} "
            "were given; enlarge maps with Explanation.upsample"
        )
    return maps.double(), masks.bool().to(maps.device)


def pointing_game(maps: Tensor, masks: Tensor, tolerance: float = 0.0) -> Tensor:
    """(B, H, W) -> (B,): whether the highest point lies on the mask, 1 or 0 (Zhang et al. 2018).

    Where several points are equally high, the share of them that hit. An empty mask cannot be hit.

    Args:
        maps: The maps.
        masks: What counts as a hit.
        tolerance: A miss counts as a hit at a distance below so many pixels (15 in the authors' protocol); 0 for none.
    """
    maps, masks = _checked(maps, masks)
    peaks = maps == maps.amax((1, 2), keepdim=True)
    hits = masks if tolerance <= 0 else torch.stack([_within(mask, tolerance) for mask in masks])
    return ((peaks & hits).sum((1, 2)) / peaks.sum((1, 2))).float()


def _within(mask: Tensor, tolerance: float) -> Tensor:
    """The points that are less than ``tolerance`` pixels away from the mask."""
    from scipy.ndimage import distance_transform_edt

    if not mask.any():
        return mask
    distances = distance_transform_edt((~mask).cpu().numpy())
    return torch.from_numpy(distances < tolerance).to(mask.device)


def energy_pointing_game(maps: Tensor, masks: Tensor) -> Tensor:
    """(B, H, W) -> (B,): the share of the absolute values that lies on the mask; 0 for an empty map."""
    maps, masks = _checked(maps, masks)
    return _share(maps.abs(), masks)


def region_attribution(maps: Tensor, masks: Tensor, kernel: int = 11, sigma: float = 2.0) -> Tensor:
    """(B, H, W) -> (B,): the share of the positive part, blurred, that lies on the mask (VAR); 0 for an empty map.

    Args:
        maps: The maps.
        masks: The region.
        kernel: Width of the blur in pixels, odd; 1 for none.
        sigma: Its standard deviation, which the paper does not tell.
    """
    maps, masks = _checked(maps, masks)
    return _share(blurred(maps.relu(), kernel, sigma), masks)


def _share(values: Tensor, masks: Tensor) -> Tensor:
    total = values.sum((1, 2))
    inside = (values * masks).sum((1, 2))
    return torch.where(total > 0, inside / total.clamp_min(torch.finfo(values.dtype).tiny), 0).float()


def blurred(maps: Tensor, kernel: int, sigma: float) -> Tensor:
    """(B, H, W) blurred by a Gaussian of a width in pixels, odd; 1 for none."""
    if kernel == 1:
        return maps
    if kernel < 1 or kernel % 2 == 0 or sigma <= 0:
        raise InputError(f"a blur needs an odd kernel and a positive sigma, but {kernel} and {sigma} were given")
    if kernel // 2 >= min(maps.shape[1:]):  # the picture is mirrored at its edges once
        height, width = maps.shape[1:]
        raise InputError(f"a kernel of {kernel} pixels is too wide for maps of {height} x {width}; give a smaller one")
    found: Tensor = gaussian_blur(maps[:, None], [kernel] * 2, [sigma] * 2)[:, 0]
    return found


class Overlap(NamedTuple):
    """How two regions agree, (B,) each."""

    iou: Tensor
    precision: Tensor
    recall: Tensor
    f1: Tensor


def region_overlap(
    maps: Tensor, masks: Tensor, threshold: str | float = "mean", counted: Tensor | None = None
) -> Overlap:
    """(B, H, W) -> how well the points above a threshold cover the mask; 0 where there is nothing to divide by.

    Args:
        maps: The maps.
        masks: The region.
        threshold: ``mean``, of each map, or a number.
        counted: The points that count, all by default.
    """
    maps, masks = _checked(maps, masks)
    if isinstance(threshold, str) and threshold != "mean":
        raise InputError(f"a threshold must be 'mean' or a number, but {threshold!r} was given")
    level = maps.mean((1, 2), keepdim=True) if threshold == "mean" else float(threshold)
    found = maps > level if counted is None else (maps > level) & counted.to(maps.device)
    both = (found & masks).sum((1, 2)).double()
    sizes = [region.sum((1, 2)).double() for region in (found | masks, found, masks)]
    iou, precision, recall = (torch.where(size > 0, both / size.clamp_min(1), 0).float() for size in sizes)
    return Overlap(iou, precision, recall, (2 * both / (sizes[1] + sizes[2]).clamp_min(1)).float())


def relevance_rank(maps: Tensor, masks: Tensor) -> Tensor:
    """(B, H, W) -> (B,): of as many highest points as the mask has, the share that lies on it; 0 for an empty mask.

    Points as high as the last one that counts are counted by their share, so their order does not matter.
    """
    maps, masks = (x.flatten(1) for x in _checked(maps, masks))
    size = masks.sum(1, keepdim=True)
    last = maps.sort(1, descending=True).values.gather(1, (size - 1).clamp_min(0))
    above, level = maps > last, maps == last
    left = size - above.sum(1, keepdim=True)
    sure = (above & masks).sum(1, keepdim=True)
    shared = left * (level & masks).sum(1, keepdim=True) / level.sum(1, keepdim=True)
    return torch.where(size > 0, (sure + shared) / size.clamp_min(1), 0).squeeze(1).float()


def average_precision(maps: Tensor, masks: Tensor) -> Tensor:
    """(B, H, W) -> (B,): the area under the precision-recall curve of the mask's points, in steps; 0 without any.

    Only the order of the values matters; equal values make one step.
    """
    maps, masks = (x.flatten(1) for x in _checked(maps, masks))
    return torch.stack([_average_precision(values, truth) for values, truth in zip(maps, masks)])


def _average_precision(values: Tensor, truth: Tensor) -> Tensor:
    order = values.argsort(descending=True, stable=True)
    values, hits = values[order], truth[order].double().cumsum(0)
    steps = torch.cat([values[1:] != values[:-1], values.new_ones(1, dtype=torch.bool)])  # the last of equal values
    hits, counts = hits[steps], torch.arange(1, len(values) + 1, device=values.device)[steps]
    gained = hits.diff(prepend=hits.new_zeros(1))
    return ((gained * hits / counts).sum() / hits[-1].clamp_min(1)).float()
