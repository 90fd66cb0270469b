"""One column: which method is best, which are not significantly worse, and whether the paper saw the same order."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from vitrail.bench.protocol import Column
from vitrail.bench.report.result import Agreement, Cell, Standing
from vitrail.metric import Numbers, Scores, friedman, interval, paired_bootstrap
from vitrail.metric import parse as parse_metric

LEVEL = 0.05
"""A method is significantly worse than the best where so small a p is left after Holm's correction."""


@dataclass(frozen=True, eq=False)
class Measured:
    """One method by one column.

    Attributes:
        value: The number of all pictures.
        low: The lower end of its 95 % interval.
        high: The upper end.
        each: (N,) the number of each picture, NaN where it does not count.
        own_total: Whether a metric in it sums up all pictures otherwise than by their mean, as mIoU does.
    """

    value: float
    low: float
    high: float
    each: Numbers
    own_total: bool = False


def measured(scores: Scores, method: str, column: Column) -> Measured:
    """A method's numbers for a column.

    A single metric keeps its own total and interval. A sum of several is taken picture by picture, since their
    numbers go together: the interval of a difference is not the difference of two intervals.

    Args:
        scores: The run's scores.
        method: The method's spec.
        column: What is measured.
    """
    terms = [(scores.row(parse_metric(spec).spec, method), weight) for spec, weight in column.terms]
    own_total = any(row.counted and not np.isclose(row.value, np.nanmean(row.each)) for row, _ in terms)
    if len(terms) == 1:
        row, weight = terms[0]
        low, high = sorted((weight * row.low, weight * row.high))
        return Measured(weight * row.value, low, high, weight * row.each, own_total)
    each = np.sum([weight * row.each for row, weight in terms], axis=0)
    counted = each[np.isfinite(each)]
    low, high = interval(each)
    return Measured(float(counted.mean()) if len(counted) else np.nan, low, high, each, own_total)


def cells(found: Mapping[str, Measured], higher_is_better: bool, unranked: Collection[str] = ()) -> dict[str, Cell]:
    """A column's cells: each method against the best one, on the pictures that both have a number for.

    Args:
        found: Each method's numbers.
        higher_is_better: Which way is better.
        unranked: Methods that are shown, but not compared: their maps hold no evidence.

    Example:
        >>> each = np.arange(40) / 40
        >>> one, other = Measured(0.5, 0.4, 0.6, each), Measured(0.3, 0.2, 0.4, each - 0.2)
        >>> [(cell.rank, cell.tied) for cell in cells({"a": one, "b": other}, True).values()]
        [(1, False), (2, False)]
    """
    able = [method for method, one in found.items() if np.isfinite(one.value) and method not in unranked]
    sign = 1 if higher_is_better else -1
    places = stats.rankdata([-sign * found[method].value for method in able], method="min").astype(int)
    rank = dict(zip(able, places.tolist()))
    best = next((method for method in able if rank[method] == 1), None)
    gaps = {
        method: paired_bootstrap(sign * found[best].each, sign * found[method].each)
        for method in able
        if best is not None and rank[method] > 1
    }
    gaps = {method: gap for method, gap in gaps.items() if gap.images}
    sure = holm([gap.p for gap in gaps.values()])
    tied = {method for (method, gap), p in zip(gaps.items(), sure) if p >= LEVEL or gap.mean <= 0}
    return {
        method: Cell(
            value=one.value,
            low=one.low,
            high=one.high,
            images=int(np.isfinite(one.each).sum()),
            rank=rank.get(method),
            best=rank.get(method) == 1,
            tied=method in tied,
        )
        for method, one in found.items()
    }


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction for several tests: the smallest p counts as often as there are tests, the next once less.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(ps)
    raised = np.asarray(ps, dtype=float)[order] * np.arange(len(ps), 0, -1)
    found = np.empty(len(ps))
    found[order] = np.minimum(np.maximum.accumulate(raised), 1)
    return [float(p) for p in found]


def agreement(ours: Sequence[float], published: Sequence[float]) -> Agreement | None:
    """Rank correlations with the paper, over the methods that both have; None for fewer than three.

    Example:
        >>> agreement([0.1, 0.3, 0.2], [0.2, 0.6, 0.4])
        Agreement(methods=3, rho=1.0, tau=1.0)
    """
    pairs = [(one, other) for one, other in zip(ours, published) if np.isfinite(one) and np.isfinite(other)]
    if len(pairs) < 3:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers that are all alike have no order: NaN says so
        rho, tau = (float(test(*zip(*pairs)).statistic) for test in (stats.spearmanr, stats.kendalltau))
    return Agreement(len(pairs), round(rho, 12), round(tau, 12))


def standing(found: Mapping[str, Measured], higher_is_better: bool) -> Standing | None:
    """Mean ranks over the pictures that all methods have a number for; None where there is too little to test."""
    able = {method: one.each for method, one in found.items() if np.isfinite(one.each).any()}
    if len(able) < 3:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # methods that are alike on all pictures: NaN says so
        ranking = friedman(np.stack(list(able.values()), 1), higher_is_better)
    if ranking.images < 2:
        return None
    ranks = dict(zip(able, ranking.ranks.tolist()))
    return Standing(ranks, ranking.p, ranking.critical_difference, ranking.images)
