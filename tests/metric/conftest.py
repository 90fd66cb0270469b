"""A world to judge maps in; and what pictures of information curves cost: how many are made and compressed."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail import scenes
from vitrail.metric.faithfulness import bokeh


@pytest.fixture
def compressed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the pictures that are compressed; nothing is remembered from before."""
    found: list[tuple[int, ...]] = []
    original = Image.Image.save

    def save(image: Image.Image, *args: object, **kwargs: object) -> None:
        found.append(image.size)
        original(image, *args, **kwargs)

    monkeypatch.setattr(Image.Image, "save", save)
    monkeypatch.setattr(bokeh, "_SIZES", OrderedDict())
    return found


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pixels are kept in each of the pictures that are made."""
    found: list[int] = []
    original = bokeh.blurred

    def blurred(picture: np.ndarray, keep: np.ndarray) -> np.ndarray:
        found.append(int(keep.sum()))
        return original(picture, keep)

    monkeypatch.setattr(bokeh, "blurred", blurred)
    return found


@pytest.fixture(scope="module")
def world() -> list[scenes.Scene]:
    return [scenes.make(seed) for seed in range(5)]


@pytest.fixture(scope="module")
def pictures(world: list[scenes.Scene]) -> list[Any]:
    return [scene.pil for scene in world]


@pytest.fixture(scope="module")
def masks(world: list[scenes.Scene]) -> list[np.ndarray]:
    return [scene.objects[0].mask for scene in world]


@pytest.fixture(scope="module")
def labels(pictures: list[Any]) -> list[int]:
    return vitrail.explain("demo", pictures, "random").logits.argmax(1).tolist()
