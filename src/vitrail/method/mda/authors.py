"""What the authors' code of MDA does otherwise than the paper; used by ``mda(compat=authors)`` alone."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import resize

from vitrail.method.mda.authors_qp import curve_programme, solve
from vitrail.method.mda.magnitude import Array, concave_steps, monotone, rank_shares
from vitrail.method.mda.search import Found
from vitrail.perturb import PixelCanvas, Responder, ranks_of

if TYPE_CHECKING:
    from vitrail.method.batch import Batch
    from vitrail.method.mda.method import MDA
    from vitrail.model import View

MOST_TRIED = 28
RAW_STOP = 0.9
"""Insertion also stops where the probability itself, not its share of the clean one, reaches this."""

STABLE = True
"""Whether pixels of a patch have a certain order. Their code leaves it to numpy's default routine, which differs by
machine; without this switch ours does too, to be compared with theirs on one machine."""


def steps_of(size: tuple[int, int]) -> int:
    """The steps of the second pass: as many pixels at a time as the image is high."""
    return -(-size[0] * size[1] // size[0])


def shifted_labels(size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(H, W) their segments: the patch grid moved by one pixel, so that the first row and column are wider by one."""
    rows, columns = (
        ((torch.arange(pixels) - 1) // (pixels // cells)).clamp(0, cells - 1) for pixels, cells in zip(size, grid)
    )
    return rows[:, None] * grid[1] + columns


def blurred_seed(heat: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(B, H, W) -> (B, rows, columns): the seed enlarged, made small again, enlarged, and averaged over segments."""
    enlarged = F.interpolate(heat[:, None], size, mode="bilinear")
    small = resize(enlarged, list(grid), antialias=True)
    pixels = F.interpolate(small, size, mode="nearest-exact").flatten(1).abs()
    labels = shifted_labels(size, grid).flatten().to(heat.device)
    sums = pixels.new_zeros(len(heat), grid[0] * grid[1]).index_add_(1, labels, pixels)
    return (sums / labels.bincount()).view(len(heat), *grid)


def smoothed(whole: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, H, W) maps of whole segments -> the same made as small as the grid and enlarged again, both smoothly."""
    small = resize(whole[:, None], list(grid), antialias=True)
    return F.interpolate(small, whole.shape[1:], mode="bilinear")[:, 0]


def magnitudes(method: "MDA", view: "View", batch: "Batch", fills: list[Tensor], found: Found) -> NDArray[np.float32]:
    """(B, N) sparse magnitudes in the order of importance, by a second pass in steps of pixels."""
    size = batch.size
    labels = shifted_labels(size, method.shape(view, size)).flatten().to(batch.images.device)
    pixels = labels.bincount()[found.order].double().cpu().numpy()
    n = found.order.shape[1]
    rank = rank_shares(n)
    if method.tau < 1:
        insertion, deletion = _curves(view, batch, fills, _pixel_ranks(ranks_of(found.order)[:, labels]))
    sparse = []
    for i, share in enumerate(1 / pixels):
        b, z, o = (float(x) for x in (found.insertion[i, 0], found.deletion[i, -1], found.deletion[i, 0]))
        if method.tau == 1:
            steps = early_steps(monotone(found.insertion[i].double().cpu().numpy(), b, o, rising=True), rising=True)
            values = steps * share
        else:
            rising = monotone(insertion[i], b, o, rising=True)
            falling = monotone(deletion[i], z, o, rising=False)
            mean = (rising + 1 - falling) / 2
            curve = 1 - np.interp(np.linspace(0, 1, n + 1), np.linspace(0, 1, len(mean)), mean)
            steps = early_steps(curve, rising=False)
            values = steps * share + steps * rank
        sparse.append(values)
    return np.stack(sparse).astype(np.float32)


def early_steps(curve: Array, rising: bool) -> Array:
    """(N,) the sizes of the steps of the curve fitted where their solver stops, or the exact one where it does not."""
    found = solve(curve_programme(curve, rising))
    if found is None:
        return concave_steps(curve if rising else 1 - curve)
    return np.diff(found if rising else -found).clip(0)  # the tolerance may leave one just below zero


def _pixel_ranks(patch_ranks: Tensor) -> Tensor:
    """(B, H W) the place of every pixel; within a patch the last pixel comes first, or as numpy happens to have it."""
    if STABLE:
        return ranks_of(patch_ranks.shape[1] - 1 - patch_ranks.flip(1).argsort(dim=1, stable=True))
    order = np.flip(np.argsort(-patch_ranks.cpu().numpy().astype(np.float32), axis=1), axis=1)
    return ranks_of(torch.from_numpy(order.copy()).to(patch_ranks.device))


def _curves(view: "View", batch: "Batch", fills: list[Tensor], ranks: Tensor) -> list[NDArray[np.float64]]:
    """(B, K + 1) responses: the first pixels over the blurred image, and all but them over the blank one."""
    canvas = PixelCanvas(view, batch.images, fills)
    ask = Responder(canvas, batch.target, wide=False, heard=[batch.heard])
    steps = steps_of(batch.size)
    which = torch.arange(len(batch), device=ranks.device).repeat_interleave(steps + 1)
    k = torch.arange(steps + 1, device=ranks.device).repeat(len(batch)) * batch.size[0]
    curves = []
    for fill in (0, 1):

        def shown(part: slice, fill: int = fill) -> Tensor:
            first = ranks[which[part]] < k[part, None]
            return first if fill == 0 else ~first

        curves.append(ask(which, shown, fill).view(len(batch), -1).double().cpu().numpy())
    return curves
