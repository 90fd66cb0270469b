"""Pictures of which only some pixels are kept and the rest is interpolated, and the bytes that they take (XRAI).

The pixels are those of the authors' code, bit for bit. That takes the same triangles: points on a grid have many
Delaunay triangulations, and another one moves the area under a single curve of `pic` by some thousandths,
at times by more.
"""

import io
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

Bools: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Ints: TypeAlias = npt.NDArray[np.int64]
Numbers = TypeVar("Numbers", npt.NDArray[np.int64], npt.NDArray[np.floating[Any]])

QHULL = "Qbb Qc Qz Q12 Q5"
"""SciPy's options, and Q5: the same triangles, without the measure of their precision that comes at the end."""

REMEMBERED = 2**15
"""How many pictures' sizes are remembered: methods on the same images share their ends, and some of what is between."""


class Bokehs(NamedTuple):
    """Partly blurred pictures, (B, K, H, W, 3), and the bytes that each takes, (B, K)."""

    pictures: Bytes
    sizes: Ints


def bokehs(pictures: Bytes, keep: Bools) -> Bokehs:
    """(B, H, W, 3) pictures, (B, K, H, W) the pixels kept of each -> the partly blurred pictures and their sizes.

    Runs on as many threads as torch does; triangulation and compression leave Python to the others.
    """
    places: dict[tuple[int, bytes], list[tuple[int, ...]]] = {}
    for place in np.ndindex(keep.shape[:2]):  # a map with few values has the same mask at several thresholds
        places.setdefault((place[0], keep[place].tobytes()), []).append(place)

    def make(task: list[tuple[int, ...]]) -> tuple[Bytes, int]:
        picture = blurred(pictures[task[0][0]], keep[task[0]])
        return picture, entropy(picture)

    # The longest first, so that no thread is left alone with one of them at the end.
    tasks = sorted(places.values(), key=lambda task: -int(np.count_nonzero(keep[task[0]])))
    found = Bokehs(np.empty((*keep.shape, pictures.shape[-1]), np.uint8), np.empty(keep.shape[:2], np.int64))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for task, made in zip(tasks, pool.map(make, tasks)):
            for place in task:
                found.pictures[place], found.sizes[place] = made
    return found


def entropy(picture: Bytes) -> int:
    """The information in an (H, W, 3) picture: its bytes as a lossless WebP file. Depends on the version of libwebp."""
    key = (picture.shape, blake2b(np.ascontiguousarray(picture).data, digest_size=16).digest())
    with _LOCK:
        if key in _SIZES:
            _SIZES.move_to_end(key)
            return _SIZES[key]
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="webp", lossless=True, quality=100)
    with _LOCK:
        _SIZES[key] = file.getbuffer().nbytes
        while len(_SIZES) > REMEMBERED:
            _SIZES.popitem(last=False)
    return file.getbuffer().nbytes


_SIZES: OrderedDict[tuple[tuple[int, ...], bytes], int] = OrderedDict()
_LOCK = threading.Lock()


def blurred(picture: Bytes, keep: Bools) -> Bytes:
    """An (H, W, 3) picture with only some pixels kept, the others linear between the corners of Delaunay triangles.

    Args:
        picture: The picture, 2 x 2 or larger.
        keep: (H, W) the pixels kept; the four corners always are.

    Example:
        >>> row = np.array([[0, 9, 9, 9, 30]] * 2, np.uint8)
        >>> blurred(row[..., None], np.zeros((2, 5), bool))[0, :, 0].tolist()
        [0, 8, 15, 22, 30]
    """
    from scipy.spatial import Delaunay

    keep = keep.copy()
    keep[[0, 0, -1, -1], [0, -1, 0, -1]] = True
    if keep.all():
        return picture
    # Pixels inside a kept region are corners of no triangle that matters, and left out would save most of the time.
    # But the whole set decides which of the many triangulations of a grid is found.
    points = np.argwhere(keep)
    corners = points[Delaunay(points, qhull_options=QHULL).simplices]
    # A triangle of half a pixel has no point of the grid in it but its corners: nothing to interpolate.
    corners = corners[np.abs(_cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])) > 1]
    # By way of float32, as in the authors' code: nearly a half then counts as a half, and halves become even.
    filled = np.round(_filled(picture, corners).astype(np.float32)).astype(np.uint8)
    return np.where(keep[..., None], picture, filled.T.reshape(picture.shape))


def _filled(picture: Bytes, corners: Ints) -> Floats:
    """(T, 3, 2) corners of triangles -> (channels, H * W): linear in every triangle, the mean colour elsewhere.

    A triangle's values are a plane, in whole numbers that floats hold: exact, but for the one division at the end. So a
    pixel on an edge gets the same value from both sides.
    """
    which, rows, first, widths = _spans(corners)
    columns = np.repeat(first, widths) + _counted(widths)
    places = np.repeat(rows * picture.shape[1], widths) + columns
    sides = (corners[:, 1:] - corners[:, :1]).astype(np.float64)
    whole = _cross(sides[:, 0], sides[:, 1])
    divisors = np.repeat(whole[which], widths)
    found = np.empty((picture.shape[2], picture[..., 0].size))
    for values, layer in zip(found, np.moveaxis(picture, 2, 0)):
        shades = layer[corners[..., 0], corners[..., 1]].astype(np.float64)
        steps = shades[:, 1:] - shades[:, :1]
        down = sides[:, 1, 1] * steps[:, 0] - sides[:, 0, 1] * steps[:, 1]
        right = sides[:, 0, 0] * steps[:, 1] - sides[:, 1, 0] * steps[:, 0]
        start = shades[:, 0] * whole - down * corners[:, 0, 0] - right * corners[:, 0, 1]
        begin = start[which] + down[which] * rows
        values[:] = layer.mean()
        values[places] = (np.repeat(begin, widths) + np.repeat(right[which], widths) * columns) / divisors
    return found


def _spans(corners: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """(T, 3, 2) corners of triangles -> their pixels, row by row: (S,) triangles, rows, first columns and widths.

    In whole numbers, so that no pixel on an edge is lost.
    """
    by_row = np.take_along_axis(corners, corners[..., :1].argsort(1), 1)
    heights = by_row[:, 2, 0] - by_row[:, 0, 0] + 1
    which = np.repeat(np.arange(len(corners)), heights)
    top, middle, bottom = np.moveaxis(by_row[which], 1, 0)
    rows = top[:, 0] + _counted(heights)
    upper = (rows < middle[:, 0])[:, None]
    first_a, last_a = _crossing(top, bottom, rows)
    first_b, last_b = _crossing(np.where(upper, top, middle), np.where(upper, middle, bottom), rows)
    first, last = np.minimum(first_a, first_b), np.maximum(last_a, last_b)
    return which, rows, first, last - first + 1


def _crossing(start: Ints, end: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Where (N, 2) edges cross rows: the first column from there on, and the last one up to there."""
    height = np.maximum(end[:, 0] - start[:, 0], 1)
    across = (end[:, 1] - start[:, 1]) * (rows - start[:, 0])
    return start[:, 1] - (-across // height), start[:, 1] + across // height


def _counted(lengths: Ints) -> Ints:
    """(N,) lengths -> 0, 1, ... up to each of them, one after the other."""
    ends = lengths.cumsum()
    found: Ints = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return found


def _cross(a: Numbers, b: Numbers) -> Numbers:
    """(N, 2) vectors -> (N,) twice the signed area of the triangle between each two."""
    found: Numbers = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    return found
