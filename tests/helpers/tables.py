"""Tables of runs, compared."""

import numpy as np

from vitrail import Scores


def same(one: Scores, other: Scores) -> bool:
    """Whether all numbers are equal, bit for bit."""
    return [r.metric for r in one.rows] == [r.metric for r in other.rows] and all(
        np.array_equal(a.each, b.each, equal_nan=True) and (a.value, a.low, a.high) == (b.value, b.low, b.high)
        for a, b in zip(one.rows, other.rows)
    )
