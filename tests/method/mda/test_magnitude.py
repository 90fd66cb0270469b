"""Magnitudes: the quadratic programme, and a strict order whatever the curves are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import mda as slow
from vitrail.method.mda.magnitude import (
    _tents,
    _weights,
    concave_steps,
    dense_of,
    monotone,
    sparse_of,
    strictly_falling,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=24))
def test_the_quadratic_programme_is_solved(values: list[float]) -> None:
    curve = np.concatenate([[0], np.sort(values), [1]])
    steps = concave_steps(curve)
    assert (np.diff(steps) <= 0).all()
    assert (steps >= 0).all()
    assert steps.sum() == pytest.approx(1)
    ours, theirs = np.concatenate([[0], steps.cumsum()]), slow.density_curve(curve)
    np.testing.assert_allclose(ours, theirs, atol=1e-7)


def test_the_programme_is_solved_for_curves_with_a_plateau() -> None:
    """A solver that stops early is found by the conditions of an optimum: no tent can pull the sum nearer."""
    random = np.random.default_rng(1)
    for _ in range(500):
        n = int(random.choice([9, 16, 49, 196]))
        rising = int(random.integers(2, n))
        curve = np.concatenate([[0], np.sort(random.random(rising - 1)), np.ones(n - rising + 1)])
        line = np.linspace(0, 1, n + 1)
        weights = _weights(_tents(n), (curve - line)[1:-1])
        pull = _tents(n) @ (curve - line - np.pad(_tents(n) @ weights, 1))[1:-1] / np.linalg.norm(_tents(n), axis=0)
        assert (weights >= 0).all()
        assert pull.max() < 1e-9
        assert np.abs(pull[weights > 0]).max(initial=0) < 1e-9


def test_a_curve_that_is_concave_already_stays() -> None:
    curve = np.sqrt(np.linspace(0, 1, 197))
    np.testing.assert_allclose(concave_steps(curve), np.diff(curve), atol=1e-9)


def test_strict_order_also_where_nothing_tells_patches_apart() -> None:
    flat = concave_steps(np.array([0.0, 1, 1, 1, 1, 1]))
    sparse = sparse_of(flat)
    dense = dense_of(sparse, 0.005)
    assert (np.diff(sparse) < 0).all()
    assert (np.diff(dense) < 0).all()
    assert (np.diff(strictly_falling(np.full(784, 0.25))) < 0).all()


def test_monotone_of_odd_curves() -> None:
    nan = float("nan")
    assert monotone(np.array([0.2, nan, 0.1, 0.6]), 0.2, 0.6, rising=True).tolist() == pytest.approx([0, 0, 0, 1])
    assert monotone(np.array([0.9, 0.9]), 0.9, 0.9, rising=True).tolist() == [0, 1]
    assert monotone(np.array([0.1, 0.7, 0.5]), 0.5, 0.1, rising=False).tolist() == [1, 0.5, 0]
