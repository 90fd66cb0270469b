"""From feature maps and a class to a map of the picture: the part of an explainer that learns."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

FINEST = 4
"""The finest level of the decoder has a cell for so many pixels a side."""


class Decoder(nn.Module):
    """A DPT-style decoder that is told the class at every scale.

    Feature maps are projected, resized to their levels, and fused from coarse to fine by residual units. The finest
    level has half the channels, as in the paper, and sees the picture itself besides.

    Args:
        widths: Channels of the feature maps, finest first.
        classes: How many classes there are.
        channels: Width of the decoder.
        embedding: Width of a class's embedding.
        image_branch: Whether the finest level sees the picture.
    """

    def __init__(
        self, widths: Sequence[int], *, classes: int, channels: int, embedding: int, image_branch: bool
    ) -> None:
        super().__init__()
        levels = max(len(widths), 1)
        wide = [channels // 2] + [channels] * (levels - 1)
        self.embedding = nn.Embedding(classes, embedding)
        nn.init.zeros_(self.embedding.weight)  # a class that training never shows stays neutral
        # A projection of features and embedding side by side is the sum of a projection of each: no copies are made.
        self.project = nn.ModuleList(nn.Conv2d(width, own, 1) for width, own in zip(widths, wide))
        self.condition = nn.ModuleList(nn.Linear(embedding, own, bias=False) for own in wide)
        self.enter = nn.ModuleList(Unit(own) for own in wide[:-1])  # nothing is fused at the coarsest level
        self.leave = nn.ModuleList(Unit(own) for own in wide)
        self.narrow = nn.ModuleList(
            nn.Identity() if fine == coarse else nn.Conv2d(coarse, fine, 1) for fine, coarse in pairwise(wide)
        )
        self.branch = ImageBranch(wide[0]) if image_branch else None
        self.head = head(wide[0])

    def forward(self, features: Sequence[Tensor], images: Tensor, classes: Tensor) -> Tensor:
        """(B, H, W) between 0 and 1, from (B, C, rows, columns) features, (B, 3, H, W) images and (B,) classes."""
        size = (images.shape[-2], images.shape[-1])
        about = self.embedding.weight[classes]
        fused: Tensor | None = None
        for level, cells in reversed(list(enumerate(level_sizes([tuple(f.shape[-2:]) for f in features], size)))):
            found = self.condition[level](about)[..., None, None]
            if features:
                found = resized(F.gelu(self.project[level](features[level]) + found), cells)
            if level == 0 and self.branch is not None:
                found = found + resized(self.branch(images), cells)
            if fused is not None:
                found = self.enter[level](found) + resized(self.narrow[level](fused), cells)
            fused = self.leave[level](found)
        return resized(self.head(fused), size)[:, 0].sigmoid()


class Unit(nn.Module):
    """A residual convolution unit, as DPT has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The same, and what two convolutions see in it."""
        changed: Tensor = self.second(F.gelu(self.first(F.gelu(x))))
        return x + changed


class ImageBranch(nn.Module):
    """What two convolutions see in the picture itself: tokens know little of where exactly an edge is."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels // 2, 3, stride=2, padding=1)
        self.second = nn.Conv2d(channels // 2, channels, 3, stride=2, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C, H/4, W/4)."""
        return F.gelu(self.second(F.gelu(self.first(images))))


def head(channels: int) -> nn.Module:
    """(B, C, rows, columns) -> (B, 1, rows, columns): a depthwise-separable and a plain convolution, then one value.

    Groups are normalised where the paper normalises batches: refinement works on one image.
    """
    half = channels // 2
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.GroupNorm(math.gcd(8, channels), channels),
        nn.GELU(),
        nn.Conv2d(channels, half, 3, padding=1, bias=False),
        nn.GroupNorm(math.gcd(8, half), half),
        nn.GELU(),
        nn.Conv2d(half, 1, 1),
    )


def level_sizes(grids: Sequence[tuple[int, ...]], size: tuple[int, int]) -> list[tuple[int, int]]:
    """Rows and columns of the decoder's levels, finest first.

    Features at several resolutions keep theirs; where all have the same, as in a transformer, they are spread over
    strides of 4, 8, 16 and 32 pixels. The finest level has a cell for 4 x 4 pixels, or finer ones if the features do.

    Args:
        grids: Rows and columns of the feature maps, finest first.
        size: Height and width of the picture.
    """
    strides = [FINEST * 2**level for level in range(max(len(grids), 1))]
    even = [(math.ceil(size[0] / stride), math.ceil(size[1] / stride)) for stride in strides]
    if len(set(grids)) <= 1:
        return even
    own = [(rows, columns) for rows, columns in grids]
    return [(max(own[0][0], even[0][0]), max(own[0][1], even[0][1])), *own[1:]]


def resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, C, rows, columns) made larger or smaller, smoothly."""
    if tuple(x.shape[-2:]) == size:
        return x
    return F.interpolate(x, size, mode="bilinear", align_corners=False)
