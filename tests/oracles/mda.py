"""MDA one image and one patch at a time, from the paper's equations 4 to 12, asking the model about pixels."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

Response = Callable[[set[int], Tensor], float]
"""The probability of the target when these cells are shown over that fill."""


def response_of(view, image: Tensor, labels: Tensor, target: int) -> Response:
    """Mix pixels, ask the model, take the softmax."""

    def response(shown: set[int], fill: Tensor) -> float:
        mask = torch.isin(labels, torch.tensor(sorted(shown), dtype=torch.long))
        with torch.no_grad():
            return float(view.logits(torch.where(mask, image, fill)[None]).softmax(1)[0, target])

    return response


def best_order(
    response: Response, blurred: Tensor, blank: Tensor, seed: Sequence[int], window: int, tau: float
) -> tuple[list[int], int]:
    """The order, the most important first, and how many of it were found by insertion; ``seed`` likewise."""
    patches = set(seed)
    nothing, everything = response(set(), blurred), response(patches, blurred)
    inserted: list[int] = []
    if everything > nothing:
        while len(inserted) < len(seed):
            candidates = [p for p in seed if p not in inserted][:window]
            answers = [response({*inserted, p}, blurred) for p in candidates]
            inserted.append(candidates[int(np.argmax(answers))])
            if max(answers) >= nothing + tau * (everything - nothing):
                break
    pasted: list[int] = []
    while len(pasted) + len(inserted) < len(seed):
        candidates = [p for p in reversed(seed) if p not in pasted and p not in inserted][:window]
        answers = [response({*pasted, p}, blank) for p in candidates]
        pasted.append(candidates[int(np.argmin(answers))])
    return inserted + pasted[::-1], len(inserted)


def curves(response: Response, blurred: Tensor, blank: Tensor, order: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Raw responses, N + 1 each."""
    insertion = [response(set(order[:k]), blurred) for k in range(len(order) + 1)]
    deletion = [response(set(order[k:]), blank) for k in range(len(order) + 1)]
    return np.array(insertion), np.array(deletion)


def mean_curve(insertion: np.ndarray, deletion: np.ndarray) -> np.ndarray:
    """Eq. 7, of curves that are normalised and made monotone first."""
    rising = np.clip((insertion - insertion[0]) / (insertion[-1] - insertion[0]), 0, 1)
    falling = np.clip((deletion - deletion[-1]) / (deletion[0] - deletion[-1]), 0, 1)
    return (np.maximum.accumulate(rising) + 1 - np.minimum.accumulate(falling)) / 2


def density_curve(mean: np.ndarray) -> np.ndarray:
    """Eq. 9: the nearest concave curve with the same ends, as the line between them plus bends at single places."""
    n = len(mean) - 1
    line = np.array([mean[0] + (mean[-1] - mean[0]) * i / n for i in range(n + 1)])
    bends = np.array([np.interp(range(n + 1), [0, at, n], [0, 1, 0]) for at in range(1, n)]).T
    found = lsq_linear(bends, mean - line, bounds=(0, np.inf), method="bvls", tol=1e-14, max_iter=10000)
    return line + bends @ found.x


def magnitudes(density: np.ndarray, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 10 and 11."""
    n = len(density) - 1
    sparse = np.array([(density[i] - density[i - 1]) * (1 + (n - i) / n) for i in range(1, n + 1)])
    dense = np.array([(n - i) / n if sparse[i - 1] >= kappa else sparse[i - 1] for i in range(1, n + 1)])
    return sparse, dense
