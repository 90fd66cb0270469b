"""How sure a number is, and whether one method is better than another on the same images."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from vitrail.errors import InputError

Numbers = npt.NDArray[np.float64]

DRAWS = 2000


def bootstrap(
    count: int, of: Callable[[npt.NDArray[np.int64]], float], draws: int = DRAWS, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """The interval of a number of ``count`` images, by drawing as many again and again.

    Args:
        count: How many images there are.
        of: Rows of images, some several times -> the number.
        draws: How often.
        level: The share of the draws that lies inside.
        seed: Another seed draws others.
    """
    generator = np.random.default_rng(seed)
    found = [of(generator.integers(0, count, count)) for _ in range(draws)] if count else []
    return _ends(np.array(found, dtype=float), level)


def interval(values: Numbers, draws: int = DRAWS, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """The bootstrap interval of a mean; NaN values do not count.

    Example:
        >>> low, high = interval(np.array([0.0, 1.0] * 50))
        >>> low < 0.5 < high
        True
    """
    return _ends(_means(values[np.isfinite(values)], draws, seed), level)


def _means(values: Numbers, draws: int, seed: int) -> Numbers:
    """(draws,) the means of as many values again, drawn anew each time."""
    generator = np.random.default_rng(seed)
    together = max(1, 2**22 // max(len(values), 1))  # so many draws at once that they take some 32 MB
    means = [
        values[generator.integers(0, len(values), (min(together, draws - first), len(values)))].mean(1)
        for first in range(0, draws if len(values) else 0, together)
    ]
    return np.concatenate(means) if means else np.array([])


def band(values: Numbers, draws: int = DRAWS, level: float = 0.95, seed: int = 0) -> tuple[Numbers, Numbers]:
    """(N, K) -> (K,), (K,): the bootstrap interval of each column's mean, of whole rows drawn again: see `interval`.

    Rows with NaN do not count.

    Example:
        >>> low, high = band(np.array([[0.0, 1.0], [1.0, 1.0]]))
        >>> low.tolist(), high.tolist()
        ([0.0, 1.0], [1.0, 1.0])
    """
    values = values[np.isfinite(values).all(1)]
    count = len(values)
    if not count:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    generator = np.random.default_rng(seed)
    means = np.empty((draws, values.shape[1]))
    for draw in range(draws):
        means[draw] = np.bincount(generator.integers(0, count, count), minlength=count) @ values / count
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def _ends(found: Numbers, level: float) -> tuple[float, float]:
    found = found[np.isfinite(found)]
    if not len(found):
        return float("nan"), float("nan")
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """One method minus another, on the same images.

    Attributes:
        mean: The mean difference.
        low: The lower end of its 95 % interval.
        high: The upper end.
        p: How often, among the draws, the difference would have the other sign, on both sides.
        images: How many images both have a number for.
    """

    mean: float
    low: float
    high: float
    p: float
    images: int


def paired_bootstrap(one: Numbers, other: Numbers, draws: int = DRAWS, seed: int = 0) -> Difference:
    """The mean difference of two methods on the same images, and how sure it is.

    Example:
        >>> found = paired_bootstrap(np.arange(30.0) + 1, np.arange(30.0))
        >>> (found.mean, found.low, found.high)
        (1.0, 1.0, 1.0)
    """
    if one.shape != other.shape:
        raise InputError(f"two methods must be judged on the same images, but {len(one)} and {len(other)} were given")
    gaps = (one - other)[np.isfinite(one) & np.isfinite(other)]
    if not len(gaps):
        return Difference(math.nan, math.nan, math.nan, math.nan, 0)
    means = _means(gaps, draws, seed)
    tail = min((means <= 0).mean(), (means >= 0).mean())
    return Difference(float(gaps.mean()), *_ends(means, 0.95), min(1.0, 2 * float(tail)), len(gaps))


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean rank over the images, 1 for the best.

    Attributes:
        ranks: The mean rank of each method.
        p: Friedman's test: how likely ranks so far apart are if the methods are equally good.
        critical_difference: Mean ranks closer than this cannot be told apart (Nemenyi, 5 %).
        images: How many images all methods have a number for.
    """

    ranks: Numbers
    p: float
    critical_difference: float
    images: int


def friedman(table: Numbers, higher_is_better: bool) -> Ranking:
    """Rank methods over images: Friedman's test and Nemenyi's critical difference (Demsar 2006).

    Args:
        table: (images, methods).
        higher_is_better: Which end is rank 1.

    Example:
        >>> found = friedman(np.array([[0.9, 0.5, 0.1], [0.8, 0.6, 0.2]]), higher_is_better=True)
        >>> found.ranks.tolist()
        [1.0, 2.0, 3.0]
    """
    table = complete(table)
    images, methods = table.shape
    if methods < 2 or images < 1:
        return Ranking(np.ones(methods), float("nan"), float("nan"), images)
    ranked = stats.rankdata(-table if higher_is_better else table, axis=1)
    p = float(stats.friedmanchisquare(*table.T).pvalue) if methods > 2 and images > 1 else float("nan")
    q = stats.studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return Ranking(ranked.mean(0), p, float(q * np.sqrt(methods * (methods + 1) / (6 * images))), images)


def win_rates(table: Numbers, higher_is_better: bool) -> Numbers:
    """(images, methods) -> (methods, methods): how often a row's method beats a column's; ties count half.

    Example:
        >>> win_rates(np.array([[0.9, 0.5], [0.4, 0.6], [0.7, 0.7]]), higher_is_better=True)
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """
    table = complete(table)
    gaps = table[:, :, None] - table[:, None, :]
    found: Numbers = ((np.sign(gaps if higher_is_better else -gaps) + 1) / 2).mean(0)
    return found


def complete(table: Numbers) -> Numbers:
    """The images that every method has a number for."""
    return table[np.isfinite(table).all(1)]
