"""Performance information curves of one image, one channel, one threshold and one point after another."""

import io
from itertools import combinations, pairwise

import numpy as np
from PIL import Image
from scipy.interpolate import griddata, interp1d


def with_corners(keep: np.ndarray) -> np.ndarray:
    found = keep.copy()
    for y in (0, -1):
        for x in (0, -1):
            found[y, x] = True
    return found


def blurred(picture: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Missing pixels by scipy's own linear interpolation, every channel for itself."""
    keep = with_corners(keep)
    if keep.all():
        return picture
    found = picture.astype(np.float32)
    for channel in range(picture.shape[2]):
        layer = picture[..., channel]
        mean = layer.mean()
        found[~keep, channel] = griddata(np.argwhere(keep), layer[keep], np.argwhere(~keep), "linear", fill_value=mean)
    return np.round(found).astype(np.uint8)


def delaunay_values(picture: np.ndarray, keep: np.ndarray) -> dict[tuple[int, int], set[float]]:
    """The values that each missing pixel of a one-channel picture has in any triangle with no point in its circle.

    Where more than three points lie on one circle there are several such triangles, and the values may differ.
    """
    points = np.argwhere(with_corners(keep))
    missing = np.argwhere(~with_corners(keep))
    found: dict[tuple[int, int], set[float]] = {tuple(p): set() for p in missing.tolist()}
    for corners in combinations(points.tolist(), 3):
        a, b, c = (np.array(p, np.int64) for p in corners)
        whole = cross(b - a, c - a)
        if whole == 0 or (in_circle(a, b, c, points) * np.sign(whole) > 0).any():
            continue
        weights = [cross(c - b, missing - b), cross(a - c, missing - c), cross(b - a, missing - a)]
        inside = np.all([w * np.sign(whole) >= 0 for w in weights], axis=0)
        shades = [int(picture[tuple(p)]) for p in (a, b, c)]
        values = sum(w * s for w, s in zip(weights, shades)) / whole
        for place, value in zip(missing[inside].tolist(), values[inside]):
            found[tuple(place)].add(float(value))
    return found


def cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def in_circle(a: np.ndarray, b: np.ndarray, c: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Positive for points inside the circle through three, if these turn in the positive sense; in whole numbers."""
    rows = [np.broadcast_to(p, points.shape) - points for p in (a, b, c)]
    squares = [(r * r).sum(-1) for r in rows]
    return sum(squares[i] * cross(rows[(i + 1) % 3], rows[(i + 2) % 3]) for i in range(3))


def size(picture: np.ndarray) -> int:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="webp", lossless=True, quality=100)
    return len(buffer.getvalue())


def curve(sizes: list[float], answers: list[float], monotone: bool) -> np.ndarray:
    """Normalised point by point; scipy's interpolation, asked about one place at a time."""
    places, heights, best = [], [], 0.0
    for taken, answer in zip(sizes[1:-1], answers[1:-1]):
        place = min(max((taken - sizes[0]) / (sizes[-1] - sizes[0]), 0.0), 1.0)
        height = min(max((answer - answers[0]) / (answers[-1] - answers[0]), 0.0), 1.0)
        best = max(best, height)
        places.append(place)
        heights.append(best if monotone else height)
    line = interp1d([*places, 0.0, 1.0], [*heights, 0.0, 1.0])
    return np.array([float(line(i / 1000)) for i in range(1000)] + [1.0])


def area(values: np.ndarray) -> float:
    return sum((a + b) / 2 for a, b in pairwise(values)) / (len(values) - 1)


def of_one(picture, heat, mask, answer, thresholds, least: float, monotone: bool) -> np.ndarray | str:
    """The curve of one image, or why it has none."""
    blank = blurred(picture, mask)
    if answer(picture) < least:
        return "UNSURE"
    if size(blank) >= size(picture):
        return "SIZE"
    if answer(blank) >= answer(picture):
        return "ANSWER"
    shown = [blurred(picture, (heat >= np.quantile(heat, 1 - share)) | mask) for share in thresholds]
    steps = [blank, *shown, picture]
    return curve([size(step) for step in steps], [answer(step) for step in steps], monotone)
