"""Composition: objects over a background, with the exact mask of every object and part.

A pixel consists of 3 x 3 sub-pixels, each painted by exactly one primitive. A pixel belongs to an object when at least
five of its nine sub-pixels do, and then to the part of that object that holds most of them (the part drawn first where
two hold as many). Hence parts are disjoint, their union is the object, and objects are disjoint.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from ..errors import InputError
from .backgrounds import background, clutter, grid
from .catalogue import CLASSES, SHORTCUT_CLASS, family_of
from .paint import Canvas, Floats, Look, Pen, Points, noise

SIZE = 144
"""Side of a picture in pixels, unless another is asked for."""

Mask = NDArray[np.bool_]
Shortcut = Literal["never", "always", "class"]

# Every random decision has its own stream, so that switching one thing leaves all others as they are.
_LABELS, _BACKGROUND, _CLUTTER, _LAYOUT, _LIGHT, _CIRCLE, _OBJECTS = range(7)


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene.

    Attributes:
        label: class index.
        name: class name.
        mask: (H, W) visible pixels.
        parts: (H, W) visible pixels of each part, by name; disjoint, and their union is `mask`.
        box: x1, y1, x2, y2 of the mask, the last two exclusive.
    """

    label: int
    name: str
    mask: Mask
    parts: Mapping[str, Mask]
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class Scene:
    """A picture and the truth about it.

    Attributes:
        image: (H, W, 3) uint8.
        objects: one or two objects, of different classes.
        shortcut_mask: (H, W) pixels that the white circle touches, or None without circle.
        seed: what `make` needs to draw it again.
    """

    image: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]
    shortcut_mask: Mask | None
    seed: tuple[int, ...]

    @property
    def label(self) -> int:
        """Label of the first object."""
        return self.objects[0].label

    @property
    def name(self) -> str:
        """Class name of the first object."""
        return self.objects[0].name

    @property
    def pil(self) -> Image.Image:
        """The picture for PIL."""
        return Image.fromarray(self.image)


def _stream(seed: tuple[int, ...], *purpose: int) -> np.random.Generator:
    """Random stream of one decision. The length of the seed enters, since numpy pads seeds with zeros."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(len(seed), *purpose))))


def class_index(name: str | int) -> int:
    """Label of a class given by name or label."""
    if isinstance(name, str):
        if name in CLASSES:
            return CLASSES.index(name)
        near = difflib.get_close_matches(name.lower(), CLASSES, n=1, cutoff=0.0)[0]
        raise InputError(f"Unknown class {name!r}. Did you mean {near!r}? The classes are: {', '.join(CLASSES)}.")
    if not 0 <= name < len(CLASSES):
        raise InputError(f"Unknown class {name}: labels go from 0 to {len(CLASSES) - 1}. Give one of those, or a name.")
    return int(name)


def _placement(rng: np.random.Generator, centre: tuple[float, float], half: float) -> Callable[[Points], Points]:
    """Map from the frame of an object to pixels: stretched, flipped, turned, shifted and slightly bent."""
    angle, flip = rng.uniform(-0.2, 0.2), rng.choice([-1.0, 1.0])
    wide, tall = rng.uniform(0.9, 1.0, 2)
    c, s = math.cos(angle), math.sin(angle)
    matrix = half * np.array([[flip * wide * c, flip * wide * s], [-tall * s, tall * c]])
    bend, phase = rng.uniform(0.0, 0.035, 2), rng.uniform(0.0, 2.0 * math.pi, 2)

    def place(points: Points) -> Points:
        bent = points + bend * np.sin(2.5 * points[:, ::-1] + phase)
        return np.asarray(bent @ matrix + centre)

    return place


def _layout(rng: np.random.Generator, count: int) -> list[tuple[tuple[float, float], float]]:
    """Centre and half size of each object, as shares of the picture."""
    if count == 1:
        half = rng.uniform(0.24, 0.42)
        slack = 0.48 - half
        return [((0.5 + rng.uniform(-slack, slack), 0.5 + rng.uniform(-slack, slack)), half)]
    halves = rng.uniform(0.228, 0.25, 2)
    across = rng.uniform(0.25, 0.75, 2)
    order = rng.permutation(2)
    along = np.array([0.25, 0.75])[order]
    if rng.uniform() < 0.7:
        return [((float(along[i]), float(across[i])), float(halves[i])) for i in range(2)]
    return [((float(across[i]), float(along[i])), float(halves[i])) for i in range(2)]


def _owned(canvas: Canvas, coverage: Floats, parts: Mapping[str, int]) -> dict[str, Mask]:
    """Pixels of every part of one object, by the rule in the head of this file."""
    x1, y1, x2, y2 = canvas.window(parts.values())
    shares = coverage[list(parts.values()), y1:y2, x1:x2]
    owner = np.full(coverage.shape[1:], -1)
    owner[y1:y2, x1:x2] = np.where(shares.sum(axis=0) > 0.5, shares.argmax(axis=0), -1)
    return {name: owner == i for i, name in enumerate(parts)}


def _shading(canvas: Canvas, coverage: Floats, rng: np.random.Generator) -> Floats:
    """Light on the painted parts (H, W): each part swells a little, and light falls from one side."""
    size = canvas.size
    angle = rng.uniform(math.pi * 1.1, math.pi * 1.9)
    strength, radius, reach = rng.uniform(0.2, 0.5), 2.5 * size / 144.0, max(1, round(size / 72.0))
    dx, dy = round(reach * math.cos(angle)), round(reach * math.sin(angle))
    relief, pad = np.zeros((size, size), dtype=np.float32), math.ceil(radius) + reach
    for share, solid, (x1, y1, x2, y2) in zip(coverage, canvas.solids, canvas.windows):
        if x1 < x2 and y1 < y2:
            # The relief of a part looks at its own whole shape, so a neighbour can be exchanged without a trace.
            around = solid.crop((x1 - pad, y1 - pad, x2 + pad, y2 + pad)).filter(ImageFilter.BoxBlur(radius))
            soft, h, w = np.asarray(around, dtype=np.float32), y2 - y1, x2 - x1
            lit = soft[pad + dy : pad + dy + h, pad + dx : pad + dx + w]
            dim = soft[pad - dy : pad - dy + h, pad - dx : pad - dx + w]
            relief[y1:y2, x1:x2] += share[y1:y2, x1:x2] * (dim - lit) * np.float32(1.0 / 255.0)
    x, y = grid(size)
    slant = (x - 0.5) * np.float32(math.cos(angle)) + (y - 0.5) * np.float32(math.sin(angle))
    grain = noise(rng, size, 24, octaves=2) * np.float32(rng.uniform(0.02, 0.08))
    return np.asarray(1.0 + strength * (relief + 0.5 * slant) + grain, dtype=np.float32)


def _shadow(picture: Floats, centre: tuple[float, float], half: float) -> None:
    """Soft dark ellipse below the middle of an object, whatever the object is."""
    x, y = grid(picture.shape[1])
    u = (x - np.float32(centre[0])) / np.float32(half * 0.85)
    v = (y - np.float32(centre[1] + 0.85 * half)) / np.float32(half * 0.3)
    picture *= 1.0 - 0.4 * np.exp(-(u * u + v * v))


@lru_cache(maxsize=4)
def circle_stamp(size: int) -> Floats:
    """Share of every pixel that the circle covers (13 x 13 at 144 pixels), in a picture of this size."""
    radius = 5.5 * size / 144.0
    side = 2 * math.ceil(radius) + 1
    steps = (np.arange(side * 8) + 0.5) / 8.0 - side / 2.0
    inside = np.hypot(steps[:, None], steps[None, :]) <= radius
    return np.asarray(inside.reshape(side, 8, side, 8).mean(axis=(1, 3)), dtype=np.float32)


def circle_corner(seed: tuple[int, ...], taken: Mask) -> tuple[int, int]:
    """Column and row where the stamp of the circle goes: near a border, away from all objects."""
    rng = _stream(seed, _CIRCLE)
    size, side = taken.shape[0], circle_stamp(taken.shape[0]).shape[0]
    near, far = size // 36, size - side - size // 36
    best, least = (near, near), side * side + 1
    for _ in range(200):
        edge, along, depth = int(rng.integers(4)), int(rng.integers(near, far + 1)), int(rng.integers(size // 18 + 1))
        x, y = ((near + depth, along), (far - depth, along), (along, near + depth), (along, far - depth))[edge]
        covered = int(taken[y : y + side, x : x + side].sum())
        if covered < least:
            best, least = (x, y), covered
        if least == 0:
            break
    return best


def paste_circle(image: NDArray[np.uint8], corner: tuple[int, int]) -> Mask:
    """Paints the white circle into the picture, in place, and returns the pixels that it touches."""
    stamp = circle_stamp(image.shape[0])
    x, y = corner
    window = image[y : y + len(stamp), x : x + len(stamp)]
    window[:] = np.rint(window + stamp[..., None] * (255.0 - window)).astype(np.uint8)
    mask = np.zeros(image.shape[:2], dtype=bool)
    mask[y : y + len(stamp), x : x + len(stamp)] = stamp > 0.0
    return mask


def _photograph(picture: Floats, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Contrast, brightness, tint and sensor noise; nothing depends on what the picture shows."""
    contrast, tint = rng.uniform(0.8, 1.15), rng.uniform(0.96, 1.04, (3, 1, 1)).astype(np.float32)
    brightness, sigma = rng.uniform(-0.08, 0.08), rng.uniform(0.0, 0.02)
    grain = rng.standard_normal(picture.shape[1:], dtype=np.float32) * np.float32(255.0 * sigma)
    levels = grain + (picture - np.float32(0.5)) * (np.float32(255.0 * contrast) * tint)
    levels += np.float32(255.0 * (0.5 + brightness) + 0.5)
    np.clip(levels, 0.0, 255.0, out=levels)
    return np.ascontiguousarray(levels.astype(np.uint8).transpose(1, 2, 0))


def _compose(seed: tuple[int, ...], labels: Sequence[int], size: int) -> tuple[NDArray[np.uint8], list[SceneObject]]:
    """Picture without circle, and its objects."""
    canvas = Canvas(size)
    picture = background(_stream(seed, _BACKGROUND), size)
    clutter(_stream(seed, _CLUTTER), canvas)
    numbers: list[dict[str, int]] = []
    for slot, ((centre, half), label) in enumerate(zip(_layout(_stream(seed, _LAYOUT), len(labels)), labels)):
        rng = _stream(seed, _OBJECTS, slot)
        place = _placement(rng, (centre[0] * size, centre[1] * size), half * size)
        pen = Pen(canvas, place, Look.random(rng), rng, own=_stream(seed, _OBJECTS, slot, 1))
        family_of(label).draw(pen, CLASSES[label])
        _shadow(picture, centre, half)
        numbers.append(pen.parts)

    subpixels, light = canvas.parts(), _stream(seed, _LIGHT)
    coverage = canvas.coverage(subpixels)
    painted = canvas.colours() * (_shading(canvas, coverage, light) * (1.0 - 0.6 * canvas.outline(subpixels)))
    picture *= 1.0 - coverage.sum(axis=0)
    picture += painted
    image = _photograph(picture, light)

    objects = []
    for label, parts in zip(labels, numbers):
        owned = _owned(canvas, coverage, parts)
        mask = np.logical_or.reduce(list(owned.values()))
        columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
        box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
        objects.append(SceneObject(label, CLASSES[label], mask, MappingProxyType(owned), box))
    return image, objects


def _checked_labels(seed: tuple[int, ...], objects: int, classes: Sequence[str | int] | None) -> list[int]:
    """Labels of the objects: those asked for, or random different ones."""
    if objects not in (1, 2):
        raise InputError(f"A scene holds 1 or 2 objects, but objects={objects} was given. Give 1 or 2.")
    if classes is None:
        return [int(label) for label in _stream(seed, _LABELS).permutation(len(CLASSES))[:objects]]
    if isinstance(classes, str):
        raise InputError(f"classes takes a sequence of names or labels, but {classes!r} was given. Give [{classes!r}].")
    labels = [class_index(name) for name in classes]
    if len(labels) != objects or len(set(labels)) != objects:
        raise InputError(
            f"{objects} object(s) need as many different classes, but classes={list(classes)} was given. "
            f"Give {objects} different one(s), or None to draw them at random."
        )
    return labels


def make(
    seed: int | Sequence[int],
    *,
    objects: int = 1,
    classes: Sequence[str | int] | None = None,
    shortcut: bool = False,
    size: int = SIZE,
) -> Scene:
    """Draws the scene of a seed; the same arguments give the same picture anywhere.

    Two classes of a pair, drawn with the same seed, differ in nothing but the differing part.

    Args:
        seed: a non-negative integer, or several.
        objects: 1 or 2.
        classes: class (name or label) of each object; None draws them at random.
        shortcut: whether the white circle is there.
        size: side of the picture in pixels, at least 48.

    Example:
        >>> make(0, classes=["cat"]).name
        'cat'
    """
    key = (int(seed),) if isinstance(seed, (int, np.integer)) else tuple(int(s) for s in seed)
    if not key or min(key) < 0:
        raise InputError(f"A seed is a non-negative integer or several, but {seed} was given. Give for example 0.")
    if size < 48:
        raise InputError(f"A scene is at least 48 pixels wide, but {size} was given. Give for example {SIZE}.")
    image, drawn = _compose(key, _checked_labels(key, objects, classes), size)
    circle = None
    if shortcut:
        taken = np.logical_or.reduce([thing.mask for thing in drawn])
        circle = paste_circle(image, circle_corner(key, taken))
    return Scene(image, tuple(drawn), circle, key)


class Scenes:
    """Map-style dataset: scene `i` depends on `(seed, i)` alone.

    Args:
        count: number of scenes.
        seed: a non-negative integer; other seeds give other scenes.
        objects: objects per scene, 1 or 2.
        classes: None for random classes; else every scene gets `objects` random ones out of these.
        shortcut: "never", "always", or "class": the circle is there exactly when the label is `SHORTCUT_CLASS`.
        size: side of the pictures in pixels.
    """

    def __init__(
        self,
        count: int,
        *,
        seed: int = 0,
        objects: int = 1,
        classes: Sequence[str | int] | None = None,
        shortcut: Shortcut = "never",
        size: int = SIZE,
    ) -> None:
        if count < 0 or seed < 0:
            raise InputError(f"count and seed are at least 0, but count={count}, seed={seed} was given.")
        if shortcut not in get_args(Shortcut):
            raise InputError(
                f'shortcut is "never", "always" or "class", but {shortcut!r} was given. Give one of these.'
            )
        choice = list(CLASSES) if classes is None else classes
        if isinstance(choice, str):
            raise InputError(
                f"classes takes a sequence of names or labels, but {choice!r} was given. Give [{choice!r}]."
            )
        self.labels = tuple(dict.fromkeys(class_index(name) for name in choice))
        if objects not in (1, 2) or len(self.labels) < objects:
            raise InputError(
                f"A scene holds 1 or 2 objects of different classes, but objects={objects} of {len(self.labels)} "
                "class(es) was asked for. Ask for 1 or 2 objects, and give at least as many classes."
            )
        self.count, self.seed, self.objects, self.size = count, seed, objects, size
        self.shortcut: Shortcut = shortcut

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Scene:
        if not -self.count <= index < self.count:
            raise IndexError(f"scene {index} of {self.count}")
        key = (self.seed, index % self.count)
        order = _stream(key, _LABELS).permutation(len(self.labels))[: self.objects]
        labels = [self.labels[i] for i in order]
        circle = self.shortcut == "always" or (self.shortcut == "class" and labels[0] == SHORTCUT_CLASS)
        return make(key, objects=self.objects, classes=labels, shortcut=circle, size=self.size)
