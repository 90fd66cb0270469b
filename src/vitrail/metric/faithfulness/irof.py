"""Iterative removal of features (IROF): whole superpixels go, those with the highest mean first."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.fields import PASSES, number
from vitrail.metric.base import Metric, register, skip
from vitrail.metric.case import Case, Enlarge, Sign, Whose
from vitrail.model import full
from vitrail.perturb import Baseline, ImageMean, PixelCanvas, grid_labels, order_of, ranks_of

IMAGE_MEAN = ImageMean()

XYZ = (
    (0.412453 / 0.95047, 0.357580 / 0.95047, 0.180423 / 0.95047),
    (0.212671, 0.715160, 0.072169),
    (0.019334 / 1.08883, 0.119193 / 1.08883, 0.950227 / 1.08883),
)
"""Linear sRGB -> CIE XYZ, as shares of what daylight has."""


def lab(pictures: Tensor) -> Tensor:
    """(B, 3, H, W) sRGB from 0 to 1 -> CIE L*a*b* under daylight (D65), where distances are those the eye sees.

    Example:
        >>> lab(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)).flatten().round().tolist()
        [53.0, 80.0, 67.0]
    """
    linear = torch.where(pictures <= 0.04045, pictures / 12.92, ((pictures + 0.055) / 1.055) ** 2.4)
    xyz = (linear[:, None] * linear.new_tensor(XYZ)[:, :, None, None]).sum(2)
    x, y, z = torch.where(xyz > 216 / 24389, xyz.clamp_min(1e-6) ** (1 / 3), (24389 / 27 * xyz + 16) / 116).unbind(1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1)


def slic(pictures: Tensor, segments: int = 100, compactness: float = 10.0, iterations: int = 10) -> Tensor:
    """Superpixels: k-means over colour and place, each pixel choosing among the nine nearest cells of a grid.

    Segments need not be connected. The same on every run and in every batch.

    Args:
        pictures: (B, 3, H, W) sRGB from 0 to 1.
        segments: About so many.
        compactness: How much place counts beside colour.
        iterations: Rounds of k-means; 0 leaves the grid.

    Returns:
        (B, H, W) labels from 0, none left out.

    Example:
        >>> halves = torch.zeros(1, 3, 6, 6)
        >>> halves[:, :, :, 2:] = 1
        >>> slic(halves, segments=2)[0, 0].tolist()
        [0, 0, 1, 1, 1, 1]
    """
    height, width = pictures.shape[2:]
    rows = min(height, max(1, round(math.sqrt(segments * height / width))))
    columns = min(width, max(1, round(segments / rows)))
    start = grid_labels((height, width), (rows, columns)).to(pictures.device)
    near = [_beside(start.flatten(), rows, columns, dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    scale = compactness * math.sqrt(rows * columns / (height * width))
    places = [torch.arange(n, device=pictures.device, dtype=pictures.dtype) for n in (height, width)]
    place = scale * torch.stack(torch.meshgrid(*places, indexing="ij"))
    features = torch.cat([lab(pictures), place.expand(len(pictures), -1, -1, -1)], 1).flatten(2)

    labels = start.flatten().expand(len(pictures), -1)
    centres, _ = means(features, labels, rows * columns)
    for i in range(iterations):
        if i:
            found, counts = means(features, labels, rows * columns)
            centres = torch.where(counts[:, None] > 0, found, centres)  # one that has lost all its pixels stays
        closest = torch.full_like(features[:, 0], torch.inf)
        for candidate in near:
            distance = (features - centres[:, :, candidate]).square().sum(1)
            labels = torch.where(distance < closest, candidate, labels)
            closest = torch.minimum(distance, closest)
    _, counts = means(features[:, :1], labels, rows * columns)
    numbers: Tensor = (counts > 0).cumsum(1) - 1
    return numbers.gather(1, labels).view(-1, height, width)


def _beside(cells: Tensor, rows: int, columns: int, down: int, right: int) -> Tensor:
    """The cells beside others; those over the edge are at the edge."""
    return (cells // columns + down).clamp(0, rows - 1) * columns + (cells % columns + right).clamp(0, columns - 1)


def means(values: Tensor, labels: Tensor, segments: int) -> tuple[Tensor, Tensor]:
    """(B, F, N) values, (B, N) labels -> (B, F, segments) means, 0 where there is nothing, and (B, segments) counts.

    Summed in whole numbers, so that a GPU, which adds in any order, always finds the same, and equal values have
    exactly equal means. Values should not be much larger than thousands, nor small beside 1e-9.
    """
    where = labels[:, None].expand_as(values)
    fixed = (values.double() * 2**32).round().long()
    sums = fixed.new_zeros(*values.shape[:2], segments).scatter_add_(2, where, fixed)
    counts = fixed.new_zeros(len(values), segments).scatter_add_(1, labels, torch.ones_like(labels))
    return (sums.double() / counts.clamp_min(1)[:, None] / 2**32).to(values.dtype), counts


@register("irof", "Rieger & Hansen 2020", higher_is_better=True)
@dataclass(frozen=True)
class IROF(Metric):
    """The area over the curve of the probability, as a share of the clean one, while superpixels go, highest first.

    0 where nothing is lost before the end, 1 where all is lost at once; the whole picture is the first point.

    Attributes:
        segments: About so many superpixels.
        compactness: How much place counts beside colour when they are found.
        iterations: Rounds of finding them; 0 leaves a regular grid.
        baseline: What is left behind.
        sign: What of the map counts.
        target: The class whose probability counts.
        enlarge: How the map gets the picture's size.
    """

    segments: int = number(100, low=1, high=10_000, cost=PASSES)
    compactness: float = number(10.0, above=0, high=1_000_000)
    iterations: int = number(10, low=0, high=1000)
    baseline: Baseline = IMAGE_MEAN
    sign: Sign = "signed"
    target: Whose = "explained"
    enlarge: Enlarge = "auto"

    def cut(self, case: Case) -> Tensor:
        """(B, H, W): the superpixel each pixel belongs to."""
        key = ("slic", self.segments, self.compactness, self.iterations)
        return case.once(key, lambda: slic(seen(case), self.segments, self.compactness, self.iterations))

    @property
    def uncounted(self) -> str:
        return "the class has no probability on the whole picture"

    def measure(self, case: Case) -> Tensor:
        case.classes(self.target)
        labels = self.cut(case)
        counts = labels.flatten(1).amax(1) + 1
        most = int(counts.max())
        heat = case.heat(self.sign, self.enlarge).flatten(1).double()
        heat = heat / heat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(heat.dtype).tiny)
        level = means(heat[:, None], labels.flatten(1), most)[0][:, 0]
        # Images with fewer superpixels than others end early: what they have not comes last and changes nothing.
        level = level.masked_fill(torch.arange(most, device=level.device) >= counts[:, None], -torch.inf)
        ranks = ranks_of(order_of(level))
        canvas = PixelCanvas(case.view, case.images, [case.fill(self.baseline)], labels)
        answers = case.ask(canvas, lambda which, number: ranks[which] > number[:, None], most)
        clean = case.clean.probability[self.target]
        return skip(over_curve(answers.probability[self.target] / clean, counts), clean[:, 0] == 0)


def over_curve(shares: Tensor, counts: Tensor) -> Tensor:
    """The area over curves that begin at 1 and have points of their own number.

    Args:
        shares: (B, K) what is left after 1 to K removals.
        counts: (B,) the removals that count, each an equal part of the way.

    Returns:
        (B,).

    Example:
        >>> over_curve(torch.tensor([[1.0, 1.0], [0.5, 0.0], [0.0, 9.0]]), torch.tensor([2, 2, 1])).tolist()
        [0.0, 0.5, 0.5]
    """
    curve = torch.cat([torch.ones_like(shares[:, :1]), shares], 1)
    steps = (curve[:, 1:] + curve[:, :-1]) / 2
    counted = torch.arange(shares.shape[1], device=shares.device) < counts[:, None]
    return 1 - torch.where(counted, steps, 0).sum(1) / counts


def seen(case: Case) -> Tensor:
    """(B, 3, H, W): the images as the eye sees them, from 0 to 1."""
    images = full(case.images)
    mean, std = (images.new_tensor(x).view(3, 1, 1) for x in (case.view.preprocess.mean, case.view.preprocess.std))
    return (images * std + mean).clamp(0, 1)
