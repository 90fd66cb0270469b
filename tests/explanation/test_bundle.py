"""Bundles: one file to draw, judge and make an explanation again, without the model or a parse of the spec."""

import contextlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail import Explanation, InputError, scenes
from vitrail.explanation import Bundle
from vitrail.method import METHODS
from vitrail.show import scale

SCENES = [scenes.make(seed) for seed in (7, 8)]
PICTURES = [scene.pil for scene in SCENES]


@pytest.fixture(scope="module", params=["genatt", "mda(cells=3, seed=None)", "several"])
def bundled(request: pytest.FixtureRequest) -> Bundle:
    view = vitrail.load("demo")
    if request.param == "several":
        found = vitrail.explain(view, PICTURES, "gradcam(relu=False)", targets=["predicted", "whale"])
    else:
        found = vitrail.explain(view, PICTURES, request.param)
    return found.bundle([view.preprocess.picture(picture) for picture in PICTURES])


def same(one: Explanation, other: Explanation) -> None:
    assert one.manifest() == other.manifest()
    assert one.arrays().keys() == other.arrays().keys()
    for name, values in one.arrays().items():
        assert values.dtype == other.arrays()[name].dtype
        np.testing.assert_array_equal(values, other.arrays()[name])


def test_there_and_back(bundled: Bundle, tmp_path: Path) -> None:
    path = bundled.save(tmp_path / "a" / "one.vitrail")
    for source in (path, str(path), path.read_bytes()):
        again = Bundle.read(source)
        same(again.explanation, bundled.explanation)
        np.testing.assert_array_equal(again.pictures, bundled.pictures)
    assert again.to_bytes() == bundled.to_bytes()


def test_drawn_without_the_method(bundled: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that lacks the plug-in."""
    drawn = vitrail.explanation.sheet_of([bundled.explanation], bundled.images)
    data = bundled.to_bytes()
    for name in list(METHODS):
        monkeypatch.delitem(METHODS, name)
    again = Bundle.read(data)
    sheet = vitrail.explanation.sheet_of([again.explanation], again.images)
    assert sheet.tobytes() == drawn.tobytes()


def test_judged_again_without_a_search(bundled: Bundle) -> None:
    view = vitrail.load("demo")
    inputs = [view.preprocess.tensor(picture) for picture in bundled.images]
    explanations = bundled.explanation.each()
    scores = vitrail.evaluate(view, inputs, explanations[0], "deletion(step=5184)")
    fresh = vitrail.evaluate(
        view, PICTURES, vitrail.explain(view, PICTURES, explanations[0].method), "deletion(step=5184)"
    )
    assert scores.rows[0].value == pytest.approx(fresh.rows[0].value, abs=1e-5)


def test_the_header_says_all_that_a_page_needs(bundled: Bundle) -> None:
    data = bundled.to_bytes()
    length = int.from_bytes(data[8:16], "little")
    header = json.loads(data[16 : 16 + length])
    assert (16 + length) % 64 == 0
    found, facts = bundled.explanation, header["explanation"]
    assert {
        "precision",
        "compiled",
        "hashes",
        "signed",
        "enlargement",
        "notes",
        "fingerprint",
        "targets",
    } <= facts.keys()
    assert header["predictions"][0][0][0] == found.predictions(0)[0][0]
    maps = found.maps.flatten(0, -3).numpy()
    assert len(header["colours"]) == len(maps)
    for one, values in zip(header["colours"], maps):
        expected = scale(values, signed=found.signed)
        assert (one["low"], one["high"], one["empty"]) == (expected.low, expected.high, expected.empty)
    for name, place in header["arrays"].items():
        start = 16 + length + place["offset"]
        assert start % 64 == 0, name
        values = np.frombuffer(data, np.dtype(place["dtype"]), int(np.prod(place["shape"])), start)
        own = bundled.pictures if name == "pictures" else found.arrays()[name]
        np.testing.assert_array_equal(values.reshape(place["shape"]), own)


def test_pictures_must_be_those_the_model_saw(bundled: Bundle) -> None:
    found = bundled.explanation
    with pytest.raises(InputError, match="one picture an image, 2, but 1"):
        found.bundle(bundled.images[:1])
    with pytest.raises(InputError, match="the model saw 144 x 144 pixels, but a picture of 10 x 20"):
        found.bundle([bundled.images[0], np.zeros((10, 20, 3), np.uint8)])


def test_damage_gets_a_sentence(bundled: Bundle, tmp_path: Path) -> None:
    data = bundled.to_bytes()
    length = int.from_bytes(data[8:16], "little")
    with pytest.raises(InputError, match="no bundle that can be read"):
        Bundle.read(tmp_path / "nowhere")
    chance = random.Random(0)
    broken = [b"", data[:7], data[:20], data[: 16 + length], data[:-1], b"x" + data[1:]]
    broken += [data[:8] + (2**62).to_bytes(8, "little") + data[16:]]
    for _ in range(200):  # in the header, where everything is decided
        place = chance.randrange(16, 16 + length)
        broken.append(data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :])
    for one in broken:
        with contextlib.suppress(InputError):  # a changed word may leave a bundle that can be read
            Bundle.read(one)


def test_half_precision_state_and_numbers_survive() -> None:
    view = vitrail.load("demo")
    found = vitrail.explain(view, PICTURES[:1], "var(skipplus(ixg), classes=top2)")
    again = Bundle.read(found.bundle([view.preprocess.picture(PICTURES[0])]).to_bytes()).explanation
    assert torch.equal(again.with_(temperatures=(2.0,)).maps, found.with_(temperatures=(2.0,)).maps)
