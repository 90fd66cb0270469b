"""ROAD of one image, one share after another: the equations written down pixel by pixel and solved directly."""

import numpy as np
import torch
from scipy.sparse import dok_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor

WEIGHTS = {(dy, dx): 1 / 6 if dy * dx == 0 else 1 / 12 for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)}


def imputed(image: Tensor, hidden: Tensor) -> Tensor:
    """(C, H, W) with every hidden pixel the weighted mean of those neighbours that are in the picture."""
    height, width = hidden.shape
    places = [(y, x) for y in range(height) for x in range(width) if hidden[y, x]]
    number = {place: i for i, place in enumerate(places)}
    matrix, right = dok_matrix((len(places), len(places))), np.zeros((len(places), len(image)))
    for i, (y, x) in enumerate(places):
        for (dy, dx), weight in WEIGHTS.items():
            place = (y + dy, x + dx)
            if not (0 <= place[0] < height and 0 <= place[1] < width):
                continue
            matrix[i, i] += weight
            if place in number:
                matrix[i, number[place]] -= weight
            else:
                right[i] += weight * image[:, place[0], place[1]].double().numpy()
    solution = spsolve(matrix.tocsc(), right).reshape(right.shape)
    found = image.double().clone()
    for (y, x), values in zip(places, solution):
        found[:, y, x] = torch.from_numpy(values)
    return found


def probabilities(
    view, image: Tensor, heat: Tensor, noise: Tensor, target: int, shares: list[float], lowest_first: bool
) -> list[float]:
    """The target's probability with each share of the pixels painted over."""
    flat = (-heat if lowest_first else heat).flatten()
    order = sorted(range(flat.numel()), key=lambda p: (-flat[p].item(), p))
    found = []
    for share in shares:
        hidden = torch.zeros(flat.numel(), dtype=torch.bool)
        hidden[order[: int(share * flat.numel() + 1e-9)]] = True
        hidden = hidden.view_as(heat)
        picture = torch.where(hidden, imputed(image, hidden) + noise, image)
        with torch.no_grad():
            found.append(float(view.model(picture[None].to(image.dtype))[0].softmax(0)[target]))
    return found
