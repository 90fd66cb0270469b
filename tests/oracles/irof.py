"""IROF and superpixels of one picture, pixel by pixel."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


def lab(colour: list[float]) -> np.ndarray:
    """sRGB from 0 to 1 -> CIE L*a*b*."""
    linear = np.array([v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour])
    matrix = [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
    shares = np.array(matrix) @ linear / [0.95047, 1, 1.08883]
    x, y, z = (t ** (1 / 3) if t > (6 / 29) ** 3 else t * (29 / 6) ** 2 / 3 + 4 / 29 for t in shares)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def slic(picture: Tensor, rows: int, columns: int, compactness: float, iterations: int) -> np.ndarray:
    """(3, H, W) -> (H, W): k-means, each pixel with the centres of its own cell of a grid and the eight around it."""
    height, width = picture.shape[1:]
    scale = compactness / np.sqrt(height * width / (rows * columns))
    features = {
        (y, x): np.array([*lab(picture[:, y, x].tolist()), scale * y, scale * x])
        for y in range(height)
        for x in range(width)
    }
    home = {(y, x): (y * rows // height, x * columns // width) for y, x in features}
    labels, centres = dict(home), {}
    for _ in range(iterations):
        for cell in set(home.values()):
            own = [features[place] for place in features if labels[place] == cell]
            if own:
                centres[cell] = np.mean(own, 0)
        for place, feature in features.items():
            near = [c for c in sorted(centres) if max(abs(c[0] - home[place][0]), abs(c[1] - home[place][1])) <= 1]
            labels[place] = min(near, key=lambda c: float(((feature - centres[c]) ** 2).sum()))
    numbers = {cell: i for i, cell in enumerate(sorted(set(labels.values())))}
    return np.array([[numbers[labels[y, x]] for x in range(width)] for y in range(height)])


def area_over_curve(view, image: Tensor, heat: Tensor, labels: Tensor, target: int) -> float:
    """Take the segments away, the highest mean first; 1 less the trapezoid of what is left of the probability."""

    def probability(picture: Tensor) -> float:
        with torch.no_grad():
            return float(view.model(picture[None])[0].softmax(0)[target])

    segments = range(int(labels.max()) + 1)
    order = sorted(segments, key=lambda s: (-float(heat[labels == s].double().mean()), s))
    picture, mean = image.clone(), image.mean((1, 2))
    curve = [probability(picture)]
    for segment in order:
        picture[:, labels == segment] = mean[:, None]
        curve.append(probability(picture))
    left = [p / curve[0] for p in curve]
    return 1 - sum((a + b) / 2 for a, b in pairwise(left)) / len(order)
