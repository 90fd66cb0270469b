"""Pictures to learn from: the train split, or a sentence; never those that explanations are judged by."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from helpers.trees import TENCH, ZEBRA, picture
from vitrail import InputError
from vitrail.data import dataset, optional
from vitrail.train import joined


@pytest.mark.parametrize("train", ["train", "ILSVRC/Data/CLS-LOC/train"])
def test_of_imagenet_with_both_splits_the_train_split_is_learned_from(tmp_path: Path, train: str) -> None:
    judged = picture(tmp_path / "val" / TENCH / "judged.JPEG")
    learned = picture(tmp_path / train / ZEBRA / "learned.JPEG")
    spec = f"imagenet:{tmp_path}"
    assert [item.picture() for item in dataset(spec)] == [judged]
    assert [item.picture() for item in joined([spec])] == [learned]
    for i in range(3):
        picture(tmp_path / train / TENCH / f"{i}.JPEG")
    names = {item.name for item in dataset(spec, learn=True)}
    assert names == {f"{ZEBRA}/learned.JPEG", *(f"{TENCH}/{i}.JPEG" for i in range(3))}


@pytest.mark.parametrize("place", ["val", "validation", "ILSVRC/Data/CLS-LOC/val"])
def test_imagenets_val_alone_is_refused(tmp_path: Path, place: str) -> None:
    picture(tmp_path / place / TENCH / "judged.JPEG")
    for spec in (f"imagenet:{tmp_path}", f"imagenet:{tmp_path / place}", f"quads:imagenet:{tmp_path}"):
        with pytest.raises(InputError, match=r"has no train split .* learn from other pictures such as folder:PHOTOS"):
            joined([spec])
    assert len(joined([f"folder:{tmp_path / place / TENCH}"])) == 1, "who says so may"


def test_pictures_to_judge_by_are_known_by_their_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "ILSVRC2012_img_val" / TENCH / "judged.JPEG")
    with pytest.raises(InputError, match="has no train split"):
        joined([f"imagenet:{tmp_path / 'ILSVRC2012_img_val'}"])
    for name in ("imagenet_val", "imagenet_train"):
        picture(tmp_path / "data" / name / "images" / "a.jpg")
        (tmp_path / "data" / name / "labels.csv").write_text("file,class\na.jpg,0\n")
    monkeypatch.setenv("VITRAIL_ASSETS", str(tmp_path))
    for spec in ("assets:imagenet_val", "quads:assets:imagenet_val"):
        with pytest.raises(InputError, match="is there to judge explanations by"):
            joined([spec])
    assert len(joined(["assets:imagenet_train"])) == 1


def test_class_folders_by_themselves_are_learned_from(tmp_path: Path) -> None:
    picture(tmp_path / "mine" / TENCH / "a.JPEG")
    assert len(joined([f"imagenet:{tmp_path / 'mine'}"])) == 1


def test_imagenet_s(tmp_path: Path) -> None:
    for split in ("validation", "train-semi"):
        picture(tmp_path / split / TENCH / f"{split}.JPEG")
        picture(tmp_path / f"{split}-segmentation" / TENCH / f"{split}.png")
    (tmp_path / "classes.txt").write_text(TENCH)
    spec = f"imagenet-s:{tmp_path}"
    assert [item.name for item in dataset(spec)] == [f"{TENCH}/validation.JPEG"]
    assert [item.name for item in joined([spec])] == [f"{TENCH}/train-semi.JPEG"]
    (tmp_path / "train-semi").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"has no train-semi with its masks"):
        joined([spec])


def test_coco(tmp_path: Path) -> None:
    for split in ("val2017", "train2017"):
        picture(tmp_path / split / f"{split}.jpg", (8, 6))
        box = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 3, 3], "segmentation": [[1, 1, 4, 1, 4, 4, 1, 4]]}
        content = {
            "categories": [{"id": 1, "name": "zebra"}],
            "images": [{"id": 1, "file_name": f"{split}.jpg", "height": 6, "width": 8}],
            "annotations": [box | {"iscrowd": 0}],
        }
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    spec = f"coco:{tmp_path}"
    assert dataset(spec)[0].name.startswith("val2017")
    assert joined([spec])[0].name.startswith("train2017")
    (tmp_path / "annotations" / "instances_train2017.json").unlink()
    with pytest.raises(InputError, match=r"has no .*instances_train2017.json, and val is there to judge by"):
        joined([spec])


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    class Image_:  # noqa: N801
        pass

    Image_.__name__ = "Image"

    class Table(list[dict[str, Any]]):
        features = {"image": Image_()}  # noqa: RUF012
        _fingerprint = "made"

    splits = ["train", "validation"]
    table = Table([{"image": Image.new("RGB", (8, 6))}])
    library = SimpleNamespace(get_dataset_split_names=lambda name: splits)
    monkeypatch.setattr(optional, "needed", lambda *_: library)
    monkeypatch.setattr(optional, "_table", lambda name, split: table)
    assert dataset("hf:some/pictures")[0].name == "validation/0"
    assert joined(["hf:some/pictures"])[0].name == "train/0"
    assert joined(["hf:some/pictures,split=validation"])[0].name == "validation/0", "who says so may"
    splits.remove("train")
    with pytest.raises(InputError, match=r"has no train split to learn from, only validation; add ,split= and one"):
        joined(["hf:some/pictures"])
