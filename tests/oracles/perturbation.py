"""Perturbation methods the slow way: one picture at a time, one pixel at a time, every coalition, full matrices."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import factorial

import numpy as np
import torch
from torch import Tensor, nn

Value = Callable[[frozenset[int]], float]
"""What a coalition of cells is worth."""


def answer(model: nn.Module, picture: Tensor, target: int, score: str) -> float:
    """The target's probability or logit for one picture."""
    with torch.no_grad():
        logits = model(picture[None])[0]
    return float(logits.softmax(0)[target] if score == "probability" else logits[target])


def coalition_value(model: nn.Module, image: Tensor, target: int, grid: tuple[int, int], score: str) -> Value:
    """The score of an image of which only some cells are left, zeros around them."""
    height, width = image.shape[1] // grid[0], image.shape[2] // grid[1]

    def value(cells: frozenset[int]) -> float:
        picture = torch.zeros_like(image)
        for cell in cells:
            y, x = cell // grid[1] * height, cell % grid[1] * width
            picture[:, y : y + height, x : x + width] = image[:, y : y + height, x : x + width]
        return answer(model, picture, target, score)

    known: dict[frozenset[int], float] = {}
    return lambda cells: known[cells] if cells in known else known.setdefault(cells, value(cells))


def shapley_values(value: Value, cells: int) -> Tensor:
    """(N,) by the definition: the weighted gain over all coalitions without the cell."""
    found = []
    for cell in range(cells):
        others = [other for other in range(cells) if other != cell]
        total = 0.0
        for size in range(cells):
            weight = factorial(size) * factorial(cells - size - 1) / factorial(cells)
            for chosen in combinations(others, size):
                total += weight * (value(frozenset(chosen) | {cell}) - value(frozenset(chosen)))
        found.append(total)
    return torch.tensor(found, dtype=torch.float64)


def gains_along(value: Value, orders: Iterable[Sequence[int]], cells: int) -> Tensor:
    """(N,) the mean gain of each cell along some orders."""
    totals, count = [0.0] * cells, 0
    for order in orders:
        shown: frozenset[int] = frozenset()
        for cell in order:
            totals[cell] += value(shown | {cell}) - value(shown)
            shown = shown | {cell}
        count += 1
    return torch.tensor(totals, dtype=torch.float64) / count


def constrained_fit(shown: np.ndarray, weights: np.ndarray, scores: np.ndarray, none: float, whole: float) -> Tensor:
    """(N,) least squares with a Lagrange multiplier: the values add up to ``whole - none``."""
    cells = shown.shape[1]
    system = np.zeros((cells + 1, cells + 1))
    right = np.zeros(cells + 1)
    for row, weight, score in zip(shown.astype(float), weights, scores):
        system[:cells, :cells] += weight * np.outer(row, row)
        right[:cells] += weight * row * (score - none)
    system[cells, :cells] = system[:cells, cells] = 1
    right[cells] = whole - none
    return torch.tensor(np.linalg.solve(system, right)[:cells])


def ridge_fit(shown: np.ndarray, scores: np.ndarray, width: float, ridge: float) -> Tensor:
    """(N,) ridge as plain least squares: one more row for each slope asks it to be zero."""
    rows, right = [], []
    for row, score in zip(shown.astype(float), scores):
        everything = np.ones_like(row)
        norms = np.linalg.norm(row) * np.linalg.norm(everything)
        distance = 1 - row @ everything / norms if norms > 0 else 1.0
        root = np.sqrt(np.exp(-(distance**2) / (2 * width**2)))
        rows.append(root * np.concatenate([[1.0], row]))
        right.append(root * score)
    for i in range(shown.shape[1]):
        rows.append(np.sqrt(ridge) * np.eye(shown.shape[1] + 1)[i + 1])
        right.append(0.0)
    return torch.tensor(np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0][1:])


def hsic(shown: np.ndarray, scores: np.ndarray, width: float) -> Tensor:
    """(N,) tr(K H L H) / (n - 1)² with every matrix written out, K[i, j] = 1 + (1/2 - (m_i - m_j)²)."""
    n, cells = shown.shape
    centre = np.eye(n) - np.ones((n, n)) / n
    outputs = np.array([[np.exp(-((a - b) ** 2) / (2 * width**2)) for a in scores] for b in scores])
    found = []
    for cell in range(cells):
        m = shown[:, cell].astype(float)
        inputs = np.array([[1 + (0.5 - (a - b) ** 2) for a in m] for b in m])
        found.append(np.trace(inputs @ centre @ outputs @ centre) / (n - 1) ** 2)
    return torch.tensor(found)


def sliding(
    model: nn.Module, image: Tensor, target: int, window: int, stride: int, *, hide: bool, score: str
) -> Tensor:
    """(H, W): the mean over the windows that cover a pixel: of the loss when hidden, or of the score when alone."""
    height, width = image.shape[1:]
    total, cover = torch.zeros(height, width, dtype=torch.float64), torch.zeros(height, width)
    clean = answer(model, image, target, score)
    tops = _starts(height, window, stride)
    for top in tops:
        for left in _starts(width, window, stride):
            inside = (slice(None), slice(top, top + window), slice(left, left + window))
            picture = image.clone() if hide else torch.zeros_like(image)
            picture[inside] = 0 if hide else image[inside]
            found = answer(model, picture, target, score)
            total[inside[1:]] += clean - found if hide else found
            cover[inside[1:]] += 1
    return total / cover


def _starts(length: int, window: int, stride: int) -> list[int]:
    """Windows begin every ``stride`` pixels until one reaches the border."""
    starts = [0]
    while starts[-1] + window < length:
        starts.append(starts[-1] + stride)
    return starts


def rise(model: nn.Module, image: Tensor, target: int, masks: Tensor, keep: float, fill: Tensor, score: str) -> Tensor:
    """(H, W): the masks, weighted one by one."""
    total = torch.zeros_like(masks[0])
    for mask in masks:
        total += answer(model, mask * image + (1 - mask) * fill, target, score) * mask
    return total / len(masks) / keep
