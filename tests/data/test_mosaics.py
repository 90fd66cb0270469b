"""Mosaics: every picture once, four classes each, and masks where the pictures are."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.trees import nothing_opened, painted, read
from vitrail.data import dataset
from vitrail.errors import InputError
from vitrail.model import pictures

COLOURS = ("red", "lime", "blue", "yellow", "white", "black")
CELLS = [np.s_[:224, :224], np.s_[:224, 224:], np.s_[224:, :224], np.s_[224:, 224:]]


def table(root: Path, labels: str, columns: str = "") -> str:
    """A table of pictures, one for each letter, coloured by label; 64 x 32 pixels."""
    lines = []
    for i, label in enumerate(labels):
        Image.new("RGB", (64, 32), COLOURS[int(label)] if label.isdecimal() else "teal").save(root / f"{i}.png")
        lines.append(f"{i}.png,{label if label.isdecimal() else ''}{columns}")
    (root / "t.csv").write_text("file,class,boxes,mask\n" + "\n".join(lines))
    return f"csv:{root / 't.csv'}"


def test_every_picture_is_in_one_cell(tmp_path: Path) -> None:
    data = read(f"quads:{table(tmp_path, '0123-4501-2345')}")
    assert [item.name for item in data] == [f"quad {i}.{cell}" for i in range(3) for cell in range(4)]
    assert sorted(item.label for item in data) == sorted(map(int, "012345012345"))
    used = [inner.name for item in data[::4] for inner in item.source.items]
    assert len(set(used)) == 12
    for first in range(0, len(data), 4):
        four = data[first : first + 4]
        labels = [item.label for item in four]
        assert len(set(labels)) == 4
        assert len({item.source for item in four}) == 1
        pixels = np.asarray(four[0].picture())
        assert pixels.shape == (448, 448, 3)
        for item, cell in zip(four, CELLS):
            assert sorted(item.present) == sorted((label,) for label in labels if label != item.label)
            assert np.array_equal(np.unique(pixels[cell].reshape(-1, 3), axis=0), [colour(item.label)])
            mask = item.mask()
            assert (mask[cell].all(), mask.sum(), mask.dtype) == (True, 224 * 224, np.int8)


def colour(label: int) -> np.ndarray:
    return np.asarray(Image.new("RGB", (1, 1), COLOURS[label]))[0, 0]


def test_pictures_of_which_no_four_differ_are_left(tmp_path: Path) -> None:
    labels = "00000000123012"
    data = dataset(f"quads:{table(tmp_path, labels)}")
    left = list(map(int, labels))
    for item in data:
        left.remove(item.label)
    assert len(data) >= 4
    assert len(set(left)) < 4


def test_a_picture_that_is_two_items_is_used_once(tmp_path: Path) -> None:
    spec = table(tmp_path, "0123")
    file = tmp_path / "t.csv"
    file.write_text(file.read_text() + "\n0.png,5")
    data = dataset(f"quads:{spec}")
    assert sorted(item.label for item in data) == [0, 1, 2, 3]


def test_the_object_in_the_cell(tmp_path: Path) -> None:
    mask = np.zeros((32, 64), int)
    mask[:16, 16:32], mask[16:, 40:] = 1, 255  # the cell shows columns 16 to 48, seven times as large
    painted(tmp_path / "m.png", mask.tolist())
    spec = table(tmp_path, "0123", ",,m.png")
    data = read(f"part-quads:{spec}")
    expected = np.zeros((224, 224), int)
    expected[:112, :112], expected[112:, 168:] = 1, -1
    cells = dataset(f"quads:{spec}")
    for item, cell, whole in zip(data, CELLS, cells):
        found = item.mask().copy()
        assert np.array_equal(found[cell], expected)
        found[cell] = 0
        assert not found.any()
        assert (item.source, item.label, item.present) == (whole.source, whole.label, whole.present)
    assert data.fingerprint() != cells.fingerprint()


def test_boxes_where_there_is_no_mask(tmp_path: Path) -> None:
    spec = table(tmp_path, "0123", ",0 8 24 32;40 0 64 16")
    item = dataset(f"part-quads:{spec}")[2]
    expected = np.zeros((224, 224), int)
    expected[56:, :56] = expected[:112, 168:] = 1
    assert np.array_equal(item.mask()[CELLS[2]], expected)
    file = tmp_path / "t.csv"
    file.write_text(file.read_text().replace("0.png,0,0 8 24 32;40 0 64 16", "0.png,0,"))
    data = dataset(f"part-quads:{spec}")
    assert [item.mask() is None for item in data] == [item.label == 0 for item in data]


def test_a_mosaic_is_laid_once_for_its_four_cells(tmp_path: Path) -> None:
    data = dataset(f"quads:{table(tmp_path, '0123')}")
    first = data[0].picture()
    first.paste("teal", (0, 0, 448, 448))  # what a user does to a picture is the user's affair
    with nothing_opened():
        assert np.array_equal(np.asarray(data[3].picture())[0, 0], colour(data[0].label))


@pytest.mark.parametrize(
    ("kind", "labels", "said"),
    [
        ("quads", "0120120", "must have labelled pictures of four classes or more"),
        ("quads", "----", "must have labelled pictures of four classes or more"),
        ("part-quads", "0123", "has neither masks nor boxes; give another dataset, or use quads"),
    ],
)
def test_mosaics_that_cannot_be(tmp_path: Path, kind: str, labels: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^{kind}:csv:.*{said}"):
        dataset(f"{kind}:{table(tmp_path, labels)}")


def test_mosaics_of_nothing() -> None:
    with pytest.raises(InputError, match="quads: write another dataset behind the colon, as in quads:scenes:100"):
        dataset("quads")
    with pytest.raises(InputError, match="no kind of dataset 'photos'"):
        dataset("part-quads:photos:x")


def test_mosaics_of_real_pictures(assets: Path) -> None:
    data = read("part-quads:assets:imagenet_val")
    assert len(data) == 2000
    assert all(len({item.label, *(c for (c,) in item.present)}) == 4 for item in data)
    for item in data[:8]:
        assert pictures.read(item.picture()).size == (448, 448)
        cell = CELLS[int(item.name[-1])]
        mask = item.mask()
        assert mask[cell].any()
        assert mask.sum() == mask[cell].sum()
