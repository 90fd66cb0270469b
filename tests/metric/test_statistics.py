"""Intervals and tests between methods, against closed forms and scipy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vitrail import InputError
from vitrail.metric.statistics import bootstrap, friedman, interval, paired_bootstrap, win_rates

RANDOM = np.random.default_rng(0)


def test_the_interval_of_a_mean_is_that_of_the_central_limit_theorem() -> None:
    values = RANDOM.normal(3, 2, 400)
    low, high = interval(values)
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)
    assert interval(np.append(values, [np.nan] * 50)) == (low, high), "what does not count changes nothing"


def test_intervals_of_little() -> None:
    assert interval(np.array([2.0])) == (2.0, 2.0)
    assert all(math.isnan(x) for x in interval(np.array([np.nan, np.nan])))
    assert all(math.isnan(x) for x in bootstrap(0, lambda _: 1.0))


def test_bootstrap_of_any_number_covers_it() -> None:
    """Of 200 samples, about 95 % of the intervals hold the true median."""
    inside = 0
    for seed in range(200):
        sample = np.random.default_rng(seed).normal(0, 1, 60)
        low, high = bootstrap(60, lambda rows, sample=sample: float(np.median(sample[rows])), draws=300, seed=seed)
        inside += low <= 0 <= high
    assert 0.89 <= inside / 200 <= 0.99


def test_paired_differences_are_surer_than_unpaired_ones() -> None:
    hard = RANDOM.normal(0, 5, 100)  # images differ far more than methods
    one, other = hard + 0.5 + RANDOM.normal(0, 0.5, 100), hard + RANDOM.normal(0, 0.5, 100)
    found = paired_bootstrap(one, other)
    assert 0.2 < found.low < found.mean < found.high < 0.8
    assert found.p < 0.01
    assert found.images == 100
    back = paired_bootstrap(other, one)
    assert back.mean == -found.mean
    assert paired_bootstrap(one, one).p == 1


def test_pairs_need_both_numbers() -> None:
    one, other = np.array([1.0, np.nan, 3.0]), np.array([0.0, 1.0, np.nan])
    assert paired_bootstrap(one, other).images == 1
    assert math.isnan(paired_bootstrap(one[1:2], other[1:2]).mean)
    with pytest.raises(InputError, match="same images"):
        paired_bootstrap(one, other[:2])


def test_friedman_agrees_with_scipy_and_demsar() -> None:
    table = RANDOM.random((30, 4)) + np.array([0, 0.1, 0.2, 0.4])
    found = friedman(table, higher_is_better=True)
    assert found.p == pytest.approx(stats.friedmanchisquare(*table.T).pvalue)
    expected = np.mean([stats.rankdata(-row) for row in table], axis=0)
    np.testing.assert_allclose(found.ranks, expected)
    # Demsar 2006, table 5: q is 2.569 for four classifiers at 5 %.
    assert found.critical_difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 30)), rel=1e-3)
    turned = friedman(-table, higher_is_better=False)
    np.testing.assert_allclose(turned.ranks, found.ranks)


def test_friedman_leaves_incomplete_images_out() -> None:
    table = RANDOM.random((10, 3))
    table[2, 1] = np.nan
    assert friedman(table, higher_is_better=True).images == 9
    assert friedman(table[:, :1], higher_is_better=True).ranks.tolist() == [1.0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=20), st.booleans())
def test_win_rates(rows: list[list[int]], higher: bool) -> None:
    table = np.array(rows, dtype=float)
    rates = win_rates(table, higher)
    np.testing.assert_allclose(rates + rates.T, 1)
    for i in range(3):
        for j in range(3):
            won = [1.0 if (r[i] > r[j]) == higher and r[i] != r[j] else 0.5 * (r[i] == r[j]) for r in rows]
            assert rates[i, j] == pytest.approx(np.mean(won))
