"""The interior point behind ``mda(compat=authors)``: exact where it may go on, and else where cvxopt stops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.goldens import FOLDER
from vitrail.method.mda import authors as mda_authors
from vitrail.method.mda.authors import early_steps
from vitrail.method.mda.authors_qp import Programme, Tolerances, curve_programme, solve
from vitrail.method.mda.magnitude import concave_steps, monotone

EXACT = Tolerances(1e-10, 1e-10, 1e-9)


def rising(values: list[float]) -> np.ndarray:
    return np.concatenate([[0], np.sort(values), [1]])


# ------------------------------------------------------------------------------------------------------------ exactly


def test_a_problem_that_is_solved_by_hand() -> None:
    """The point of the line x + y = 1 that is nearest to zero, where x is 0.7 or more."""
    programme = Programme(
        p=2 * np.eye(2),
        q=np.zeros(2),
        g=np.array([[-1.0, 0.0]]),
        h=np.array([-0.7]),
        a=np.ones((1, 2)),
        b=np.ones(1),
    )
    found = solve(programme, EXACT)
    assert found is not None
    np.testing.assert_allclose(found, [0.7, 0.3], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=24))
def test_with_narrow_tolerances_it_finds_the_nearest_curve(values: list[float]) -> None:
    curve = 0.1 + 0.8 * rising(values)  # away from its bounds, where rounding sets a limit to what can be reached
    expected = 0.1 + np.concatenate([[0], concave_steps(curve).cumsum()])
    for up in (True, False):
        found = solve(curve_programme(curve if up else 1 - curve, up), EXACT)
        assert found is not None
        np.testing.assert_allclose(found if up else 1 - found, expected, atol=5e-5)


# --------------------------------------------------------------------------------------------------- where they stop


def stored() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Curves that the authors' code met on real images, falling ones, and what cvxopt made of them."""
    with np.load(FOLDER / "injected" / "mda.npz") as file:
        keys = [key for key in file.files if key.endswith("/curves")]
        pairs = [(key, file[key], file[key.replace("/curves", "/fitted")]) for key in keys]
    return [(f"{key}/{i}", curves[i], fitted[i]) for key, curves, fitted in pairs for i in range(len(curves))]


def test_stops_where_cvxopt_does() -> None:
    """Also where that is far from the nearest curve; a step of the way more or less would be some 1e-5 off."""
    away = []
    for name, curve, theirs in stored():
        found = solve(curve_programme(curve, rising=False))
        assert found is not None
        assert np.abs(found - theirs).max() <= 1e-6, name
        away.append(np.abs(np.diff(theirs) + concave_steps(1 - curve)).max() / np.abs(np.diff(theirs)).max())
    assert len(away) >= 10
    assert max(away) > 1e-3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=24), st.sampled_from(["any", "ties", "steep", "flat"]), st.booleans())
def test_whatever_the_curve_steps_come_out(values: list[float], kind: str, up: bool) -> None:
    curve = {
        "any": rising(values),
        "ties": rising([round(value, 1) for value in values]),
        "steep": np.array([0.0] + [1.0] * (len(values) + 1)),
        "flat": np.full(len(values) + 2, values[0] if values else 1.0),
    }[kind]
    steps = early_steps(curve if up else 1 - curve, up)
    assert len(steps) == len(curve) - 1
    assert np.isfinite(steps).all()
    assert (steps >= 0).all()
    assert np.abs(steps.cumsum() - concave_steps(curve).cumsum()).max() < 0.02


def test_responses_that_are_not_numbers() -> None:
    nan = float("nan")
    assert solve(curve_programme(np.array([0, nan, 1.0]), rising=True)) is None
    curve = monotone(np.array([0.1, nan, nan, 0.7, nan]), 0.1, 0.7, rising=True)
    assert early_steps(curve, rising=True).sum() == pytest.approx(1)


@pytest.mark.parametrize("up", [True, False])
def test_without_an_end_the_exact_solution_serves(up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = rising([0.1, 0.1, 0.4, 0.9])
    programme = curve_programme(curve if up else 1 - curve, up)
    assert solve(programme, most=3) is None
    monkeypatch.setattr(mda_authors, "solve", lambda _: None)
    np.testing.assert_allclose(early_steps(curve if up else 1 - curve, up), concave_steps(curve), atol=1e-12)
