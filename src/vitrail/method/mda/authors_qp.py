"""The quadratic programme behind MDA's magnitudes as its authors solve it: by an interior point that stops early.

They hand their curve to cvxopt at its default tolerances, and what comes back is up to 1e-3 away from the optimum. To
agree with their maps one must stop where they stop. So this goes the same way: the primal-dual method with
Nesterov-Todd scaling and Mehrotra's correction, for linear inequalities, after L. Vandenberghe, "The CVXOPT linear and
quadratic cone program solvers" (2010). The paper's own way, the default of `mda`, needs none of this: there
`magnitude.concave_steps` is exact.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vitrail.method.mda.magnitude import Array


class Programme(NamedTuple):
    """Minimise x'px / 2 + q'x where gx + s = h with no s below zero, and ax = b."""

    p: Array
    q: Array
    g: Array
    h: Array
    a: Array
    b: Array


class Tolerances(NamedTuple):
    """When to stop: the residuals are small, and so is the gap or its share of the cost."""

    gap: float
    share: float
    residual: float


CVXOPT = Tolerances(gap=1e-7, share=1e-6, residual=1e-7)
"""Its defaults, which the authors leave as they are."""


class Point(NamedTuple):
    """Where the search is, or a direction from there: x, the slacks s with multipliers z, and those of ax = b, y."""

    x: Array
    y: Array
    s: Array
    z: Array


class Residuals(NamedTuple):
    """What is missing in the gradient, in ax = b and in gx + s = h."""

    x: Array
    y: Array
    z: Array


def curve_programme(curve: Array, rising: bool) -> Programme:
    """The nearest curve with values from 0 to 1 and the same ends: concave where it rises, convex where it falls."""
    n = len(curve)
    ones = np.eye(n)
    bends = np.diff(ones, 2, axis=0)
    return Programme(
        p=2 * ones,
        q=-2 * curve,
        g=np.concatenate([-ones, ones, bends if rising else -bends]),
        h=np.concatenate([np.zeros(n), np.ones(n), np.zeros(n - 2)]),
        a=ones[[0, -1]],
        b=curve[[0, -1]],
    )


def solve(programme: Programme, until: Tolerances = CVXOPT, most: int = 100) -> Array | None:
    """The first x on the way that is good enough; None where there is none within ``most`` steps."""
    try:
        with np.errstate(all="ignore"):
            at = _start(programme)
            for _ in range(most + 1):
                rest = _residuals(programme, at)
                if _good(programme, at, rest, until):
                    return at.x
                at = _step(programme, at, rest)
    except np.linalg.LinAlgError:  # no direction to go on in
        pass
    return None


def _start(programme: Programme) -> Point:
    """The optimum without regard to signs, then slacks and multipliers moved up to where they are positive."""
    x, y, z = _kkt(programme, np.ones_like(programme.h))(-programme.q, programme.b, programme.h)
    return Point(x, y, _inside(-z), _inside(z))


def _inside(values: Array) -> Array:
    lowest = values.min()
    return values if lowest > 1e-8 * max(1.0, _norm(values)) else values + (1 - lowest)


def _residuals(programme: Programme, at: Point) -> Residuals:
    p, q, g, h, a, b = programme
    # Where the curve's end is fixed at a bound, the slack is nothing but residual, and falls until rounding is all that
    # is left of it. That sets the course from there on, so what is added first matters: s - h, as they do.
    return Residuals(p @ at.x + q + a.T @ at.y + g.T @ at.z, a @ at.x - b, (at.s - h) + g @ at.x)


def _good(programme: Programme, at: Point, rest: Residuals, until: Tolerances) -> bool:
    sizes = [max(1.0, _norm(part)) for part in (programme.q, programme.b, programme.h)]
    if not all(_norm(part) <= until.residual * size for part, size in zip(rest, sizes)):
        return False
    gap = float(at.s @ at.z)
    primal = float(at.x @ programme.p @ at.x / 2 + programme.q @ at.x)
    dual = primal + float(at.y @ rest.y + at.z @ rest.z) - gap
    cost = -primal if primal < 0 else max(dual, 0.0)  # at least so far from zero lies the optimum
    return gap <= until.gap or gap <= until.share * cost


def _step(programme: Programme, at: Point, rest: Residuals) -> Point:
    """One step: a trial straight at the optimum tells how much to centre, and how far the way bends."""
    scale, both = np.sqrt(at.s / at.z), np.sqrt(at.s * at.z)  # scaled, slacks and multipliers are one and the same
    kkt = _kkt(programme, scale)

    def direction(wish: Array) -> tuple[Point, Array, Array]:
        """In which the products of s and z change by ``wish``, to first order; and its s and z, scaled."""
        x, y, z = kkt(-rest.x, -rest.y, -rest.z - scale * wish / both)
        s = scale * wish / both - scale**2 * z
        return Point(x, y, s, z), s / scale, z * scale

    _, s, z = direction(-(both**2))
    gap, length = float(both @ both), _length(both, s, z, 1.0)
    centring = np.clip(1 - length + length**2 * (s @ z) / gap, 0, 1) ** 3
    move, ds, dz = direction(-(both**2) - s * z + centring * gap / len(both))
    length = _length(both, ds, dz, 0.99)
    return Point(*(part + length * change for part, change in zip(at, move)))


def _length(both: Array, s: Array, z: Array, share: float) -> float:
    """This share of the way to where the first slack or multiplier is zero, at most 1."""
    steepest = -float(min((s / both).min(), (z / both).min()))
    return 1.0 if steepest <= 0 else min(1.0, share / steepest)


def _kkt(programme: Programme, scale: Array) -> Callable[[Array, Array, Array], tuple[Array, Array, Array]]:
    """Solves px + a'y + g'z = u, ax = v, gx - scale^2 z = w for (x, y, z); z is eliminated first."""
    p, _, g, _, a, _ = programme
    n, equations = len(p), len(a)
    weighted = g.T / scale**2
    system = np.block([[p + weighted @ g, a.T], [a, np.zeros((equations, equations))]])

    def solution(u: Array, v: Array, w: Array) -> tuple[Array, Array, Array]:
        found = np.linalg.solve(system, np.concatenate([u + weighted @ w, v]))
        return found[:n], found[n:], (g @ found[:n] - w) / scale**2

    return solution


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values))
