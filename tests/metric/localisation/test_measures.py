"""Localisation by hand-made cases, and average precision beside scikit-learn's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torchvision.transforms.functional import gaussian_blur

from vitrail import InputError
from vitrail.metric import (
    average_precision,
    energy_pointing_game,
    pointing_game,
    region_attribution,
    region_overlap,
    relevance_rank,
)

SQUARE = torch.zeros(1, 8, 8, dtype=torch.bool)
SQUARE[:, 2:4, 2:4] = True


def one_point(row: int, column: int) -> torch.Tensor:
    maps = torch.zeros(1, 8, 8)
    maps[0, row, column] = 2.0
    return maps


def test_pointing_game() -> None:
    assert pointing_game(one_point(3, 3), SQUARE) == 1
    assert pointing_game(one_point(6, 3), SQUARE) == 0
    assert pointing_game(one_point(6, 3), SQUARE, tolerance=3) == 0, "three pixels away is not less than three"
    assert pointing_game(one_point(6, 3), SQUARE, tolerance=3.01) == 1
    assert pointing_game(one_point(6, 6), SQUARE, tolerance=4.3) == 1, "the distance is Euclidean"
    assert pointing_game(one_point(6, 6), SQUARE, tolerance=4.2) == 0
    assert pointing_game(one_point(3, 3), SQUARE & False, tolerance=9) == 0, "an empty mask cannot be hit"
    tied = one_point(3, 3)
    tied[0, 7, 7] = 2.0
    assert pointing_game(tied, SQUARE) == 0.5
    assert pointing_game(torch.ones(1, 8, 8), SQUARE) == pytest.approx(4 / 64)


def test_shares_of_the_map() -> None:
    maps = torch.zeros(1, 8, 8)
    maps[0, 2, 2], maps[0, 7, 7], maps[0, 6, 6] = 3.0, 1.0, -4.0
    assert energy_pointing_game(maps, SQUARE) == pytest.approx(3 / 8)
    assert region_attribution(maps, SQUARE, kernel=1) == pytest.approx(3 / 4)
    wide = torch.zeros(1, 16, 16)
    wide[0, 4:12, 4:12] = maps[0]
    mask = torch.zeros(1, 16, 16, dtype=torch.bool)
    mask[0, :8] = True
    expected = gaussian_blur(wide.relu()[None].double(), [11, 11], [2.0, 2.0])[0]
    assert region_attribution(wide, mask) == pytest.approx(float(expected[0, :8].sum() / expected.sum()))
    for metric in (energy_pointing_game, region_attribution):
        assert metric(torch.zeros(1, 16, 16), mask) == 0


def test_overlap() -> None:
    maps = torch.zeros(1, 8, 8)
    maps[0, 2:4, 3:6] = 1.0  # 6 points, 2 of them on the square
    found = region_overlap(maps, SQUARE)
    assert found.iou == pytest.approx(2 / 8)
    assert found.precision == pytest.approx(2 / 6)
    assert found.recall == pytest.approx(2 / 4)
    assert found.f1 == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))
    assert region_overlap(maps, SQUARE, threshold=1.0).f1 == 0
    assert region_overlap(maps, SQUARE & False).iou == 0
    with pytest.raises(InputError, match="'mean' or a number"):
        region_overlap(maps, SQUARE, threshold="median")


def test_relevance_rank() -> None:
    maps = torch.arange(64.0).view(1, 8, 8)
    assert relevance_rank(maps, maps >= 60) == 1
    assert relevance_rank(maps, maps < 4) == 0
    assert relevance_rank(maps, (maps >= 62) | (maps < 2)) == 0.5
    assert relevance_rank(torch.ones(1, 8, 8), SQUARE) == pytest.approx(4 / 64), "all equal: by chance"
    assert relevance_rank(maps, SQUARE & False) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=4, max_size=30))
def test_average_precision_is_scikit_learns(points: list[tuple[int, bool]]) -> None:
    values, truth = (np.array(x) for x in zip(*points))
    found = average_precision(torch.tensor(values)[None, None].float(), torch.tensor(truth)[None, None])
    expected = average_precision_score(truth, values) if truth.any() else 0
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_only_order_matters_for_ranks() -> None:
    maps = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    masks = SQUARE.expand(3, -1, -1)
    for metric in (average_precision, relevance_rank, pointing_game):
        torch.testing.assert_close(metric(maps, masks), metric(maps.exp() * 7 - 3, masks))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"enlarge maps with Explanation\.upsample"):
        region_attribution(torch.zeros(1, 7, 7), SQUARE)
    with pytest.raises(InputError, match="an odd kernel"):
        region_attribution(torch.zeros(1, 8, 8), SQUARE, kernel=4)
