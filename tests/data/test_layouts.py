"""Every layout that a dataset is handed around in is read as its makers mean it."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from helpers.trees import TENCH, ZEBRA, painted, picture, read, xml
from vitrail.data import classes, dataset
from vitrail.data.annotated import unrolled
from vitrail.data.readers import filled
from vitrail.errors import InputError

# ------------------------------------------------------------------------------------------------------------- ImageNet


@pytest.mark.parametrize("place", ["", "val", "train"])
def test_imagenet_in_class_folders(tmp_path: Path, place: str) -> None:
    for wnid in (ZEBRA, TENCH):
        picture(tmp_path / place / wnid / "x_1.JPEG")
    xml(tmp_path / "Annotations" / (place or "val") / ZEBRA / "x_1.xml", (ZEBRA, "1 2 5 6"), (TENCH, "0 0 1 1"))
    data = read(f"imagenet:{tmp_path}")
    assert [(item.name, item.label) for item in data] == [(f"{TENCH}/x_1.JPEG", 0), (f"{ZEBRA}/x_1.JPEG", 340)]
    assert [item.boxes for item in data] == [None, ((1, 2, 5, 6),)]
    assert data.classes[340] == "zebra"


def test_imagenet_with_kaggles_table(tmp_path: Path) -> None:
    for i in (1, 2):
        picture(tmp_path / "ILSVRC/Data/CLS-LOC/val" / f"ILSVRC2012_val_0000000{i}.JPEG")
    (tmp_path / "LOC_val_solution.csv").write_text(
        f"ImageId,PredictionString\nILSVRC2012_val_00000002,{TENCH} 0 0 3 4 \n"
        f"ILSVRC2012_val_00000001,{ZEBRA} 1 2 5 6 {ZEBRA} 0 0 2 2 \n"
    )
    data = read(f"imagenet:{tmp_path}")
    assert [item.label for item in data] == [340, 0]
    assert data[0].boxes == ((1, 2, 5, 6), (0, 0, 2, 2))
    picture(tmp_path / "ILSVRC/Data/CLS-LOC/val/mine.jpg")
    with pytest.raises(InputError, match=r"says nothing of mine.jpg \(1 such\)"):
        dataset(f"imagenet:{tmp_path}")


def test_imagenet_with_the_development_kit(tmp_path: Path) -> None:
    for i in (1, 3):
        picture(tmp_path / "val" / f"ILSVRC2012_val_0000000{i}.JPEG")
    kit = tmp_path / "devkit" / "data"
    kit.mkdir(parents=True)
    with pytest.raises(InputError, match=r"put LOC_val_solution.csv, or ILSVRC2012_validation_ground_truth.txt and"):
        dataset(f"imagenet:{tmp_path}")
    synsets = np.zeros(3, dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)])
    synsets[:] = [(7, ZEBRA, 0), (9, TENCH, 0), (1001, "n00001740", 5)]
    savemat(kit / "meta.mat", {"synsets": synsets})
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("9\n9\n7\n")
    xml(tmp_path / "bbox" / "val" / "ILSVRC2012_val_00000003.xml", (ZEBRA, "1 2 5 6"))
    data = read(f"imagenet:{tmp_path}")
    assert [(item.label, item.boxes) for item in data] == [(0, None), (340, ((1, 2, 5, 6),))]
    picture(tmp_path / "val" / "ILSVRC2012_val_00000004.JPEG")
    with pytest.raises(InputError, match=r"has 3 answers, none for ILSVRC2012_val_00000004.JPEG"):
        dataset(f"imagenet:{tmp_path}")
    (kit / "meta.mat").write_text("x")
    with pytest.raises(InputError, match=r"meta.mat is not the file of the ILSVRC2012 kit"):
        dataset(f"imagenet:{tmp_path}")


def imagenet_s(root: Path, names: list[str]) -> None:
    for i, wnid in enumerate(names, start=1):
        picture(root / "validation" / wnid / "a.JPEG", (3, 1))
        ids = np.array([[i, 1000, 0]])
        pixels = np.stack([ids % 256, ids // 256, np.zeros_like(ids)], 2).tolist()
        painted(root / "validation-segmentation" / wnid / "a.png", pixels)


def test_imagenet_s(tmp_path: Path) -> None:
    names = sorted(classes.wordnet_ids())
    imagenet_s(tmp_path, names[:300])
    data = read(f"imagenet-s:{tmp_path}")
    assert len(data) == 300
    assert [item.label for item in data] == [classes.wordnet_ids()[name] for name in names[:300]]
    for item in (data[0], data[298]):  # the number of the second needs both colours
        assert item.mask().tolist() == [[1, -1, 0]]


def test_part_of_imagenet_s_needs_the_list_of_classes(tmp_path: Path) -> None:
    imagenet_s(tmp_path, [TENCH, ZEBRA])
    with pytest.raises(InputError, match="has 2 class folders, but the numbers in the masks count all of 50, 300, 919"):
        dataset(f"imagenet-s:{tmp_path}")
    (tmp_path / "classes.txt").write_text(f"n01443537\n{TENCH}\n{ZEBRA}\n")
    data = read(f"imagenet-s:{tmp_path}")
    assert data[0].mask().tolist() == [[0, -1, 0]]  # its pixels are 1, the number of n01443537 here


def test_imagenet_segmentation(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)  # height 2, width 3
    mask = np.array([[0, 1, 1], [0, 0, 1]], np.uint8)
    with h5py.File(tmp_path / "g.mat", "w") as file:
        stored = {
            "img": file.create_dataset("r/img", data=pixels.transpose(2, 1, 0)).ref,
            "target": file.create_dataset("r/id", data=np.array([[ord(c)] for c in ZEBRA], np.uint16)).ref,
        }
        inner = file.create_dataset("r/mask", data=mask.T).ref
        stored["gt"] = file.create_dataset("r/gt", data=np.array([[inner]], h5py.ref_dtype), dtype=h5py.ref_dtype).ref
        for key, ref in stored.items():
            file.create_dataset(f"value/{key}", data=np.array([[ref]], h5py.ref_dtype), dtype=h5py.ref_dtype)
    (item,) = read(f"imagenet-segmentation:{tmp_path / 'g.mat'}")
    assert (item.name, item.label) == ("0000", 340)
    assert np.array_equal(np.asarray(item.picture()), pixels)
    assert np.array_equal(item.mask(), mask)


# --------------------------------------------------------------------------------------------------- COCO, Pets and VOC


def test_every_class_of_the_tables_is_one() -> None:
    names = classes.imagenet_names()
    assert set(classes.COCO) <= set(classes.COCO80)
    assert len(classes.COCO80) == 80
    assert set(classes.VOC) <= set(classes.VOC_NAMES)
    assert len(classes.VOC_NAMES) == 20
    for table in (classes.COCO, classes.VOC):
        for name, found in table.items():
            assert len(set(found)) == len(found)
            assert all(0 <= i < 1000 for i in found), name
    same = [
        "zebra",
        "banana",
        "orange",
        "broccoli",
        "pizza",
        "vase",
        "umbrella",
        "backpack",
        "toaster",
        "traffic light",
    ]
    for name in same:
        assert [names[i].split(",")[0] for i in classes.COCO[name]] == [name]
    assert all("bear" in names[i] for i in classes.COCO["bear"])
    assert all("clock" in names[i] for i in classes.COCO["clock"])
    assert len(classes.PETS) == 24


def coco(root: Path) -> None:
    picture(root / "val2017" / "7.jpg", (8, 6))
    picture(root / "val2017" / "3.jpg", (8, 6))
    square = [2, 1, 6, 1, 6, 4, 2, 4]
    crowd = {"size": [6, 8], "counts": [0, 6, 42]}  # the first column
    content = {
        "images": [{"id": i, "file_name": name, "height": 6, "width": 8} for i, name in ((1, "7.jpg"), (2, "3.jpg"))],
        "categories": [{"id": 24, "name": "zebra"}, {"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        "annotations": [
            {"image_id": 1, "category_id": 24, "segmentation": [square], "bbox": [2, 1, 4, 3], "iscrowd": 0},
            {"image_id": 1, "category_id": 24, "segmentation": crowd, "bbox": [0, 0, 1, 6], "iscrowd": 1},
            {"image_id": 1, "category_id": 1, "segmentation": [square], "bbox": [2, 1, 4, 3], "iscrowd": 0},
            {"image_id": 2, "category_id": 24, "segmentation": crowd, "bbox": [0, 0, 1, 6], "iscrowd": 1},
            {"image_id": 2, "category_id": 18, "segmentation": [square], "bbox": [2, 1, 4, 3], "iscrowd": 0},
        ],
    }
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(content))


def test_coco(tmp_path: Path) -> None:
    coco(tmp_path)
    data = read(f"coco:{tmp_path}")
    assert [item.name for item in data] == ["3.jpg dog", "7.jpg zebra"]
    dog, zebra = data
    assert (dog.label, dog.accepted) == (None, tuple(range(151, 269)))
    assert (zebra.label, zebra.boxes) == (340, ((2, 1, 6, 4),))
    assert (dog.present, zebra.present) == (((340,),), ()), "a crowd is shown, too; a person is no class of ImageNet"
    expected = np.zeros((6, 8), int)
    expected[1:4, 2:6] = 1
    expected[:, 0] = -1
    assert np.array_equal(zebra.mask(), expected)
    (tmp_path / "val2017/7.jpg").unlink()
    with pytest.raises(InputError, match=r"there is no picture .*7.jpg; unpack all of val2017"):
        dataset(f"coco:{tmp_path}")
    (tmp_path / "annotations/instances_val2017.json").write_text("{}")
    with pytest.raises(InputError, match=r"instances_val2017.json cannot be read"):
        dataset(f"coco:{tmp_path}")


def test_cocos_runs() -> None:
    assert unrolled((1, 2, 3), (2, 3)).astype(int).tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(InputError, match="has 5 pixels, not 2 x 3"):
        unrolled((1, 2, 2), (2, 3))


def test_cocos_compressed_runs() -> None:
    library = pytest.importorskip("pycocotools.mask")
    wanted = np.array([[0, 1, 0], [1, 0, 0]], np.uint8)
    runs = library.encode(np.asfortranarray(wanted))["counts"].decode()
    assert np.array_equal(unrolled(runs, (2, 3)), wanted)


def test_polygons_are_filled_as_pycocotools_does() -> None:
    library = pytest.importorskip("pycocotools.mask")
    angles = np.linspace(0, 2 * np.pi, 30)
    flower = np.stack([50 + np.cos(angles) * (30 + 10 * np.sin(5 * angles)), 40 + 25 * np.sin(angles)], 1)
    other = library.decode(library.frPyObjects([flower.ravel().tolist()], 80, 100))[..., 0]
    mine = filled([flower], (80, 100))
    assert (mine & other).sum() / (mine | other).sum() > 0.98


def test_pets(tmp_path: Path) -> None:
    for name in ("beagle_12", "Egyptian_Mau_3", "Sphynx_1", "pug_1"):
        picture(tmp_path / "images" / f"{name}.jpg", (3, 1))
    for name in ("beagle_12", "Egyptian_Mau_3", "Sphynx_1"):
        painted(tmp_path / "annotations/trimaps" / f"{name}.png", [[1, 2, 3]])
    data = read(f"pets:{tmp_path}")
    assert [(item.name, item.label) for item in data] == [("Egyptian_Mau_3.jpg", 285), ("beagle_12.jpg", 162)]
    assert data[0].mask().tolist() == [[1, 0, -1]]


@pytest.mark.parametrize("place", ["", "VOCdevkit/VOC2012"])
def test_voc(tmp_path: Path, place: str) -> None:
    root = tmp_path / place
    for name in ("a", "b"):
        picture(root / "JPEGImages" / f"{name}.jpg", (3, 1))
        painted(root / "SegmentationClass" / f"{name}.png", [[13, 255, 8]])
        xml(root / "Annotations" / f"{name}.xml", ("horse", "0 0 1 1"), ("cat", "2 0 3 1"), ("person", "0 0 3 1"))
    data = read(f"voc:{tmp_path}")
    assert [item.name for item in data] == ["a.jpg cat", "a.jpg horse", "b.jpg cat", "b.jpg horse"]
    cat, horse = data[:2]
    assert (cat.label, cat.accepted, cat.mask().tolist()) == (None, (281, 282, 283, 284, 285), [[0, -1, 1]])
    assert (horse.label, horse.boxes, horse.mask().tolist()) == (339, ((0, 0, 1, 1),), [[1, -1, 0]])
    assert (cat.present, horse.present) == (((339,),), ((281, 282, 283, 284, 285),))
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    (root / "ImageSets/Segmentation/val.txt").write_text("b\n")
    assert [item.name for item in read(f"voc:{tmp_path}")] == ["b.jpg cat", "b.jpg horse"]
    (root / "SegmentationClass/b.png").unlink()
    with pytest.raises(InputError, match=r"there is no file .*b.png; unpack all of VOC"):
        dataset(f"voc:{tmp_path}")


# --------------------------------------------------------------------------------------------------------- Hugging Face


class ClassLabel:
    names = ("cat", "dog")


class Table(list):
    """As much of a table of the library as is used."""

    features = types.MappingProxyType({"picture": type("Image", (), {})(), "kind": ClassLabel()})
    _fingerprint = "f00"

    def __getitem__(self, key: object) -> object:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.new("RGB", (4, 3))
    table = Table([{"picture": image, "kind": 1}, {"picture": image, "kind": -1}])
    library = types.ModuleType("datasets")
    library.get_dataset_split_names = lambda name: ["train", "test"]
    library.load_dataset = lambda name, split: {"test": table}[split]
    monkeypatch.setitem(sys.modules, "datasets", library)
    data = read("hf:someone/pictures")
    assert [(item.name, item.label) for item in data] == [("test/0", 1), ("test/1", None)]
    assert data.classes == ("cat", "dog")
    assert data[0].picture() is image
    with pytest.raises(InputError, match="it cannot be loaded"):
        dataset("hf:someone/pictures,split=nothing")
    with pytest.raises(InputError, match="write hf:NAME or hf:NAME,split=validation"):
        dataset("hf:someone/pictures,part=test")


@pytest.mark.parametrize(("spec", "module"), [("imagenet-segmentation:x.mat", "h5py"), ("hf:x", "datasets")])
def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch, spec: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"the library {module} is needed .* pip install 'vitrail\[bench\]'"):
        dataset(spec)


def test_pycocotools_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(InputError, match="pycocotools is needed"):
        unrolled("abc", (2, 3))
