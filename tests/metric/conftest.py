"""What pictures of information curves cost: how many are made, and how many compressed."""

from collections import OrderedDict

import numpy as np
import pytest
from PIL import Image

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
