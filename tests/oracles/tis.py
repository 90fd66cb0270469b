"""TIS, one image and one mask at a time, on a timm ViT's own parts."""

import numpy as np
import torch
from torch import Tensor, nn


def embedded(model: nn.Module, image: Tensor) -> Tensor:
    """(3, H, W) -> (T, D): the tokens that enter the first block."""
    return model.norm_pre(model._pos_embed(model.patch_embed(image[None])))[0]


def blocks(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """(T, D) -> the output of every block."""
    states = []
    for block in model.blocks:
        tokens = block(tokens[None])[0]
        states.append(tokens)
    return states


def answer(model: nn.Module, tokens: Tensor) -> Tensor:
    """(T, D) tokens, of any length -> (classes,) probabilities."""
    return model.forward_head(model.norm(blocks(model, tokens)[-1][None]))[0].softmax(0)


def channels(model: nn.Module, image: Tensor, layers: tuple[int, ...] | None = None) -> np.ndarray:
    """(layers x channels, N): one row for each channel of each block's output."""
    states = blocks(model, embedded(model, image))
    prefix = model.num_prefix_tokens
    rows = []
    for layer in range(len(states)) if layers is None else layers:
        rows += [states[layer][prefix:, channel].numpy() for channel in range(states[layer].shape[1])]
    return np.stack(rows)


def kmeans(points: np.ndarray, start: list[int], empty: str = "stay") -> np.ndarray:
    """Lloyd's algorithm, spelled out."""
    centroids = points[start].copy()
    for _ in range(100):
        nearest = [int(((point - centroids) ** 2).sum(1).argmin()) for point in points]
        moved = centroids.copy()
        for k in range(len(centroids)):
            own = [point for point, label in zip(points, nearest) if label == k]
            if own:
                moved[k] = np.mean(own, 0)
            elif empty == "zero":
                moved[k] = 0
        distance = ((moved - centroids) ** 2).sum()
        centroids = moved
        if distance < 1e-4:
            break
    return centroids


def tis(model: nn.Module, image: Tensor, target: int, centroids: np.ndarray, shares: tuple[float, ...]) -> Tensor:
    """(N,): the mean score of the masks that keep a token; the smallest one for a token that none keeps."""
    tokens, prefix = embedded(model, image), model.num_prefix_tokens
    patches = centroids.shape[1]
    scores: list[list[float]] = [[] for _ in range(patches)]
    for share in shares:
        for centroid in centroids:
            kept = sorted(range(patches), key=lambda i: -centroid[i])[: max(1, int(share * patches))]
            left = torch.cat([tokens[:prefix], tokens[[prefix + i for i in sorted(kept)]]])
            score = float(answer(model, left)[target])
            for i in kept:
                scores[i].append(score)
    lowest = min(np.mean(own) for own in scores if own)
    return torch.tensor([np.mean(own) if own else lowest for own in scores], dtype=torch.float64)
