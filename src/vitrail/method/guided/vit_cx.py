"""ViT-CX: the image seen through its own feature maps, those that look alike taken together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn import functional as F

from vitrail.events import Passes
from vitrail.fields import PASSES, number, random_seed, value
from vitrail.method.base import MAP, SharedPasses, State, register
from vitrail.method.batch import Batch, clean_logits
from vitrail.method.cam.scores import clean_features
from vitrail.method.cells import asking
from vitrail.method.guided.tis import stretched
from vitrail.model import Need, View
from vitrail.perturb import Canvas, Responder

SEEN = 1e-6
"""A pixel that all masks together show less of is not shown: it gets 0, not the ratio of two roundings."""


@register(
    "vit_cx",
    paper="Xie et al. 2023",
    cost="2 forwards a mask, 1 forward",
    needs=(Need.FEATURES,),
)
@dataclass(frozen=True)
class ViTCX(SharedPasses):
    """Masks made of feature maps, weighted by what hiding the rest of the image does to the target's probability.

    Each feature map (a ViT's last block behind its first norm, a CNN's last one) is stretched to the image and to 0..1;
    maps that look alike are added up and stretched to 0..1 again. What a mask hides is replaced by faint noise, whose
    own effect is taken away again. Always runs at the model's own precision: these are small differences.

    Everything up to the masks is linear but for the stretching, so it is done on the model's grid; only the masked
    images and the last division are at the pixels.

    Attributes:
        threshold: Maps are put together as long as no two of them are farther apart: 1 - their cosine.
        masks: At most so many masks: beyond the threshold, where it leaves more.
        noise: Standard deviation of the noise, in normalised inputs.
        seed: Another seed draws other noise.
        normalise: Stretch each map to 0..1, as the evaluation of MDA does.
    """

    threshold: float = number(0.1, low=0, high=2)
    masks: int | None = number(None, low=1, high=100_000, cost=PASSES)
    noise: float = number(0.1, low=0, high=1000)
    seed: int = random_seed()
    normalise: bool = value(False, stage="render")

    pixels = True

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        masks = self.masks or 64  # data decide: some tens to some hundreds of masks
        return Passes(1 + (2 if self.noise else 1) * masks)

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        batch = batches[0]
        with torch.no_grad():
            masks = [grouped(maps, batch.size, self.threshold, self.masks) for maps in clean_features(view, batch)]
            generators = [batch.generator(i, self.seed) for i in range(len(batch))]
            seeds = [torch.randint(2**62, (len(own),), generator=draw) for own, draw in zip(masks, generators)]
            return [{MAP: own} for own in self.explain(view, batches, masks, seeds)]

    def render(self, state: State) -> Tensor:
        return stretched(state[MAP]) if self.normalise else state[MAP]

    def explain(
        self, view: View, batches: Sequence[Batch], masks: list[Tensor], seeds: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """The maps that some masks give, of each target.

        Args:
            view: The model.
            batches: The images, once for each target.
            masks: (n, rows, columns) of each image, on the model's grid.
            seeds: (n,) the seed of the noise that goes with each mask.
        """
        batch, counts = batches[0], [len(own) for own in masks]
        for own in batches:
            own.settle(view)
        canvas = NoisyCanvas(view, batch.images, masks[0].shape[1:], self.noise, torch.cat(seeds))
        ask = asking(canvas, batches)
        which = torch.arange(len(batch)).repeat_interleave(torch.tensor(counts)).to(batch.images.device)
        weights = self._weights(ask, batch, which, torch.cat(masks).flatten(1)).split(counts)
        above = [
            torch.stack([(w[:, k, None, None] * one).sum(0) for w, one in zip(weights, masks)])
            for k in range(len(batches))
        ]
        below = torch.stack([one.sum(0) for one in masks])
        *above, below = F.interpolate(torch.stack([*above, below]), batch.size, mode="bilinear")
        number = below.new_tensor(counts)[:, None, None]
        return tuple(torch.where(below > SEEN, one / below / number, 0) for one in above)

    def _weights(self, ask: Responder, batch: Batch, which: Tensor, shown: Tensor) -> Tensor:
        """(M, targets) for each mask: p(seen through it) - p(all seen, but for the noise) + p(the image itself)."""
        copies = torch.arange(2 * len(which), device=which.device)
        if self.noise == 0:
            return ask(which, shown, copies[::2])
        scores = ask(which[copies // 2], lambda part: shown[copies[part] // 2], copies)
        clean = ask.read(clean_logits(batch), torch.arange(len(batch), device=which.device))
        return scores[::2] - scores[1::2] + clean[which]


class NoisyCanvas(Canvas):
    """Images seen through soft masks, with noise where these hide.

    A mask is a share between 0 and 1 for each cell of a grid, stretched to the image. The fill 2 i puts the noise i in
    the place of what is hidden, 2 i + 1 lays it over that.

    Args:
        view: The model.
        images: (B, 3, H, W) model inputs.
        grid: Rows and columns of the masks.
        strength: Standard deviation of the noise.
        seeds: The seed of each noise.
    """

    def __init__(self, view: View, images: Tensor, grid: torch.Size, strength: float, seeds: Tensor) -> None:
        self.view, self.images, self.cells, self.weight = view, len(images), grid.numel(), images[0].numel()
        self._images, self._grid, self._strength, self._seeds = images, grid, strength, seeds.tolist()

    def logits(self, which: Tensor, shown: Tensor, fill: Tensor | int = 0) -> Tensor:
        images = self._images[which]
        masks = shown.to(images.dtype).view(len(which), 1, *self._grid)
        masks = F.interpolate(masks, images.shape[2:], mode="bilinear")
        number = torch.as_tensor(fill, device=which.device).expand(len(which))
        over = (number % 2 == 1).view(-1, 1, 1, 1)
        noise = (1 - masks) * self._noise(number // 2) if self._strength else 0
        return self.view.logits(torch.where(over, images, images * masks) + noise)

    def _noise(self, number: Tensor) -> Tensor:
        drawn, place = number.unique(return_inverse=True)
        generators = (torch.Generator().manual_seed(self._seeds[i]) for i in drawn.tolist())
        noise = torch.stack([torch.randn(self._images.shape[1:], generator=own) for own in generators])
        return self._strength * noise.to(self._images)[place]


def grouped(maps: Tensor, size: tuple[int, int], threshold: float, most: int | None = None) -> Tensor:
    """(channels, rows, columns) features -> (n, rows, columns): masks that are in 0..1 once stretched to an image.

    Channels that are the same everywhere tell nothing, and are left out. Groups come in the order of their first
    channel.

    Args:
        maps: The features.
        size: The image's height and width.
        threshold: See `ViTCX`.
        most: How many masks there may be.
    """
    masks = unit(maps, size)
    labels = alike(cosines(masks, size), threshold, most)
    groups = masks.new_zeros(int(labels.max(initial=-1)) + 1, len(masks))
    groups[torch.from_numpy(labels), torch.arange(len(masks))] = 1
    return unit((groups @ masks.flatten(1)).view(-1, *maps.shape[1:]), size)


def unit(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps that range from 0 to 1 once stretched to an image; those that range nowhere are left out."""
    if len(maps) == 0:
        return maps
    rows, columns = (_corners(cells, pixels).to(maps) for cells, pixels in zip(maps.shape[1:], size))
    corners = rows @ maps @ columns.T
    low, high = corners.amin((1, 2)), corners.amax((1, 2))
    rounding = 8 * torch.finfo(maps.dtype).eps * torch.maximum(low.abs(), high.abs())
    maps, low, high = (x[high - low > rounding] for x in (maps, low, high))
    return (maps - low[:, None, None]) / (high - low)[:, None, None]


def cosines(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, n) cosines between maps stretched to an image, from products on the grid."""
    rows, columns = (_overlaps(cells, pixels).to(maps.device) for cells, pixels in zip(maps.shape[1:], size))
    wide = maps.double()
    products = wide.flatten(1) @ (rows @ wide @ columns).flatten(1).T
    lengths = products.diagonal().sqrt()
    return products / (lengths[:, None] * lengths)


def _weights(cells: int, pixels: int) -> Tensor:
    """(pixels, cells): what each cell gives to each pixel along one side of an image."""
    return F.interpolate(torch.eye(cells, dtype=torch.float64)[:, None], pixels, mode="linear")[:, 0].T


def _overlaps(cells: int, pixels: int) -> Tensor:
    """(cells, cells): the product of each two cells' weights, summed over one side of an image."""
    weights = _weights(cells, pixels)
    return weights.T @ weights


def _corners(cells: int, pixels: int) -> Tensor:
    """(corners, cells): the weights of the first and last pixel between each two neighbouring cells.

    From one to the other a stretched map rises or falls steadily: its extremes are among them.
    """
    between = ((torch.arange(pixels) + 0.5) * cells / pixels - 0.5).clamp(0, cells - 1).floor()
    new, end = torch.tensor([True]), between[1:] != between[:-1]
    return _weights(cells, pixels)[torch.cat([new, end]) | torch.cat([end, new])]


def alike(cosines: Tensor, threshold: float, most: int | None = None) -> np.ndarray:
    """(n,) groups in which no two are farther apart than ``threshold``, or ``most`` groups, by complete linkage."""
    if len(cosines) < 2:
        return np.zeros(len(cosines), dtype=np.int64)
    distances = (1 - cosines).clamp_min(0).cpu().numpy()
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "complete")
    found = fcluster(tree, threshold, "distance")
    if most is not None and found.max() > most:
        found = fcluster(tree, most, "maxclust")
    _, first, place = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[place]
