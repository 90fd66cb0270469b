"""ViT-CX, all of it at the pixels, one image and one mask at a time."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def stretch(x: np.ndarray) -> np.ndarray:
    """Each row to 0..1."""
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    return (x - low) / (high - low)


def complete_linkage(distances: np.ndarray, threshold: float) -> list[list[int]]:
    """Join the two nearest groups while even their farthest members are within the threshold."""
    groups = [[i] for i in range(len(distances))]
    far = distances + np.diag(np.full(len(distances), np.inf))
    while True:
        a, b = sorted(np.unravel_index(far.argmin(), far.shape))
        if far[a, b] > threshold or len(groups) == 1:
            return sorted((group for group in groups if group), key=min)
        groups[a], groups[b] = groups[a] + groups[b], []
        far[a] = far[:, a] = np.maximum(far[a], far[b])
        far[b] = far[:, b] = np.inf


def masks_of(features: Tensor, size: tuple[int, int], threshold: float) -> np.ndarray:
    """(channels, rows, columns) -> (n, H x W)."""
    large = F.interpolate(features[None], size, mode="bilinear", align_corners=False)[0].flatten(1).numpy()
    masks = stretch(large[large.max(1) > large.min(1)])
    lengths = np.linalg.norm(masks, axis=1)
    distances = 1 - masks @ masks.T / np.outer(lengths, lengths)
    return stretch(np.stack([masks[group].sum(0) for group in complete_linkage(distances, threshold)]))


def vit_cx(
    model: Callable[[Tensor], Tensor], image: Tensor, target: int, masks: np.ndarray, seeds: list[int], strength: float
) -> Tensor:
    """(H, W)."""

    def p(x: Tensor) -> float:
        return float(model(x[None])[0].softmax(0)[target])

    total = masks.sum(0)
    found = torch.zeros(image.shape[1:], dtype=torch.float64)
    for mask, seed in zip(masks, seeds):
        m = torch.from_numpy(mask).view(image.shape[1:])
        noise = strength * torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)).double() * (1 - m)
        weight = p(image * m + noise) - p(image + noise) + p(image)
        share = np.divide(mask, total, out=np.zeros_like(mask), where=total > 0)
        found += weight * torch.from_numpy(share).view(image.shape[1:]) / len(masks)
    return found
