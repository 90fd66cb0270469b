"""From an order of patches and the model's responses along it to magnitudes that keep the order (MDA, section 3.2)."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]

TIE = 1e-6
"""The most that is added to keep patches apart that the responses do not tell apart."""


def monotone(responses: Array, nothing: float, everything: float, rising: bool) -> Array:
    """A curve of N + 1 responses between 0 and 1, never turning back; a straight line where there is no way between.

    Args:
        responses: (N + 1,); what is not a number is taken as the response before it.
        nothing: The response to the empty picture, which counts as 0.
        everything: The response to the whole picture, which counts as 1.
        rising: From nothing to everything, or back.
    """
    ends = (0.0, 1.0) if rising else (1.0, 0.0)
    if not everything > nothing:
        return np.linspace(*ends, len(responses))
    shares = np.clip((responses - nothing) / (everything - nothing), 0, 1)
    shares[0] = ends[0] if np.isnan(shares[0]) else shares[0]
    known = np.maximum.accumulate(np.where(np.isnan(shares), 0, np.arange(len(shares))))
    shares = shares[known]
    return np.maximum.accumulate(shares) if rising else np.minimum.accumulate(shares)


@cache
def _tents(n: int) -> Array:
    """(n - 1, n - 1): the concave curves over 0 ... n that are zero at both ends and bend at one place only, by one."""
    i = np.arange(1, n)
    tents: Array = np.minimum(i[:, None], i) * (n - np.maximum(i[:, None], i)) / n
    return tents


def concave_steps(curve: Array) -> Array:
    """(N,) the steps of the concave curve nearest to a rising one that keeps its ends; they never grow.

    Minimises the squared distance. Every concave curve with these ends is their straight line plus tents of positive
    weight, so this is a non-negative least squares problem. The nearest curve to a monotone one is monotone itself: cut
    off at its last value it stays concave and comes no farther.
    """
    n = len(curve) - 1
    line = np.linspace(curve[0], curve[-1], n + 1)
    if n > 1:
        line[1:-1] += _tents(n) @ _weights(_tents(n), (curve - line)[1:-1])
    steps = np.minimum.accumulate(np.diff(line)).clip(0)  # what rounding left of a step up, or below zero
    total = steps.sum()
    return steps * ((curve[-1] - curve[0]) / total) if total > 0 else steps


def _weights(tents: Array, curve: Array) -> Array:
    """(n,) non-negative weights of the tents, whose sum comes nearest to the curve.

    scipy's solver stops before the best weights for one in 300 curves that have a plateau. There its method goes on:
    tents that pull the sum nearer come in, tents whose weight would be negative go.
    """
    n = len(curve)
    found: Array = nnls(tents, curve, maxiter=30 * n)[0]
    sizes = np.linalg.norm(tents, axis=0)
    least = 1e-10 * np.linalg.norm(curve)
    pull = (curve - tents @ found) @ tents / sizes
    if pull.max() <= least and np.abs(pull[found > 0]).max(initial=0) <= least:
        return found
    held = found > 0
    for _ in range(3 * n):
        best = np.zeros(n)
        best[held] = np.linalg.lstsq(tents[:, held], curve, rcond=None)[0]
        if (best[held] > 0).all():
            found = best
            pull = np.where(held, -np.inf, (curve - tents @ found) @ tents / sizes)
            if pull.max() <= least:
                break
            held[pull.argmax()] = True
        else:  # as far towards the best as all weights stay positive; there one of them is zero
            low = held & (best <= 0)
            share = (found[low] / (found[low] - best[low])).min(initial=1)
            found = np.where(held, found + share * (best - found), 0).clip(0)
            held &= (found > 0) & ~(low & (found <= 1e-15 * found.max(initial=1e-300)))
            found[~held] = 0
    return found


def strictly_falling(values: Array) -> NDArray[np.float32]:
    """The values in float32, each below the one before it, changed no more than that needs.

    Example:
        >>> strictly_falling(np.array([0.5, 0.5, 0.0, 0.0])).tolist()  # doctest: +ELLIPSIS
        [0.5000000..., 0.5, 1.4...e-45, 0.0]
    """
    found = values.astype(np.float32)
    for i in range(len(found) - 2, -1, -1):
        found[i] = max(found[i], np.nextafter(found[i + 1], np.float32(np.inf)))
    return found


def sparse_of(steps: Array) -> NDArray[np.float32]:
    """Eq. 10: (N,) magnitudes in the order of importance, strictly falling.

    Args:
        steps: What each patch adds to the density curve, never growing.
    """
    rank = rank_shares(len(steps))
    return strictly_falling(steps * (1 + rank) + TIE * rank)


def dense_of(sparse: NDArray[np.float32], kappa: float) -> Array:
    """Eq. 11: (N,) magnitudes in the order of importance.

    Args:
        sparse: The sparse ones.
        kappa: From this magnitude on a patch counts as important, and is as large as its rank.
    """
    return np.where(sparse >= kappa, rank_shares(len(sparse)), sparse.astype(np.float64))


def rank_shares(n: int) -> Array:
    """(N,) the share of patches behind each one."""
    found: Array = (n - np.arange(1, n + 1)) / n
    return found
