"""AtMan, one patch at a time, with attention written out in the place of torch's."""

import math
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles.tis import embedded


def factors(tokens: Tensor, patch: int, suppression: float, similarity: float | None) -> list[float]:
    """(N, D) patch tokens -> the factor of each patch when one is turned down."""
    found = []
    for j in range(len(tokens)):
        cosine = float(F.cosine_similarity(tokens[patch], tokens[j], 0))
        if j == patch:
            found.append(suppression)
        elif similarity is not None and cosine >= similarity:
            found.append((1 - suppression) * (1 - cosine) + suppression)
        else:
            found.append(1.0)
    return found


def weakened(factor: list[float]):
    """``scaled_dot_product_attention`` with the scores of each key made smaller."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **_: object) -> Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        for row in scores.flatten(0, 2):
            row -= row.min().clone()
            for j, f in enumerate(factor):
                row[j] *= f
        return scores.softmax(-1) @ value

    return attention


def atman(
    model: nn.Module, image: Tensor, target: int, suppression: float, similarity: float | None, cells: list[int]
) -> Tensor:
    """(N,), with the patches of a cell turned down together."""
    prefix = model.num_prefix_tokens
    patches = embedded(model, image)[prefix:]
    clean = model(image[None])[0].log_softmax(0)[target]
    found = []
    for cell in cells:
        own = [factors(patches, i, suppression, similarity) for i, label in enumerate(cells) if label == cell]
        factor = [1.0] * prefix + [min(column) for column in zip(*own)]
        with mock.patch.object(F, "scaled_dot_product_attention", weakened(factor)):
            found.append(clean - model(image[None])[0].log_softmax(0)[target])
    return torch.stack(found)
