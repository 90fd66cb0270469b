"""Backgrounds and clutter, drawn without any knowledge of the objects in front of them."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from .paint import Canvas, Colour, Floats, Points, hsv, noise, smooth

Generator = np.random.Generator


@lru_cache(maxsize=4)
def grid(size: int) -> tuple[Floats, Floats]:
    """Column and row of every pixel centre, each (size, size), as shares of the picture."""
    steps = ((np.arange(size) + 0.5) / size).astype(np.float32)
    x, y = np.meshgrid(steps, steps)
    x.flags.writeable = y.flags.writeable = False
    return x, y


def plain(colour: Colour) -> Floats:
    """A colour as a (3, 1, 1) picture."""
    return np.asarray(colour, dtype=np.float32).reshape(3, 1, 1)


def _soft_step(values: Floats, sharpness: float) -> Floats:
    """0 below zero, 1 above, with a ramp of width 1 / sharpness between."""
    return np.asarray(np.clip(values * np.float32(sharpness) + np.float32(0.5), 0.0, 1.0), dtype=np.float32)


def _blend(low: Colour, high: Colour, share: Floats) -> Floats:
    """Picture (3, H, W) between two colours."""
    return plain(low) + share * (plain(high) - plain(low))


def _muted(rng: Generator, hue: float) -> Colour:
    """Background paint: calmer than what objects wear."""
    return hsv(hue + rng.uniform(-0.06, 0.06), rng.uniform(0.1, 0.45), rng.uniform(0.5, 0.95))


def _neighbour(rng: Generator, colour: Colour) -> Colour:
    """A colour near the given one, to pattern it with."""
    step, tint = rng.choice([-1.0, 1.0]) * rng.uniform(0.06, 0.16), rng.uniform(-0.04, 0.04, 3)
    r, g, b = (float(min(max(c + step + t, 0.0), 1.0)) for c, t in zip(colour, tint))
    return r, g, b


def _turned(rng: Generator, size: int) -> tuple[Floats, Floats]:
    """Pixel coordinates in a randomly turned frame."""
    x, y = grid(size)
    angle = rng.uniform(0.0, math.pi)
    c, s = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    return c * x + s * y, c * y - s * x


def _gradient(rng: Generator, size: int, hue: float) -> Floats:
    along, _ = _turned(rng, size)
    return _blend(_muted(rng, hue), _muted(rng, hue + 0.1), (along - along.min()) / np.ptp(along))


def _cloudy(rng: Generator, size: int, hue: float) -> Floats:
    values = noise(rng, size, int(rng.integers(3, 8)), octaves=4)
    return _blend(_muted(rng, hue), _muted(rng, hue + rng.uniform(-0.2, 0.2)), np.clip(0.5 + 0.45 * values, 0.0, 1.0))


def _stripes(rng: Generator, size: int, hue: float) -> Floats:
    along, across = _turned(rng, size)
    count, wave = rng.uniform(4.0, 13.0), rng.uniform(0.0, 0.03)
    phase = along + np.float32(wave) * np.sin(across * np.float32(rng.uniform(6.0, 20.0)))
    colour = _muted(rng, hue)
    return _blend(colour, _neighbour(rng, colour), _soft_step(np.sin(phase * np.float32(count * 2.0 * math.pi)), 2.5))


def _checks(rng: Generator, size: int, hue: float) -> Floats:
    along, across = _turned(rng, size)
    count = np.float32(rng.uniform(3.0, 8.0) * math.pi)
    colour = _muted(rng, hue)
    return _blend(colour, _neighbour(rng, colour), _soft_step(np.sin(along * count) * np.sin(across * count), 4.0))


def _tiles(rng: Generator, size: int, hue: float) -> Floats:
    """Bricks or tiles, each of its own tone, with joints."""
    x, y = grid(size)
    rows = int(rng.integers(5, 12))
    columns, offset = max(3, int(rows * rng.uniform(0.4, 1.0))), rng.choice([0.0, 0.5])
    row = np.floor(y * rows)
    column = x * columns + np.float32(offset) * (row % 2)
    tone = rng.uniform(-0.06, 0.06, (rows, columns + 1)).astype(np.float32)
    picture = plain(_muted(rng, hue)) + tone[row.astype(int), column.astype(int)]
    level, upright = np.abs(y * rows - np.rint(y * rows)) / rows, np.abs(column - np.rint(column)) / columns
    joint = np.minimum(level, upright).astype(np.float32)
    depth = np.float32(rng.uniform(0.08, 0.2) * rng.choice([-1.0, 1.0]))
    return np.asarray(picture + depth * (1.0 - _soft_step(joint - 0.008, size)), dtype=np.float32)


def _dots(rng: Generator, size: int, hue: float) -> Floats:
    along, across = _turned(rng, size)
    count = rng.uniform(5.0, 11.0)
    u, v = along * np.float32(count), across * np.float32(count)
    distance = np.hypot(u - np.rint(u), v - np.rint(v)).astype(np.float32)
    colour = _muted(rng, hue)
    return _blend(
        colour, _neighbour(rng, colour), _soft_step(np.float32(rng.uniform(0.2, 0.35)) - distance, size / count)
    )


def _blobs(rng: Generator, size: int, hue: float) -> Floats:
    """Soft lights of several colours, as in an unfocused photograph."""
    x, y = grid(size)
    picture = _gradient(rng, size, hue)
    for _ in range(int(rng.integers(4, 8))):
        cx, cy, radius = rng.uniform(0.0, 1.0), rng.uniform(0.0, 1.0), rng.uniform(0.08, 0.25)
        share = 0.6 * np.exp(-((x - np.float32(cx)) ** 2 + (y - np.float32(cy)) ** 2) / np.float32(radius**2))
        picture += share * (plain(_muted(rng, rng.uniform())) - picture)
    return picture


def _hills(rng: Generator, size: int, hue: float) -> Floats:
    """Sky over two to four ranges of hills."""
    x, y = grid(size)
    picture = _blend(_muted(rng, rng.uniform(0.45, 0.65)), hsv(rng.uniform(0.0, 0.2), 0.15, 0.95), y)
    ranges = int(rng.integers(2, 5))
    for i in range(ranges):
        level = 0.35 + 0.5 * (i + rng.uniform(0.0, 0.6)) / ranges
        a, b, p, q = rng.uniform(0.02, 0.07), rng.uniform(0.01, 0.03), rng.uniform(0.0, 6.0), rng.uniform(0.0, 6.0)
        ridge = level + a * np.sin(x[0] * 5.0 + p) + b * np.sin(x[0] * 13.0 + q)
        land = _soft_step(y - ridge.astype(np.float32)[None, :], size)
        colour = hsv(hue + 0.04 * i, rng.uniform(0.2, 0.45), rng.uniform(0.5, 0.85))
        picture += land * (plain(colour) - picture)
    return picture


def _room(rng: Generator, size: int, hue: float) -> Floats:
    """A patterned wall above a floor of another pattern."""
    _, y = grid(size)
    patterns = (_stripes, _checks, _dots, _tiles, _gradient)
    wall = patterns[int(rng.integers(len(patterns)))](rng, size, hue)
    floor = patterns[int(rng.integers(len(patterns)))](rng, size, hue + rng.uniform(0.2, 0.8))
    level = np.float32(rng.uniform(0.55, 0.8))
    skirting = _soft_step(np.float32(0.02) - np.abs(y - level), size)
    picture = wall + _soft_step(y - level, size) * (floor - wall)
    return np.asarray(picture + skirting * (np.float32(rng.uniform(0.3, 0.95)) - picture), dtype=np.float32)


KINDS: tuple[Callable[[Generator, int, float], Floats], ...] = (
    _gradient,
    _cloudy,
    _stripes,
    _checks,
    _tiles,
    _dots,
    _blobs,
    _hills,
    _room,
)


def background(rng: Generator, size: int) -> Floats:
    """A textured background (3, size, size), about 0..1, not clipped."""
    picture = KINDS[int(rng.integers(len(KINDS)))](rng, size, rng.uniform())
    grain = noise(rng, size, int(rng.integers(4, 20)), octaves=3)
    picture += grain * np.float32(rng.uniform(0.02, 0.07))
    return picture


def _fragment(rng: Generator, kind: int) -> Points:
    """Outline of a piece of clutter inside the unit circle."""
    if kind == 0:  # polygon
        corners = int(rng.integers(3, 7))
        angles = np.sort(rng.uniform(0.0, 2.0 * math.pi, corners))
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if kind == 1:  # disc
        angles = np.linspace(0.0, 2.0 * math.pi, 20, endpoint=False)
        return np.stack([np.cos(angles), np.sin(angles) * rng.uniform(0.6, 1.0)], axis=1)
    if kind == 2:  # stick
        half = rng.uniform(0.04, 0.12)
        return np.array([(-1.0, -half), (1.0, -half), (1.0, half), (-1.0, half)])
    if kind == 3:  # leaf
        half = rng.uniform(0.25, 0.45)
        return smooth([(-1.0, 0.0), (-0.3, half), (0.4, half * 0.8), (1.0, 0.0), (0.4, -half * 0.8), (-0.3, -half)], 4)
    angles = np.linspace(0.0, 2.0 * math.pi, 9, endpoint=False)  # pebble
    radii = rng.uniform(0.6, 1.0, 9)
    return smooth([(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles)], 3)


def clutter(rng: Generator, canvas: Canvas) -> None:
    """Scatters up to fourteen coloured fragments over the canvas; objects are drawn over them later."""
    count, unit = int(rng.integers(3, 15)), canvas.size / 144.0
    angles, radii = rng.uniform(0.0, 2.0 * math.pi, count), rng.uniform(3.0, 13.0, count) * unit
    kinds, centres = rng.integers(5, size=count), rng.uniform(0.0, canvas.size, (count, 2))
    paints = rng.uniform((0.0, 0.2, 0.35), (1.0, 0.75, 0.92), (count, 3))
    for kind, angle, radius, centre, paint in zip(kinds, angles, radii, centres, paints.tolist()):
        c, s = math.cos(angle) * radius, math.sin(angle) * radius
        canvas.fill(_fragment(rng, int(kind)) @ np.array([[c, s], [-s, c]]) + centre, hsv(*paint), 0)
