"""Insertion, deletion and MAS of one image, one step after another, as the metrics' definitions read."""

import numpy as np
import torch
from torch import Tensor


def responses(view, image: Tensor, heat: Tensor, fill: Tensor, target: int, step: int, rising: bool) -> list[float]:
    """Softmax probabilities while pixels are put in, or taken out, the highest first."""
    order = sorted(range(heat.numel()), key=lambda p: (-heat.flatten()[p].item(), p))
    now = (fill if rising else image).clone().flatten(1)
    new = (image if rising else fill).flatten(1)
    found = []
    for k in range(0, len(order) + step, step):
        changed = order[max(0, k - step) : k]
        now[:, changed] = new[:, changed]
        with torch.no_grad():
            found.append(float(view.logits(now.view_as(image)[None]).softmax(1)[0, target]))
    return found


def density(heat: Tensor, step: int, rising: bool) -> np.ndarray:
    """The share of the map's absolute values that is shown, or still there."""
    order = sorted(range(heat.numel()), key=lambda p: (-heat.flatten()[p].item(), p))
    values = np.abs(heat.flatten().double().numpy())[order]
    shown = np.array([values[:k].sum() / values.sum() for k in range(0, len(values) + step, step)])
    return shown if rising else 1 - shown


def area(curve: np.ndarray) -> float:
    """RISE's: the trapezoid over evenly spaced points, divided by their number less one."""
    return (curve.sum() - curve[0] / 2 - curve[-1] / 2) / (len(curve) - 1)


def monotone(curve: np.ndarray, rising: bool) -> np.ndarray:
    """Normalised by the ends, cut to 0..1, and never turning back."""
    nothing, whole = (curve[0], curve[-1]) if rising else (curve[-1], curve[0])
    found, best = [], 0.0 if rising else 1.0
    for value in curve:
        share = min(max((value - nothing) / (whole - nothing), 0.0), 1.0)
        best = max(best, share) if rising else min(best, share)
        found.append(best)
    return np.array(found)


def aligned(curve: np.ndarray, shares: np.ndarray, rising: bool) -> np.ndarray:
    """MAS."""
    response = monotone(curve, rising)
    penalty = np.abs(response - shares)
    scores = np.clip(response - penalty if rising else response + penalty, 0, 1)
    return (scores - scores.min()) / (scores.max() - scores.min())
