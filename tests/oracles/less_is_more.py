"""Less is more: the worth of every set from scratch, on pixels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def order(
    model: nn.Module, image: Tensor, fill: Tensor, target: int, labels: Tensor, weights: tuple[float, ...]
) -> list[int]:
    """The regions that (H, W) labels tell apart, as the greedy search takes them."""
    regions = int(labels.max()) + 1

    def seen(chosen: list[int]) -> Tensor:
        shown = torch.isin(labels, torch.tensor(chosen, dtype=labels.dtype))
        return torch.where(shown, image, fill)[None]

    features = [model.forward_head(model.forward_features(seen([i])), pre_logits=True)[0] for i in range(regions)]

    def angle(i: int, j: int) -> float:
        return math.acos(min(1.0, max(-1.0, float(F.cosine_similarity(features[i], features[j], 0))))) / math.pi

    def worth(chosen: list[int]) -> float:
        p = model(seen(chosen))[0].softmax(0)
        rest = model(seen([i for i in range(regions) if i not in chosen]))[0].softmax(0)
        confidence = 1 + float((p * p.log()).sum()) / math.log(len(p))
        different = sum(min(angle(i, j) for j in chosen if j != i) for i in chosen) if len(chosen) > 1 else 0.0
        parts = (confidence, different, float(p[target]), 1 - float(rest[target]))
        return sum(weight * part for weight, part in zip(weights, parts))

    chosen: list[int] = []
    while len(chosen) < regions:
        left = [i for i in range(regions) if i not in chosen]
        chosen.append(max(left, key=lambda i: worth([*chosen, i])))
    return chosen
