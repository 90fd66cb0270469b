"""Drawing with exact masks: a supersampled canvas that remembers which part every sub-pixel belongs to.

Every primitive is one polygon, filled once with a private index. Two lookup tables turn the index picture into colours
and into parts, so a colour and its mask can never disagree.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

OVERSAMPLE = 3
"""Sub-pixels per pixel and direction."""

Floats = NDArray[np.float32]
Points = NDArray[np.float64]
Colour = tuple[float, float, float]
"""Red, green, blue in 0..1."""

_NOTHING = 255  # part number of unpainted sub-pixels

_TURN = np.linspace(0.0, 2.0 * math.pi, 28, endpoint=False)
_CIRCLE: Points = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """Colour from a hue (in turns, any real number), a saturation and a value (clipped to 0..1)."""
    saturation, value = min(max(saturation, 0.0), 1.0), min(max(value, 0.0), 1.0)

    def channel(n: int) -> float:
        k = (n + hue * 6.0) % 6.0
        return value - value * saturation * max(0.0, min(k, 4.0 - k, 1.0))

    return channel(5), channel(3), channel(1)


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """Blend of two colours; `share` is the weight of the second."""
    r, g, b = (a + (c - a) * share for a, c in zip(first, second))
    return r, g, b


def shade(colour: Colour, factor: float) -> Colour:
    """Darker (factor < 1) or lighter (factor > 1) version of a colour."""
    r, g, b = (min(1.0, c * factor) for c in colour)
    return r, g, b


@lru_cache(maxsize=8)
def _spline_weights(steps: int) -> Points:
    """Weights (steps, 4) of the four knots around a point of a Catmull-Rom curve."""
    t = (np.arange(steps) / steps)[:, None] ** np.arange(4)
    return np.asarray(t @ np.array([[0, 2, 0, 0], [-1, 0, 1, 0], [2, -5, 4, -1], [-1, 3, -3, 1]]) / 2.0)


def smooth(knots: Sequence[tuple[float, float]], steps: int = 6) -> Points:
    """Closed Catmull-Rom curve through the knots, `steps` points per knot."""
    points = np.asarray([knots[-1], *knots, *knots[:2]], dtype=np.float64)
    windows = np.stack([points[i : i + len(knots)] for i in range(4)])
    return np.asarray(np.einsum("st,tkd->ksd", _spline_weights(steps), windows).reshape(-1, 2))


def noise(rng: np.random.Generator, size: int, cells: int, octaves: int = 1) -> Floats:
    """Value noise (size, size) in about -1..1: random grids, each octave twice as fine and half as strong."""
    total = np.zeros((1, 1), dtype=np.float32)
    for octave in range(octaves):
        side = min(cells << octave, size)
        # Every octave is enlarged to the next one's grid only; the picture's size is reached once, at the end.
        total = _resized(total, side) + rng.uniform(-1.0, 1.0, (side, side)).astype(np.float32) * np.float32(
            0.5**octave
        )
    return _resized(total, size)


def _resized(values: Floats, side: int) -> Floats:
    """Square picture, enlarged smoothly."""
    return np.asarray(Image.fromarray(values).resize((side, side), Image.Resampling.BICUBIC))


def _shares(subpixels: NDArray[np.bool_]) -> Floats:
    """Share of true sub-pixels in every pixel."""
    counts = subpixels.view(np.uint8)
    rows = sum((counts[i::OVERSAMPLE] for i in range(1, OVERSAMPLE)), counts[0::OVERSAMPLE])
    cells = sum((rows[:, i::OVERSAMPLE] for i in range(1, OVERSAMPLE)), rows[:, 0::OVERSAMPLE])
    return np.asarray(cells * np.float32(1.0 / OVERSAMPLE**2), dtype=np.float32)


class Canvas:
    """Index picture, `OVERSAMPLE` times finer than the final one. Index 0 is empty; part 0 is clutter.

    Attributes:
        size: side of the final picture.
        windows: x1, y1, x2, y2 around every part, in final pixels.
        solids: the whole shape of every part, also where others hide it; coarse, for shading only.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.windows: list[tuple[int, int, int, int]] = []
        self.solids: list[Image.Image] = []
        self._indices = Image.new("L", (size * OVERSAMPLE, size * OVERSAMPLE), 0)
        self._draw = ImageDraw.Draw(self._indices)
        self._palette: list[int] = [0, 0, 0]
        self._part_of: list[int] = [_NOTHING]
        self._solid_draws: list[ImageDraw.ImageDraw] = []
        self.new_part()

    def new_part(self) -> int:
        """Opens a part and returns its number."""
        self.windows.append((self.size, self.size, 0, 0))
        self.solids.append(Image.new("L", (self.size, self.size), 0))
        self._solid_draws.append(ImageDraw.Draw(self.solids[-1]))
        return len(self.windows) - 1

    def fill(self, points: Points, colour: Colour, part: int) -> None:
        """Fills a polygon given in pixels of the final picture."""
        if len(self._part_of) > 255:
            raise RuntimeError("a canvas holds at most 255 primitives")
        self._palette.extend(round(255.0 * c) for c in colour)
        self._part_of.append(part)
        self._solid_draws[part].polygon(points.ravel().tolist(), fill=255)
        corners: list[float] = (points * OVERSAMPLE).ravel().tolist()
        self._draw.polygon(corners, fill=len(self._part_of) - 1)
        x1, y1, x2, y2 = self.windows[part]
        xs, ys = corners[0::2], corners[1::2]
        # One pixel to spare on each side: the rasteriser also fills what a border merely touches.
        self.windows[part] = (
            max(0, min(x1, int(min(xs)) // OVERSAMPLE - 1)),
            max(0, min(y1, int(min(ys)) // OVERSAMPLE - 1)),
            min(self.size, max(x2, int(max(xs)) // OVERSAMPLE + 2)),
            min(self.size, max(y2, int(max(ys)) // OVERSAMPLE + 2)),
        )

    def window(self, parts: Iterable[int]) -> tuple[int, int, int, int]:
        """x1, y1, x2, y2 around several parts, in final pixels."""
        x1, y1, x2, y2 = zip(*(self.windows[part] for part in parts))
        return min(x1), min(y1), max(x2), max(y2)

    def parts(self) -> NDArray[np.uint8]:
        """Part number of every sub-pixel."""
        lookup = self._part_of + [_NOTHING] * (256 - len(self._part_of))
        return np.asarray(self._indices.point(lookup))

    def colours(self) -> Floats:
        """Painted colours (3, H, W) in 0..1, premultiplied with the share of the pixel that is painted."""
        painted = np.empty((3, self.size, self.size), dtype=np.float32)
        for channel, values in enumerate(painted):
            levels = self._palette[channel::3]
            lookup = levels + [0] * (256 - len(levels))
            values[:] = np.asarray(self._indices.point(lookup).reduce(OVERSAMPLE))
        painted *= np.float32(1.0 / 255.0)
        return painted

    def coverage(self, parts: NDArray[np.uint8]) -> Floats:
        """Share of every pixel that each part covers, (parts, H, W), in ninths."""
        shares = np.zeros((len(self.windows), self.size, self.size), dtype=np.float32)
        for part, (x1, y1, x2, y2) in enumerate(self.windows):
            if x1 < x2 and y1 < y2:
                window = parts[y1 * OVERSAMPLE : y2 * OVERSAMPLE, x1 * OVERSAMPLE : x2 * OVERSAMPLE]
                shares[part, y1:y2, x1:x2] = _shares(window == part)
        return shares

    def outline(self, parts: NDArray[np.uint8]) -> Floats:
        """Share of every pixel (H, W) on the rim of a part of an object, where it meets anything else."""
        rim = np.zeros((self.size, self.size), dtype=np.float32)
        x1, y1, x2, y2 = self.window(range(1, len(self.windows)))
        inner = parts[y1 * OVERSAMPLE : y2 * OVERSAMPLE, x1 * OVERSAMPLE : x2 * OVERSAMPLE]
        step = OVERSAMPLE - 1
        across, down = inner[:, step:] != inner[:, :-step], inner[step:] != inner[:-step]
        edge = np.zeros(inner.shape, dtype=bool)
        edge[:, step:] |= across
        edge[:, :-step] |= across
        edge[step:] |= down
        edge[:-step] |= down
        # Clutter (0) and nothing (255, which wraps to 0) have no rim.
        edge &= inner + np.uint8(1) > 1
        rim[y1:y2, x1:x2] = _shares(edge)
        return rim


@dataclass(frozen=True)
class Look:
    """Paints of one object, drawn without regard to its class."""

    main: Colour
    second: Colour
    accent: Colour
    pale: Colour
    deep: Colour
    glass: Colour

    @staticmethod
    def random(rng: np.random.Generator) -> "Look":
        """Harmonious paints around a random hue."""
        hue = rng.uniform()
        second = hue + rng.choice([0.08, -0.08, 0.33, -0.33, 0.5]) + rng.uniform(-0.03, 0.03)
        accent = hue + rng.choice([0.5, 0.42, 0.58, 0.17]) + rng.uniform(-0.03, 0.03)
        s, v = rng.uniform(0.45, 0.85, 3), rng.uniform(0.62, 0.98, 3)
        return Look(
            main=hsv(hue, s[0], v[0]),
            second=hsv(second, s[1], v[1]),
            accent=hsv(accent, s[2], v[2]),
            pale=hsv(hue + rng.uniform(-0.1, 0.1), rng.uniform(0.04, 0.18), rng.uniform(0.88, 1.0)),
            deep=hsv(hue + 0.5, rng.uniform(0.2, 0.5), rng.uniform(0.14, 0.28)),
            glass=hsv(rng.uniform(0.5, 0.6), rng.uniform(0.2, 0.5), rng.uniform(0.8, 0.98)),
        )


@dataclass
class Pen:
    """Draws one object in its own frame: x to the right, y down, everything inside -1..1.

    Attributes:
        canvas: where the polygons go.
        place: maps (n, 2) points of the frame to pixels.
        look: paints of the object.
        rng: random stream of what the two classes of a pair share.
        own: random stream of the differing part, so that its draws disturb nothing else.
        parts: part number of each part drawn so far, by name.
    """

    canvas: Canvas
    place: Callable[[Points], Points]
    look: Look
    rng: np.random.Generator
    own: np.random.Generator
    parts: dict[str, int] = field(default_factory=dict)
    _current: int = 0

    def part(self, name: str) -> None:
        """What is drawn from here on belongs to this part."""
        if name not in self.parts:
            self.parts[name] = self.canvas.new_part()
        self._current = self.parts[name]

    def polygon(self, points: Sequence[tuple[float, float]] | Points, colour: Colour) -> None:
        """Polygon with straight sides."""
        self.canvas.fill(self.place(np.asarray(points, dtype=np.float64)), colour, self._current)

    def curve(self, knots: Sequence[tuple[float, float]], colour: Colour) -> None:
        """Smooth closed curve through the knots."""
        self.polygon(smooth(knots), colour)

    def ellipse(self, x: float, y: float, rx: float, ry: float, colour: Colour, turn: float = 0.0) -> None:
        """Ellipse around (x, y), turned by `turn` radians."""
        c, s = math.cos(turn), math.sin(turn)
        self.polygon(_CIRCLE @ np.array([[rx * c, rx * s], [-ry * s, ry * c]]) + (x, y), colour)

    def box(self, x1: float, y1: float, x2: float, y2: float, colour: Colour, rounding: float = 0.0) -> None:
        """Axis-parallel box, with rounded corners if asked for."""
        if rounding <= 0.0:
            # The sides are cut in two so that the deformation bends them as it bends everything else.
            x, y = (x1 + x2) / 2.0, (y1 + y2) / 2.0
            self.polygon([(x1, y1), (x, y1), (x2, y1), (x2, y), (x2, y2), (x, y2), (x1, y2), (x1, y)], colour)
            return
        r = min(rounding, (x2 - x1) / 2.0, (y2 - y1) / 2.0)
        middle = np.array([(x1 + x2) / 2.0, (y1 + y2) / 2.0])
        inner = np.array([(x2 - x1) / 2.0 - r, (y2 - y1) / 2.0 - r])
        self.polygon(_CIRCLE * r + np.where(_CIRCLE >= 0.0, inner, -inner) + middle, colour)

    def ribbon(self, path: Sequence[tuple[float, float]], width: float, colour: Colour) -> None:
        """Band of constant width along an open path."""
        line = np.asarray(path, dtype=np.float64)
        ahead = np.concatenate([line[1:], line[-1:]]) - np.concatenate([line[:1], line[:-1]])
        normal = ahead[:, ::-1] * (-1.0, 1.0) / np.hypot(ahead[:, 0], ahead[:, 1])[:, None]
        aside = normal * (width / 2.0)
        self.polygon(np.concatenate([line + aside, (line - aside)[::-1]]), colour)
