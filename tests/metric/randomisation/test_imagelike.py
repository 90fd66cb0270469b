"""SSIM and HOG beside scikit-image's numbers, and beside their definitions done slowly."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import pearsonr, rankdata, spearmanr

from vitrail import InputError
from vitrail.metric.randomisation.imagelike import alike, hog, likeness, ssim
from vitrail.metric.similarity import ranked, spearman

GOLDEN = Path(__file__).parents[2] / "golden/metrics/similarity.npz"


def pair(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The two maps that the stored numbers of a seed are about."""
    one, other = np.random.default_rng(seed).random((2, 5, 6))
    other = one if seed == 3 else 0.6 * one + 0.4 * other
    noise = 0.2 * np.random.default_rng(seed + 100).random((65, 84))
    found = [np.kron(coarse, np.ones((13, 14))) + noise for coarse in (one, other)]
    found = [(x - x.min()) / (x.max() - x.min()) for x in found]
    return found[0], 1 - found[1] if seed == 2 else found[1]


def test_agrees_with_scikit_image() -> None:
    with np.load(GOLDEN) as stored:
        pairs = [pair(int(seed)) for seed in stored["seeds"]]
        one, other = (torch.from_numpy(np.stack(maps)) for maps in zip(*pairs))
        np.testing.assert_allclose(ssim(one, other), stored["ssim"], atol=1e-12)
        np.testing.assert_allclose(hog(one), stored["hog"], atol=1e-6)
        np.testing.assert_allclose(spearman(hog(one), hog(other)), stored["hog_spearman"], atol=1e-3)


def slow_ssim(one: np.ndarray, other: np.ndarray) -> float:
    """Place by place, with the weights written out."""
    weights = np.zeros((11, 11))
    weights[5, 5] = 1
    weights = gaussian_filter(weights, 1.5, truncate=3.5, mode="constant")
    weights /= weights.sum()
    found = []
    for row in range(one.shape[0] - 10):
        for column in range(one.shape[1] - 10):
            a, b = (x[row : row + 11, column : column + 11] for x in (one, other))
            ma, mb = (weights * a).sum(), (weights * b).sum()
            va, vb, ab = (
                121 / 120 * (weights * (p - m) * (q - n)).sum()
                for p, m, q, n in ((a, ma) * 2, (b, mb) * 2, (a, ma, b, mb))
            )
            found.append((2 * ma * mb + 1e-4) * (2 * ab + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))
    return float(np.mean(found))


def slow_hog(image: np.ndarray) -> np.ndarray:
    """Pixel by pixel."""
    rows, columns = image.shape[0] // 16, image.shape[1] // 16
    cells = np.zeros((rows, columns, 9))
    for r in range(rows * 16):
        for c in range(columns * 16):
            down = image[r + 1, c] - image[r - 1, c] if 0 < r < image.shape[0] - 1 else 0.0
            across = image[r, c + 1] - image[r, c - 1] if 0 < c < image.shape[1] - 1 else 0.0
            angle = math.degrees(math.atan2(down, across)) % 180
            cells[r // 16, c // 16, int(angle // 20) % 9] += math.hypot(down, across) / 256
    blocks = []
    for r in range(rows - 2):
        for c in range(columns - 2):
            block = cells[r : r + 3, c : c + 3].ravel()
            block = np.minimum(block / np.sqrt((block**2).sum() + 1e-10), 0.2)
            blocks.append(block / np.sqrt((block**2).sum() + 1e-10))
    return np.concatenate(blocks)


def test_definitions() -> None:
    one, other = np.random.default_rng(7).random((2, 50, 66))
    maps = torch.from_numpy(one)[None], torch.from_numpy(other)[None]
    assert float(ssim(*maps)) == pytest.approx(slow_ssim(one, other), abs=1e-12)
    np.testing.assert_allclose(hog(maps[0])[0], slow_hog(one), atol=1e-12)


def test_every_similarity_of_every_pair() -> None:
    one, other = torch.randn(2, 3, 48, 52, generator=torch.Generator().manual_seed(0)).double()
    one[2] = other[2]
    flat = [[x.flatten().numpy() for x in maps] for maps in (one, other)]
    expected = {
        "spearman": [spearmanr(a, b).statistic for a, b in zip(*flat)],
        "pearson": [pearsonr(a, b).statistic for a, b in zip(*flat)],
        "cosine": [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(*flat)],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(alike(one, other, name), values, atol=1e-9)
    for name in (*expected, "ssim", "hog"):
        found = alike(one, other, name)
        torch.testing.assert_close(alike(3 * one, 0.1 * other, name), found)  # whatever the scale
        torch.testing.assert_close(alike(one[1:], other[1:], name), found[1:])  # whatever else is in the batch
        assert found[2] == 1
        assert (found[:2] < 0.9).all()


@pytest.mark.parametrize("name", ["spearman", "pearson", "cosine", "ssim", "hog"])
def test_maps_that_say_nothing(name: str) -> None:
    noise = torch.rand(1, 48, 48, generator=torch.Generator().manual_seed(0))
    flat, nothing = torch.full((1, 48, 48), 3.0), torch.zeros(1, 48, 48)
    assert alike(flat, 0.5 * flat, name) == 1, "nothing has changed"
    assert alike(nothing, nothing, name) == 1
    if name not in ("cosine", "ssim"):
        assert alike(flat, noise, name) == 0
    for one, other in ((nothing, noise), (noise, nothing), (flat, nothing)):
        assert torch.isfinite(alike(one, other, name)).all()


def test_ranks() -> None:
    """Row by row as SciPy has them: ties, infinities, zeros of both signs, and rows that are not numbers."""
    values = torch.randn(9, 700, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[1] = values[1].round()
    values[2, ::3] = 0
    values[2, 1::6] = -0.0
    values[3] = 7
    values[4, 5:9] = torch.inf
    values[5, 3] = -torch.inf
    values[6, 4] = torch.nan
    values[7] = values[7].relu()
    for rows in (values, values.float(), values[:, :1], values[:1], values.T.contiguous().T):
        expected = np.stack([rankdata(row) for row in rows.double().numpy()])
        np.testing.assert_allclose(ranked(rows), expected, atol=1e-12)
        assert ranked(rows).dtype == torch.float64


def test_likeness_to_many() -> None:
    maps = [torch.rand(3, 48, 50, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    for name in ("spearman", "pearson", "cosine", "ssim", "hog"):
        compare = likeness(maps[0], name)
        for other in maps:
            assert torch.equal(compare(other), alike(maps[0], other, name)), name


def test_too_small() -> None:
    with pytest.raises(InputError, match=r"11 x 11 pixels or more"):
        ssim(torch.zeros(1, 10, 30), torch.zeros(1, 10, 30))
    with pytest.raises(InputError, match=r"48 x 48 pixels or more"):
        hog(torch.zeros(1, 64, 47))
