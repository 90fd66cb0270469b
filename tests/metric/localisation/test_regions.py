"""Localisation as metrics: what counts of a mask, and what does not, point by point."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, jaccard_score
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

import vitrail
from helpers.oracle import oracle
from vitrail import InputError
from vitrail.metric import METRICS, Case, metrics, parse

MASKED = [name for name in metrics() if METRICS[name].needs == {"masks"}]


@pytest.fixture(scope="module")
def case() -> Case:
    """Maps of the pictures' size; masks with points that do not count, and an image without an object."""
    maps = torch.randn(3, 24, 32, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    masks = torch.zeros(3, 24, 32, dtype=torch.int8)
    masks[0, 3:15, 4:20] = masks[1, 10:20, 16:30] = 1
    masks[:, :, 28:] = -1
    return Case(vitrail.load("demo"), torch.zeros(3, 3, 24, 32), maps, masks=masks)


def points(case: Case, i: int) -> tuple[np.ndarray, np.ndarray]:
    """The values and the truth of the points that count."""
    counted = case.masks[i] >= 0
    return case.maps[i][counted].double().numpy(), (case.masks[i] == 1)[counted].numpy()


def of_ranks(values: np.ndarray, truth: np.ndarray) -> float:
    """The share of the object among as many highest points as it has, the mean over all orders of equal ones."""
    found, left = 0.0, int(truth.sum())
    for value in sorted(set(values), reverse=True):
        equal = truth[values == value]
        taken = min(left, len(equal))
        found, left = found + taken * equal.mean(), left - taken
    return found / truth.sum()


def blurred(values: Tensor) -> Tensor:
    return gaussian_blur(values.relu()[None].double(), [11, 11], [2.0, 2.0])[0]


@oracle("pointing_game", "energy_pointing_game", "relevance_rank", "average_precision")
def test_the_points_that_count(case: Case) -> None:
    found = {name: parse(name).measure(case) for name in MASKED}
    for i in (0, 1):
        values, truth = points(case, i)
        expected = {
            "pointing_game": truth[values == values.max()].mean(),
            "energy_pointing_game": np.abs(values[truth]).sum() / np.abs(values).sum(),
            "relevance_rank": of_ranks(values, truth),
            "average_precision": average_precision_score(truth, values),
        }
        for name, value in expected.items():
            assert float(found[name][i]) == pytest.approx(value, abs=1e-6), name


@oracle("region_attribution", "region_iou", "region_f1")
def test_regions(case: Case) -> None:
    for i in (0, 1):
        counted, objects = case.masks[i] >= 0, case.masks[i] == 1
        above = (case.maps[i] > case.maps[i].mean())[counted].numpy()
        truth = objects[counted].numpy()
        wide = blurred(torch.where(counted, case.maps[i], 0))
        expected = {
            "region_attribution": float(wide[objects].sum() / wide.sum()),
            "region_iou": jaccard_score(truth, above),
            "region_f1": f1_score(truth, above),
        }
        for name, value in expected.items():
            assert float(parse(name).measure(case)[i]) == pytest.approx(value, abs=1e-6), name


@pytest.mark.parametrize("name", MASKED)
def test_an_image_without_an_object_does_not_count(case: Case, name: str) -> None:
    metric = parse(name)
    assert metric.of_each(metric.measure(case)).isnan().tolist() == [False, False, True]


@pytest.mark.parametrize("name", ["pointing_game", "energy_pointing_game"])
def test_large_objects_may_be_left_out(case: Case, name: str) -> None:
    """The objects cover a quarter, and less than a fifth."""
    assert parse(f"{name}(below=0.2)").measure(case).isnan().tolist() == [True, False, True]
    with pytest.raises(InputError, match="below to be above 0, up to 1, but below=0"):
        parse(f"{name}(below=0.0)")
