"""Partly blurred pictures against scipy's interpolation, and their sizes against files."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial import Delaunay
from torch.nn import functional as F

from oracles import pic as slow
from vitrail.metric.faithfulness import bokeh, pic

SHAPE = (24, 20)


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def blob(shape: tuple[int, int], seed: int) -> np.ndarray:
    """A smooth map, and so a mask with an inside, as maps of tokens give."""
    small = torch.rand(1, 1, 7, 6, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(small, shape, mode="bicubic")[0, 0].numpy()


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    return noise((3, *SHAPE, 3))


@pytest.fixture(scope="module")
def maps() -> np.ndarray:
    return np.stack([blob(SHAPE, seed) for seed in (1, 2, 3)])


@pytest.fixture(scope="module")
def masks() -> np.ndarray:
    return np.stack([pic.random_mask(SHAPE, (0, i), share=0.04) for i in range(3)])


@pytest.mark.parametrize("shape", [(12, 9), (2, 11), (17, 17), (30, 5)])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.9])
def test_blur_agrees_with_scipy_on_every_channel(shape: tuple[int, int], share: float) -> None:
    for seed in range(5):
        picture, keep = noise((*shape, 3), seed), pic.random_mask(shape, seed, share)
        keep[:3, :4] = True  # a block, with an inside
        before = keep.copy()
        assert np.array_equal(bokeh.blurred(picture, keep), slow.blurred(picture, keep))
        assert np.array_equal(keep, before), "the mask given is left as it is"


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6])
def test_the_triangles_are_those_of_scipys_own_options(share: float) -> None:
    """Also in large regions, where most points lie on a circle with three others."""
    for seed in range(4):
        keep = pic.kept(blob((90, 80), seed), pic.random_mask((90, 80), seed), (share,))[0]
        points = np.argwhere(slow.with_corners(keep))
        assert np.array_equal(Delaunay(points, qhull_options=bokeh.QHULL).simplices, Delaunay(points).simplices)
        picture = noise((90, 80, 3), seed)
        assert np.array_equal(bokeh.blurred(picture, keep), slow.blurred(picture, keep))


def test_every_missing_pixel_is_linear_in_a_delaunay_triangle() -> None:
    for seed in range(3):
        picture, keep = noise((8, 9, 1), seed), pic.random_mask((8, 9), seed, 0.15)
        keep[1:5, 2:7] = True
        found = bokeh.blurred(picture, keep)
        assert np.array_equal(found[keep], picture[keep])
        for place, values in slow.delaunay_values(picture[..., 0], keep).items():
            assert values, "some triangle holds every pixel"
            assert any(abs(found[place][0] - value) <= 0.5 + 1e-4 for value in values)


def test_a_plane_comes_back_whole(maps: np.ndarray, masks: np.ndarray) -> None:
    rows, columns = np.indices(SHAPE)
    plane = np.stack([rows * 3 + columns * 2, 200 - 5 * rows, np.full(SHAPE, 77)], 2).astype(np.uint8)
    for keep in [np.zeros(SHAPE, bool), *masks, *pic.kept(maps[0], masks[0])]:
        assert np.array_equal(bokeh.blurred(plane, keep), plane)


def test_all_kept_is_the_picture() -> None:
    picture = noise((6, 7, 3))
    keep = np.ones((6, 7), bool)
    keep[0, 0] = keep[-1, -1] = False
    assert np.array_equal(bokeh.blurred(picture, keep), picture), "corners are always kept"


def test_entropy_is_the_size_of_a_lossless_file() -> None:
    picture = noise((16, 20, 3))
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="webp", lossless=True, quality=100)
    assert bokeh.entropy(picture) == len(file.getvalue()) == slow.size(picture)
    assert np.array_equal(np.asarray(Image.open(file)), picture)
    assert bokeh.entropy(np.zeros_like(picture)) < 100 < bokeh.entropy(picture)


def test_a_picture_is_compressed_once(compressed: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = noise((16, 20, 3)), noise((16, 20, 3), 1)
    sizes = [bokeh.entropy(x) for x in (one, other, one.copy(), other[::-1][::-1], one.reshape(20, 16, 3))]
    assert compressed == [(20, 16), (20, 16), (16, 20)], "the same bytes in another shape are another picture"
    assert sizes == [slow.size(x) for x in (one, other, one, other, one.reshape(20, 16, 3))]
    del compressed[:]
    monkeypatch.setattr(bokeh, "REMEMBERED", 2)
    for seed in (0, 1, 0, 2, 0, 1):  # what was asked for last stays
        bokeh.entropy(noise((16, 20, 3), seed))
    assert len(compressed) == 2
    assert len(bokeh._SIZES) == 2


def test_a_mask_is_filled_once(pictures: np.ndarray, masks: np.ndarray, filled: list[int]) -> None:
    keep = np.stack([masks, ~masks, masks, masks], 1)
    found = bokeh.bokehs(pictures, keep)
    assert len(filled) == 3 * 2, "once an image, though images may have the same"
    for i, k in np.ndindex(3, 4):
        assert np.array_equal(found.pictures[i, k], slow.blurred(pictures[i], keep[i, k]))
        assert found.sizes[i, k] == slow.size(found.pictures[i, k])


def test_bokehs_do_not_depend_on_the_batch(pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray) -> None:
    keep = np.stack([pic.kept(*of_one, (0.05, 0.2, 0.6)) for of_one in zip(maps, masks)])
    found = bokeh.bokehs(pictures, keep)
    for i in range(3):
        for k in range(3):
            expected = slow.blurred(pictures[i], keep[i, k])
            assert np.array_equal(found.pictures[i, k], expected)
            assert found.sizes[i, k] == slow.size(expected)
