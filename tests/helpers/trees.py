"""Small folders in the layouts of the datasets, and what every dataset must hold."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data import Dataset, Item, dataset
from vitrail.model import pictures

TENCH, ZEBRA = "n01440764", "n02391049"


def picture(path: Path, size: tuple[int, int] = (8, 6)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "teal").save(path)
    return path


def painted(path: Path, values: list[list[int]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array(values, np.uint8)).save(path)
    return path


def xml(path: Path, *things: tuple[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sides = ("xmin", "ymin", "xmax", "ymax")
    objects = [
        f"<object><name>{name}</name><bndbox>"
        + "".join(f"<{side}>{number}</{side}>" for side, number in zip(sides, box.split()))
        + "</bndbox></object>"
        for name, box in things
    ]
    path.write_text(f"<annotation>{''.join(objects)}</annotation>")


@contextmanager
def nothing_opened() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*args: object, **options: object) -> None:
            raise AssertionError("a picture was opened")

        patch.setattr(Image, "open", refuse)
        patch.setattr(pictures, "read", refuse)
        yield


def read(spec: str) -> Dataset:
    """The dataset, which holds what every dataset must."""
    with nothing_opened():
        found = dataset(spec)
        fingerprint = found.fingerprint()
    assert found.spec == spec
    assert fingerprint == dataset(spec).fingerprint()
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.fingerprint() == fingerprint
    assert [type(item) for item in found] == [Item] * len(found)
    assert len({item.name for item in found}) == len(found) > 0
    return found
