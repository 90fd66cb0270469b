"""Information curves against their definition done slowly, against closed forms, and against the authors' code."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

import vitrail
from helpers.goldens import FOLDER, deit_tiny
from oracles import pic as slow
from vitrail import InputError, scenes
from vitrail.metric.faithfulness import bokeh, pic
from vitrail.metric.faithfulness.pic import Skip

FEW = (0.05, 0.2, 0.6)
SHAPE = (24, 20)


def scene(seed: int) -> np.ndarray:
    """A small picture that a blur makes smaller."""
    return np.asarray(scenes.make(seed).pil.resize(SHAPE[::-1], Image.Resampling.BILINEAR))


def blob(seed: int) -> np.ndarray:
    """A smooth map, and so a mask with an inside, as maps of tokens give."""
    small = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(small, SHAPE, mode="bicubic")[0, 0].numpy()


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    return np.stack([scene(seed) for seed in (1, 2, 3)])


@pytest.fixture(scope="module")
def maps() -> np.ndarray:
    return np.stack([blob(seed) for seed in (1, 2, 3)])


@pytest.fixture(scope="module")
def masks() -> np.ndarray:
    return np.stack([pic.random_mask(SHAPE, (0, i), share=0.04) for i in range(3)])


class Likeness:
    """Answers how near a picture is to its original, and counts what it is asked."""

    def __init__(self, originals: np.ndarray) -> None:
        self.originals, self.asked = originals.astype(float), 0

    def of_one(self, picture: np.ndarray, i: int) -> float:
        return 1 - float(np.abs(picture - self.originals[i]).mean()) / 100

    def __call__(self, pictures: np.ndarray, which: np.ndarray) -> dict[str, list[float]]:
        self.asked += len(pictures)
        return {"near": [self.of_one(picture, i) for picture, i in zip(pictures, which)]}


class Alike(Likeness):
    """Answers whether a picture is as near to its original as the image's limit, so 0 or 1."""

    def __init__(self, originals: np.ndarray, limits: np.ndarray) -> None:
        super().__init__(originals)
        self.limits = limits

    def __call__(self, pictures: np.ndarray, which: np.ndarray) -> dict[str, np.ndarray]:
        return {"aic": (np.array(super().__call__(pictures, which)["near"]) >= self.limits[which]).astype(float)}


def test_methods_share_what_does_not_depend_on_them(
    compressed: list[tuple[int, ...]], pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray
) -> None:
    first = pic.information_curves(pictures, maps, masks, Likeness(pictures), thresholds=FEW)["near"]
    assert len(compressed) == 3 * 5
    second = pic.information_curves(pictures, -maps, masks, Likeness(pictures), thresholds=FEW)["near"]
    assert len(compressed) == 3 * 5 + 3 * 3, "the blurred and the whole picture are known"
    assert np.array_equal(first.sizes[:, [0, -1]], second.sizes[:, [0, -1]])
    pic.information_curves(pictures, np.ones_like(maps), masks, Likeness(pictures), thresholds=FEW)
    assert len(compressed) == 3 * 5 + 3 * 3, "a constant map shows the whole picture at once"


def test_random_mask() -> None:
    mask = pic.random_mask((50, 40), (3, 1))
    assert mask.sum() == 20
    assert np.array_equal(mask, pic.random_mask((50, 40), (3, 1)))
    assert not np.array_equal(mask, pic.random_mask((50, 40), (3, 2)))
    assert pic.random_mask((5, 5), share=0).sum() == 0


def test_kept_pixels() -> None:
    heat = np.arange(100, dtype=np.float32).reshape(10, 10)
    mask = np.zeros((10, 10), bool)
    mask[0, 0] = True
    found = pic.kept(heat, mask, (0.1, 0.5, 1.0))
    assert found[:, 0, 0].all()
    assert [int(k.sum()) for k in found] == [11, 51, 100]
    tied = np.repeat([1.0, 0.0], 50).reshape(10, 10)
    assert [int(k.sum()) for k in pic.kept(tied, mask, (0.05, 0.4))] == [50, 50], "ties are shown together"


@pytest.mark.parametrize("monotone", [True, False])
def test_curve_agrees_with_its_definition(monotone: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = np.concatenate([[300], rng.integers(250, 950, 9), [900]])  # some below and above the ends, unsorted
        sizes[4] = sizes[5]
        answers = np.concatenate([[0.2], rng.random(9), [0.8]])
        expected = slow.curve(sizes.tolist(), answers.tolist(), monotone)
        found = pic.curve(sizes, answers, monotone=monotone)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        assert float(pic.area(found)) == pytest.approx(slow.area(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("sizes", "answers", "expected"),
    [
        ([10, 20, 30], [0.0, 0.5, 1.0], 0.5),  # a straight line
        ([10, 20, 30], [0.0, 1.0, 1.0], 0.75),  # all of the answer for half of the bytes
        ([10, 20, 30], [0.0, 0.0, 1.0], 0.25),
        ([10, 15, 20, 30], [0.0, 1.0, 0.0, 1.0], 0.875),  # what was answered once counts
        ([10, 20, 30], [0.5, 2.0, 1.0], 0.75),  # more than the whole picture's answer counts as that
        ([10, 40, 30], [0.0, 0.5, 1.0], 0.25),  # more bytes than the whole picture's, likewise
        ([10, 5, 30], [0.0, 0.9, 1.0], 0.5),  # an answer without any information is not on the curve
    ],
)
def test_closed_forms(sizes: list[float], answers: list[float], expected: float) -> None:
    assert float(pic.area(pic.curve(sizes, answers))) == pytest.approx(expected, abs=6e-4)  # one of 1000 trapezoids


def test_aggregate() -> None:
    flat = np.stack([np.full(pic.POINTS, value) for value in (0.1, 0.2, 0.9, np.nan)])
    assert pic.aggregate(flat).area == pytest.approx(0.2)
    assert pic.aggregate(flat, "mean").area == pytest.approx(0.4)
    assert pic.aggregate(flat).counted == 3
    nothing = pic.aggregate(flat[3:])
    assert np.isnan(nothing.area)
    assert nothing.counted == 0
    assert nothing.values.shape == (pic.POINTS,)
    flat[0, 5] = np.nan
    assert np.isnan(pic.aggregate(flat).area), "half a curve is a mistake, not a skipped image"


@pytest.mark.parametrize("monotone", [True, False])
def test_agrees_with_the_definition(pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray, monotone: bool) -> None:
    ask = Likeness(pictures)
    found = pic.information_curves(pictures, maps, masks, ask, thresholds=FEW, monotone=monotone)["near"]
    assert ask.asked == 3 * (len(FEW) + 2), "five pictures an image, and nothing else"
    assert found.skipped == (None, None, None)
    for i, one in enumerate(zip(pictures, maps, masks)):
        expected = slow.of_one(*one, lambda picture, i=i: ask.of_one(picture, i), FEW, 0.8, monotone)
        np.testing.assert_allclose(found.values[i], expected, atol=1e-12)
        assert found.areas()[i] == pytest.approx(slow.area(expected), abs=1e-12)


def test_skipped_images_are_told(pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray) -> None:
    constant = np.full_like(pictures[:1], 90)  # blurred and whole are the same file
    pictures, maps, masks = (np.concatenate([x, x[:1], x[:1]]) for x in (pictures, maps, masks))
    pictures[3] = constant
    near = Likeness(pictures)

    def ask(shown: np.ndarray, which: np.ndarray) -> dict[str, np.ndarray]:
        answers = np.array(near(shown, which)["near"])
        sure = np.where(which == 0, answers * 0.5, answers)
        flat = np.where(which == 1, 0.9, sure)
        return {"some": np.where(which == 4, np.nan, flat), "aic": (answers > 0.999).astype(float)}

    found = pic.information_curves(pictures, maps, masks, ask, thresholds=FEW)
    assert found["some"].skipped == (Skip.UNSURE, Skip.ANSWER, None, Skip.SIZE, Skip.UNSURE)
    assert found["aic"].skipped == (None, None, None, Skip.SIZE, None), "each has its own rules"
    assert np.isnan(found["some"].areas()).tolist() == [True, True, False, True, True]
    assert pic.aggregate(found["some"].values).counted == 1
    assert near.asked == 5 * 2 + 4 * len(FEW), "an image that all skip is asked no further"
    assert np.isnan(found["aic"].sizes[3, 1:-1]).all()
    none = pic.information_curves(pictures, maps, masks, lambda p, _: {"never": np.zeros(len(p))}, thresholds=FEW)
    assert set(none["never"].skipped) == {Skip.UNSURE}


def test_a_constant_map_shows_everything_at_once(pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray) -> None:
    found = pic.information_curves(pictures, np.ones_like(maps), masks, Likeness(pictures), thresholds=FEW)["near"]
    np.testing.assert_allclose(found.areas(), 0.5, atol=1e-9)


def limits(pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray, first: list[int]) -> np.ndarray:
    """(B,) what each image's picture in a column is like, where none before it is as near: it is the first answered."""
    near = pic.information_curves(pictures, maps, masks, Likeness(pictures), thresholds=FEW)["near"].answers
    assert all((of_one[:column] < of_one[column]).all() for of_one, column in zip(near, first))
    return near[np.arange(len(near)), first]


@pytest.mark.parametrize("first", [[1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4], [1, 3, 4], [4, 1, 2]])
def test_brief_curves_are_the_same_for_less(
    pictures: np.ndarray,
    maps: np.ndarray,
    masks: np.ndarray,
    compressed: list[tuple[int, ...]],
    filled: list[int],
    first: list[int],
) -> None:
    """Wherever the first picture is that is answered with 1: at a threshold, early or late, or the whole one (4)."""
    heat = -maps  # more bytes at every threshold, and nearer to the original
    ask = Alike(pictures, limits(pictures, heat, masks, first))
    full = pic.information_curves(pictures, heat, masks, ask, thresholds=FEW)["aic"]
    assert (np.diff(full.sizes) > 0).all(), "else the curves may differ"
    assert full.answers.argmax(1).tolist() == first

    ask.asked = 0
    for counted in (compressed, filled, bokeh._SIZES):
        counted.clear()
    found = pic.brief_curves(pictures, heat, masks, ask, thresholds=FEW)
    assert np.array_equal(found.values, full.values)
    assert found.skipped == full.skipped == (None, None, None)
    last = len(FEW) + 1
    for i, column in enumerate(first):
        known = {0, column - 1, column, last}
        assert set(np.flatnonzero(~np.isnan(found.sizes[i]))) == known
        assert np.array_equal(found.sizes[i, sorted(known)], full.sizes[i, sorted(known)])
        known = {*range(column + 1), last}
        assert set(np.flatnonzero(~np.isnan(found.answers[i]))) == known
        assert np.array_equal(found.answers[i, sorted(known)], full.answers[i, sorted(known)])
    shown = [pic.kept(*one, FEW).sum((1, 2))[:column] for *one, column in zip(heat, masks, first)]
    ends = [mask.sum() for mask in masks] + [masks[0].size] * 3
    assert sorted(filled) == sorted([*ends, *np.concatenate(shown)]), "none behind the first is made"
    assert ask.asked == len(filled)
    assert len(compressed) == 6 + sum(len({column - 1, column} - {0, last}) for column in first)


def test_an_answer_that_is_lost_again_counts(pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray) -> None:
    near, only = Likeness(pictures), limits(pictures, -maps, masks, [2, 2, 2])

    def ask(shown: np.ndarray, which: np.ndarray) -> dict[str, np.ndarray]:
        found = np.array(near(shown, which)["near"])
        return {"aic": ((found == only[which]) | (found == 1)).astype(float)}

    full = pic.information_curves(pictures, -maps, masks, ask, thresholds=FEW)["aic"]
    assert full.answers.tolist() == [[0, 0, 1, 0, 1]] * 3
    assert np.array_equal(pic.brief_curves(pictures, -maps, masks, ask, thresholds=FEW).values, full.values)


@pytest.mark.parametrize("column", [1, 2])
def test_where_more_pixels_take_fewer_bytes(
    pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray, column: int
) -> None:
    """If the first takes less than the one before it, all are made; if the one behind it does, nobody looks."""
    thresholds, one = (0.07, 0.1, 0.6), (pictures[1:2], maps[1:2], masks[1:2])
    near = pic.information_curves(*one, Likeness(one[0]), thresholds=thresholds)["near"]
    assert near.sizes[0, 2] < near.sizes[0, 1]
    ask = Alike(one[0], near.answers[:, column])
    full = pic.information_curves(*one, ask, thresholds=thresholds)["aic"]
    assert full.answers[0].argmax() == column
    found = pic.brief_curves(*one, ask, thresholds=thresholds)
    if column == 2:
        assert np.array_equal(found.values, full.values)
        assert np.array_equal(found.sizes, full.sizes)
    else:
        assert np.array_equal(found.values[0], pic.curve(full.sizes[0, [0, 1, 4]], full.answers[0, [0, 1, 4]]))
        assert not np.array_equal(found.values, full.values)


@pytest.mark.parametrize("sizes", [[50, 50, 60, 70, 90], [50, 40, 60, 70, 90], [50, 40, 30, 70, 90]])
def test_a_first_picture_no_larger_than_the_blurred_one(
    pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    """It counts as no information, and from it alone the curve would be a straight line to the whole picture."""
    one = pictures[:1], -maps[:1], masks[:1]
    keep = np.concatenate([one[2], pic.kept(one[1][0], one[2][0], FEW), np.ones_like(one[2])])
    made = {picture.tobytes(): size for picture, size in zip(bokeh.bokehs(one[0], keep[None]).pictures[0], sizes)}
    monkeypatch.setattr(bokeh, "entropy", lambda picture: made[picture.tobytes()])
    ask = Alike(one[0], limits(*one, [1]))
    full = pic.information_curves(*one, ask, thresholds=FEW)["aic"]
    found = pic.brief_curves(*one, ask, thresholds=FEW)
    assert np.array_equal(found.values, full.values)
    assert full.areas()[0] > 0.6


@pytest.mark.parametrize("half", [0.0, 1.0])
def test_a_mask_that_stays_makes_no_picture(
    pictures: np.ndarray, masks: np.ndarray, compressed: list[tuple[int, ...]], filled: list[int], half: float
) -> None:
    """A map with few values: first only the random pixels, then half of the picture, each at two thresholds."""
    heat = np.where(masks, 2.0, 0.0)
    heat[:, : SHAPE[0] // 2][~masks[:, : SHAPE[0] // 2]] = 1
    thresholds = (0.01, 0.03, 0.2, 0.4)
    whole = pictures.astype(int).sum((1, 2, 3))
    asked: list[int] = []

    def ask(shown: np.ndarray, which: np.ndarray) -> dict[str, np.ndarray]:
        asked.extend(which)
        top = (shown[:, :12] == pictures[which, :12]).all((1, 2, 3))
        return {"aic": np.where(shown.astype(int).sum((1, 2, 3)) == whole[which], 1.0, half * top)}

    full = pic.information_curves(pictures, heat, masks, ask, thresholds=thresholds)["aic"]
    assert full.answers.tolist() == [[0, 0, 0, half, half, 1]] * 3
    for counted in (asked, compressed, filled, bokeh._SIZES):
        counted.clear()
    found = pic.brief_curves(pictures, heat, masks, ask, thresholds=thresholds)
    assert np.array_equal(found.values, full.values)
    assert len(asked) == len(filled) == len(compressed) == 3 * 3, "both ends, and the half once"
    assert np.isnan(found.answers).tolist() == [[False, True, True, False, True, False]] * 3

    at_once = pic.brief_curves(pictures, np.ones_like(heat), masks, ask, thresholds=thresholds)
    np.testing.assert_allclose(at_once.areas(), 0.5, atol=1e-9)
    assert len(asked) == 2 * 3 * 3
    assert len(compressed) == 3 * 3, "a constant map shows the whole picture, which is known"


def test_brief_curves_skip_the_same_images(pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray) -> None:
    first = limits(pictures, -maps, masks, [2, 2, 2])
    pictures, heat, masks, first = (np.concatenate([x, x[:2]]) for x in (pictures, -maps, masks, first))
    pictures[3] = 90  # blurred and whole are the same file
    alike = Alike(pictures, first)

    def ask(shown: np.ndarray, which: np.ndarray) -> dict[str, np.ndarray]:
        answers = alike(shown, which)["aic"]
        some = np.select([which == 0, which == 1, which == 4], [0.0, 1.0, np.nan], answers)
        return {"all": answers, "some": some}

    full = pic.information_curves(pictures, heat, masks, ask, thresholds=FEW)
    for name, known in {
        "all": (None, None, None, Skip.SIZE, None),
        "some": (Skip.UNSURE, Skip.ANSWER, None, Skip.SIZE, Skip.UNSURE),
    }.items():
        alike.asked = 0
        found = pic.brief_curves(pictures, heat, masks, ask, thresholds=FEW, name=name)
        assert found.skipped == full[name].skipped == known
        assert np.array_equal(found.values, full[name].values, equal_nan=True)
        assert alike.asked == 5 * 2 + 2 * known.count(None), "a skipped image is asked no further"
        alike.asked = 0
        none = pic.brief_curves(pictures, heat, masks, ask, thresholds=FEW, name=name, least=1.5)
        assert set(none.skipped) == {Skip.UNSURE}
        assert np.isnan(none.areas()).all()
        assert alike.asked == 5 * 2


def test_a_brief_metric_gives_the_same_values(compressed: list[tuple[int, ...]]) -> None:
    images = [scenes.make(seed).pil for seed in (1, 6)]
    found, costs = [], []
    for spec in ("aic(thresholds=(0.02, 0.1, 0.5))", "aic(thresholds=(0.02, 0.1, 0.5), brief=True)"):
        for counted in (compressed, bokeh._SIZES):
            counted.clear()
        found.append(vitrail.evaluate("demo", images, ["decompx", "random"], spec).rows)
        costs.append(len(compressed))
    for full, brief in zip(*found):
        assert np.isfinite(full.each).all()
        assert np.array_equal(brief.each, full.each)
        assert brief.value == full.value
    assert costs[1] < costs[0]


def test_asks_a_model_about_what_it_saw() -> None:
    view = vitrail.load("demo")
    sources = [scenes.make(seed).pil for seed in (3, 4)]
    pictures = np.stack([np.asarray(view.preprocess.picture(source)) for source in sources])
    with torch.no_grad():
        logits = view.logits(view.preprocess.batch(sources))
    classes = torch.tensor([int(logits[0].argmax()), int(logits[1].argmin())])
    found = pic.asker(view, classes)(pictures[[1, 0, 1]], np.array([1, 0, 1]))
    expected = logits.softmax(1)[torch.arange(2), classes].numpy()[[1, 0, 1]]
    np.testing.assert_allclose(found["sic"], expected, rtol=1e-4)
    assert found["aic"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("curves", [pic.information_curves, pic.brief_curves])
def test_mistakes_get_a_sentence(
    pictures: np.ndarray, maps: np.ndarray, masks: np.ndarray, curves: Callable[..., object]
) -> None:
    ask = Likeness(pictures)
    with pytest.raises(InputError, match="must be uint8"):
        curves(pictures / 255, maps, masks, ask)
    with pytest.raises(InputError, match=r"2 x 2 pixels or more, but uint8 \(3, 1, 20, 3\)"):
        curves(pictures[:, :1], maps[:, :1], masks[:, :1], ask)
    with pytest.raises(InputError, match=r"a map and a mask.*Explanation\.upsample"):
        curves(pictures, maps[:, ::2], masks, ask)
    with pytest.raises(InputError, match="maps must be finite"):
        curves(pictures, maps * np.nan, masks, ask)
    for thresholds in [(0.5, 0.1), (0.0, 0.5), (50, 75)]:
        with pytest.raises(InputError, match="ascending"):
            curves(pictures, maps, masks, ask, thresholds=thresholds)


STORED = FOLDER / "metrics" / "pic.npz"
"""Areas that the authors' code gave for eight images, NaN where it skipped one. The maps are stored too: a pixel more
at one threshold makes other triangles everywhere, which moves a single area by more than what is compared here."""


def real(assets: Path, images: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, pic.Ask]:
    """What the curves of some of the images are made of."""
    with np.load(STORED) as file:
        names, small = file["names"][images], torch.from_numpy(file["maps"][images]).double()[:, None]
    view = deit_tiny(assets)
    paths = [assets / "data/imagenet_val/images" / name for name in names]
    heat = torch.nn.functional.interpolate(small, (224, 224), mode="bilinear")[:, 0].numpy()
    pictures = np.stack([np.asarray(view.preprocess.picture(path)) for path in paths])
    masks = np.stack([pic.random_mask((224, 224), (0, i)) for i in images])
    with torch.no_grad():
        classes = view.logits(view.preprocess.batch(paths)).argmax(1)
    return pictures, heat, masks, pic.asker(view, classes)


def agrees(assets: Path, images: list[int]) -> dict[str, np.ndarray]:
    """The curves of some of the images, their areas compared with the stored ones."""
    with np.load(STORED) as file:
        stored = dict(file)
    if features.version("webp") != stored["webp"]:
        pytest.skip(f"the stored areas come from libwebp {stored['webp']}, whose files are of other sizes")
    found = pic.information_curves(*real(assets, images), least=float(stored["least"]))
    for name, curves in found.items():
        np.testing.assert_allclose(curves.areas(), stored[name][images], atol=1e-3, equal_nan=True)
    return {name: curves.values for name, curves in found.items()}


def test_agrees_with_the_authors_code(assets: Path) -> None:
    agrees(assets, [0])


@pytest.mark.slow
def test_agrees_on_more_images(assets: Path) -> None:
    found = agrees(assets, list(range(8)))
    with np.load(STORED) as stored:
        for name, values in found.items():
            for how in ("median", "mean"):
                assert pic.aggregate(values, how).area == pytest.approx(float(stored[f"{name}_{how}"]), abs=1e-3)


@pytest.mark.slow
def test_brief_areas_of_more_images(assets: Path) -> None:
    """Equal, but for images where a picture that shows more takes fewer bytes: one of the five, by 3e-4."""
    case = real(assets, list(range(8)))
    full, found = pic.information_curves(*case)["aic"], pic.brief_curves(*case)
    assert found.skipped == full.skipped
    steady = 0
    for i in [i for i, skip in enumerate(full.skipped) if skip is None]:
        before, behind = np.split(full.sizes[i], [int(full.answers[i].argmax())])
        if before.max() == before[-1] < behind[0] == behind.min():
            steady += 1
            assert np.array_equal(found.values[i], full.values[i])
        else:
            assert found.areas()[i] == pytest.approx(full.areas()[i], abs=1e-3)
    assert steady > 3
    assert np.isfinite(found.sizes).sum() < np.isfinite(full.sizes).sum() / 2
