"""Segmentation scores by hand and beside scikit-learn's; the published rows of F1 too."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, jaccard_score
from torch import Tensor

import vitrail
from helpers.oracle import oracle
from vitrail import InputError
from vitrail.metric import Case, parse
from vitrail.metric.localisation.segmentation import Segmentation

VIEW = vitrail.load("demo")
SCORES = ("miou", "pixel_accuracy", "map", "f1")


def case_of(maps: Tensor, masks: Tensor | None) -> Case:
    """A case whose images do not matter."""
    return Case(VIEW, torch.zeros(len(maps), 3, *maps.shape[1:]), maps, masks=masks)


def score(maps: Tensor, masks: Tensor, **options: object) -> list[float]:
    metric = Segmentation(**options)
    return metric.of_each(metric.measure(case_of(maps, masks))).tolist()


@pytest.fixture(scope="module")
def maps() -> Tensor:
    return torch.randn(4, 12, 9, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def masks() -> Tensor:
    """With points that do not count, and a third image without an object."""
    found = torch.randint(-1, 2, (4, 12, 9), generator=torch.Generator().manual_seed(1))
    found[2] = 0
    return found


def points(maps: Tensor, masks: Tensor, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values from 0 to 1, whether they are above the mean, and the truth, of the points that count."""
    values = (maps[i] - maps[i].min()) / (maps[i].max() - maps[i].min())
    counted = masks[i] >= 0
    return values[counted].numpy(), (values > values.mean())[counted].numpy(), (masks[i] == 1)[counted].numpy()


@oracle("segmentation")
def test_each_image_beside_scikit_learn(maps: Tensor, masks: Tensor) -> None:
    found = {name: score(maps, masks, score=name) for name in SCORES}
    for i in (0, 1, 3):
        values, above, truth = points(maps, masks, i)
        assert found["miou"][i] == pytest.approx(jaccard_score(truth, above, average="macro"))
        assert found["pixel_accuracy"][i] == pytest.approx(accuracy_score(truth, above))
        assert found["f1"][i] == pytest.approx(f1_score(truth, above))
        both, scores = np.concatenate([~truth, truth]), np.concatenate([1 - values, values])
        assert found["map"][i] == pytest.approx(average_precision_score(both, scores), abs=1e-6)
    for name in SCORES:
        assert np.isnan(found[name][2]), "no object, no number"
        assert score(maps[1:2], masks[1:2], score=name) == pytest.approx(found[name][1:2]), "whatever the batch"


def test_all_images_together(maps: Tensor, masks: Tensor) -> None:
    _, above, truth = (np.concatenate(x) for x in zip(*(points(maps, masks, i) for i in (0, 1, 3))))
    expected = {
        "miou": jaccard_score(truth, above, average="macro"),
        "pixel_accuracy": accuracy_score(truth, above),
    }
    for name in SCORES:
        metric = parse(f"segmentation(score={name})")
        measured = metric.measure(case_of(maps, masks))
        mean = float(metric.of_each(measured).nanmean())
        assert float(metric.of_all(measured)) == pytest.approx(expected.get(name, mean))
        if name in expected:  # the others are always a mean of the images' numbers, and refuse the choice
            by_image = parse(f"segmentation(score={name}, level=image)")
            assert float(by_image.of_all(measured)) == pytest.approx(mean)
        # In two batches, and with nothing but images that do not count.
        parts = torch.cat([metric.measure(case_of(maps[rows], masks[rows])) for rows in (slice(2), slice(2, 4))])
        assert float(metric.of_all(parts)) == pytest.approx(float(metric.of_all(measured)))
        assert np.isnan(float(metric.of_all(measured[2:3])))


def test_the_published_rows_of_f1() -> None:
    """Two squares of 100 pixels, one moved by 10: F1 is 0.9 squared, but the published code says 0.362."""
    maps, masks = torch.zeros(1, 224, 224), torch.zeros(1, 224, 224)
    maps[0, 50:150, 50:150] = 1
    masks[0, 60:160, 60:160] = 1
    assert score(maps, masks, score="f1") == pytest.approx([0.81])
    rows = [f1_score(truth, found, zero_division=0) for truth, found in zip(masks[0].int(), maps[0].int())]
    assert score(maps, masks, score="f1", f1="rows") == pytest.approx([np.mean(rows)])
    assert score(maps, masks, score="f1", f1="rows") == pytest.approx([90 * 0.9 / 224])
    assert score(maps, masks) == pytest.approx([(8100 / 11900 + (50176 - 11900) / (50176 - 8100)) / 2])


def test_the_published_average_precision_depends_on_the_values() -> None:
    masks = torch.zeros(1, 100, 100)
    masks[0, :19] = 1
    spike = torch.zeros(1, 100, 100)
    spike[0, 0, 0] = 1
    assert score(spike, masks, score="map") == pytest.approx([0.81**2 + 0.19 * 0.5], abs=1e-3)
    noise = torch.rand(1, 100, 100, generator=torch.Generator().manual_seed(0))
    assert score(noise, masks, score="map") == pytest.approx([0.5], abs=0.02)
    assert score(torch.full((1, 100, 100), 4.0), masks, score="map") == pytest.approx([0.5])


@pytest.mark.parametrize("value", [0.0, -2.5])
def test_constant_maps_find_nothing(value: float) -> None:
    maps, masks = torch.full((1, 10, 10), value), torch.zeros(1, 10, 10)
    masks[0, :3] = 1
    assert score(maps, masks) == pytest.approx([0.35])
    assert score(maps, masks, score="pixel_accuracy") == pytest.approx([0.7])
    assert score(maps, masks, score="f1") == score(maps, masks, score="f1", f1="rows") == [0]


def test_thresholds_and_enlarging() -> None:
    maps, masks = torch.tensor([[[0.0, 1.0], [2.0, 10.0]]]), torch.zeros(1, 4, 4)
    masks[0, 2:, 2:] = 1
    for threshold, found in (("mean", 4), (0.15, 8), (0.05, 12)):
        metric = parse(f"segmentation(score=pixel_accuracy, threshold={threshold}, enlarge=nearest)")
        case = Case(VIEW, torch.zeros(1, 3, 4, 4), maps, masks=masks)
        assert metric.measure(case)[0].tolist() == [4, found - 4, 0, 16 - found]


def test_only_the_scale_of_a_map_is_free(maps: Tensor, masks: Tensor) -> None:
    for name in SCORES:
        np.testing.assert_allclose(
            score(7 * maps - 3, masks, score=name), score(maps, masks, score=name), rtol=1e-5, equal_nan=True
        )


def test_mistakes_get_a_sentence(maps: Tensor) -> None:
    with pytest.raises(InputError, match="masks or boxes"):
        Segmentation().measure(case_of(maps, None))
    with pytest.raises(InputError, match="parameter score must be"):
        parse("segmentation(score=iou)")
    metric = parse("segmentation(score=f1, f1=rows)")
    assert parse(metric.spec) == metric
