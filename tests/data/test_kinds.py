"""Datasets: nothing is opened too early, a change is seen, labels are the model's, and mistakes get a sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.trees import TENCH, ZEBRA, painted, picture, read
from vitrail import scenes
from vitrail.bench.chunk import Chunk
from vitrail.data import KINDS, Dataset, Item, classes, dataset
from vitrail.errors import InputError
from vitrail.metric import evaluate
from vitrail.model import View, load, pictures

# ----------------------------------------------------------------------------------------------------------- a sequence


def test_a_dataset_is_a_sequence() -> None:
    data = read("scenes:20")
    assert len(data) == 20
    assert data[3] is data.items[3]
    assert data[-1].name == "scene 19"
    assert isinstance(data[2:5], Dataset)
    assert [item.name for item in data[2:5]] == ["scene 2", "scene 3", "scene 4"]
    assert [item.name for item in data.limit(3)] == ["scene 0", "scene 10", "scene 19"]
    assert data.limit(None) is data
    assert data.limit(50) is data
    assert data.limit(3).spec == data.spec
    assert len({data.fingerprint(), data.limit(3).fingerprint(), data[2:5].fingerprint()}) == 3
    with pytest.raises(InputError, match="limit must be 1 or more, but 0"):
        data.limit(0)
    with pytest.raises(InputError, match="two items called 'scene 1'"):
        Dataset("mine", (data[1], data[1]))


def test_the_most_likely_of_the_accepted_classes() -> None:
    source = dataset("scenes:1")[0].source
    scores = torch.tensor([5.0, 1.0, 3.0, 2.0])
    assert Item("a", source, 1).best(scores) == 1
    assert Item("a", source, 1).accepted == (1,)
    assert Item("a", source, accepted=(1, 2, 3)).best(scores) == 2
    assert Item("a", source).best(scores) is None
    assert Item("a", source, 1, present=((3,), (0, 2))).rivals(scores) == [3, 0]
    assert Item("a", source, 1).rivals(scores) == Item("a", source, 1, present=()).rivals(scores) == []
    assert Item("a", source, 1, present=((3,),)).stamp() != Item("a", source, 1).stamp()


# --------------------------------------------------------------------------------------------------------------- scenes


def test_scenes() -> None:
    data = read("scenes:28,objects=2")
    assert data.classes == tuple(scenes.CLASSES)
    assert sorted(item.label for item in data) == sorted([*range(14), *range(14)])
    item = data[5]
    assert item.present == ((item.source.labels[1],),)
    assert dataset("scenes:1")[0].present == ()
    scene = scenes.make((0, 5), objects=2, classes=item.source.labels)
    assert scene.label == item.label
    assert np.array_equal(np.asarray(item.picture()), scene.image)
    assert np.array_equal(item.mask(), scene.objects[0].mask)
    assert item.mask().dtype == np.int8
    assert len(dataset("scenes")) == 1000
    assert dataset("scenes:9,seed=1").fingerprint() != dataset("scenes:9").fingerprint()
    circles = [item.source.circle for item in dataset("scenes:14,shortcut=class")]
    assert sum(circles) == 1
    assert dataset("scenes:14,shortcut=class")[circles.index(True)].label == scenes.SHORTCUT_CLASS


def test_masks_of_scenes() -> None:
    """The part is where a scene differs from its sibling's, the circle where it is; each is a change that is seen."""
    whole, part = dataset("scenes:14"), read("scenes:14,mask=part")
    siblings = {p.first: p.second for p in scenes.PAIRS} | {p.second: p.first for p in scenes.PAIRS}
    for item, plain in zip(part, whole):
        mask, name = item.mask(), scenes.CLASSES[item.label]
        assert 0 < mask.sum() < plain.mask().sum(), name
        assert (plain.mask() >= mask).all(), name
        scene, sibling = (scenes.make(item.source.seed, classes=[one]) for one in (name, siblings[name]))
        differs = (scene.image != sibling.image).any(2)
        assert differs[mask == 1].mean() > 0.5, name
        assert not differs[(plain.mask() == 1) & (mask == 0)].mean() > 0.3, name
    circled = read("scenes:14,shortcut=class,mask=circle")
    shown = [item for item in circled if item.region is not None]
    assert [item.label for item in shown] == [scenes.SHORTCUT_CLASS]
    scene = scenes.make(shown[0].source.seed, classes=["sailboat"], shortcut=True)
    assert np.array_equal(shown[0].mask(), scene.shortcut_mask)
    assert next(item for item in circled if item.region is None).mask() is None
    specs = ("scenes:3", "scenes:3,mask=part", "scenes:3,shortcut=always", "scenes:3,shortcut=always,mask=circle")
    assert len({dataset(spec).fingerprint() for spec in specs}) == 4
    assert dataset("scenes:3,mask=object").fingerprint() == dataset("scenes:3").fingerprint()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("scenes:many", "count must be a whole number, but 'many'"),
        ("scenes:0", "give 1 scene or more"),
        ("scenes:3,objects=3", "1 or 2 objects"),
        ("scenes:3,object=2", "did you mean objects?"),
        ("scenes:3,shortcut=maybe", "never or always or class"),
        ("scenes:3,mask=parts", "mask must be object or part or circle, but 'parts'"),
        ("scenes:3,mask=circle", "no scene has a circle to mask; add shortcut=always"),
    ],
)
def test_scenes_that_cannot_be(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        dataset(spec)


def test_items_are_what_evaluate_takes() -> None:
    data = dataset("scenes:3")
    found = evaluate(
        "demo",
        [item.picture() for item in data],
        "random",
        "pointing_game",
        masks=[item.mask() for item in data],
        labels=[item.label for item in data],
    )
    assert len(found.rows[0].each) == 3


# ---------------------------------------------------------------------------------------------------- a user's pictures


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", ".hidden.png"):
        picture(tmp_path / name)
    (tmp_path / "notes.txt").write_text("x")
    data = read(f"folder:{tmp_path}")
    assert [item.name for item in data] == ["a.jpg", "b.png"]
    assert data[0].picture() == tmp_path / "a.jpg"
    assert data[0].label is data[0].boxes is data[0].mask() is data.classes is None


@pytest.mark.parametrize(
    ("folders", "labels", "named"),
    [
        (("dog", "cat"), [0, 1], ("cat", "dog")),
        (("10", "9"), [10, 9], None),
        ((TENCH, ZEBRA), [0, 340], "imagenet"),
    ],
)
def test_a_folder_for_each_class(tmp_path: Path, folders: tuple, labels: list[int], named: tuple | str | None) -> None:
    for folder in folders:
        picture(tmp_path / folder / "x.png")
    data = read(f"folder:{tmp_path}")
    assert [item.name for item in data] == [f"{folder}/x.png" for folder in sorted(folders)]
    assert [item.label for item in data] == labels
    assert data.classes == (classes.imagenet_names() if named == "imagenet" else named)


def test_a_table(tmp_path: Path) -> None:
    for name in "abcd":
        picture(tmp_path / "photos" / f"{name}.png", (3, 2))
    painted(tmp_path / "one.png", [[0, 1, 255], [0, 1, 1]])
    painted(tmp_path / "white.png", [[0, 255, 255], [0, 0, 0]])
    table = tmp_path / "t.csv"
    table.write_text(
        "file, class, boxes, mask\n"
        "photos/a.png, zebra, 0 0 2 2; 1 0 3 1.5, one.png\n"
        "photos/b.png, n01440764,, white.png\n"
        'photos/c.png, 7, "1,1,2,2"\n'
        "photos/d.png\n"
        "photos/a.png, 386\n"
    )
    data = read(f"csv:{table}")
    names = ["photos/a.png", "photos/b.png", "photos/c.png", "photos/d.png", "photos/a.png#2"]
    assert [item.name for item in data] == names
    assert [item.label for item in data] == [340, 0, 7, None, 386]
    assert [item.boxes for item in data] == [((0, 0, 2, 2), (1, 0, 3, 1.5)), None, ((1, 1, 2, 2),), None, None]
    assert data[0].mask().tolist() == [[0, 1, -1], [0, 1, 1]]
    assert data[1].mask().tolist() == [[0, 1, 1], [0, 0, 0]]
    assert data[2].mask() is None
    assert data.classes == classes.imagenet_names()
    assert data[0].picture() == tmp_path / "photos/a.png"


def test_a_table_that_names_a_picture_twice_says_what_it_shows(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        picture(tmp_path / name)
    (tmp_path / "t.csv").write_text("file,class\na.png,3\na.png,7\nb.png,5\na.png,7\nc.png,\n")
    data = read(f"csv:{tmp_path / 't.csv'}")
    assert [item.present for item in data] == [((7,),), ((3,),), (), ((3,),), ()]
    told = Chunk(load("demo"), data[:4], "label")
    assert told.target([0, 1, 2]).rivals.tolist() == [[7], [3], [-1]]
    assert told.target([2]).rivals.tolist() == [[]], "the same, whatever else is asked"
    (tmp_path / "t.csv").write_text("file,class\na.png,3\nb.png,5\n")
    assert [item.present for item in read(f"csv:{tmp_path / 't.csv'}")] == [None, None], "nothing is said"


def test_numbers_alone_may_be_any_models(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("file,class\na.png,12345\n")
    data = read(f"csv:{tmp_path / 't.csv'}")
    assert (data[0].label, data.classes) == (12345, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,class\na.png,3\n", "has no column file; .* but it is name, class"),
        ("", "has no column file; .* but it is empty"),
        ("file,class\n", "has no rows"),
        ("file\nb.png\n", "line 2: there is no file .*b.png; paths are relative"),
        ("file,class\na.png,zebre\n", "line 2: ImageNet has no class 'zebre'; did you mean 'zebra'"),
        ("file,class\na.png,maillot\n", "'maillot' is the name of the classes 638 and 639; give the number"),
        ("file,boxes\na.png,1 2 3\n", "a box must be four numbers, .* but '1 2 3'"),
        ("file,class\n,3\n", "the column file is empty"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, text: str, said: str) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        dataset(f"csv:{tmp_path / 't.csv'}")


def test_a_mask_that_is_none(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    painted(tmp_path / "m.png", [[0, 7]])
    (tmp_path / "t.csv").write_text("file,mask\na.png,m.png\na.png,t.csv\n")
    data = read(f"csv:{tmp_path / 't.csv'}")
    with pytest.raises(InputError, match=r"m.png must have one channel of 1 .* holds 0, 7"):
        data[0].mask()
    with pytest.raises(InputError, match=r"the mask .*t.csv cannot be read"):
        data[1].mask()


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("kind", ["imagenet", "imagenet-s", "coco", "pets", "voc", "folder"])
def test_folders_that_cannot_be(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match=f"there is no folder {tmp_path}/none; write the folder behind the colon"):
        dataset(f"{kind}:{tmp_path}/none")
    with pytest.raises(InputError, match=f"{kind}: no folder was given"):
        dataset(kind)
    with pytest.raises(InputError, match=rf"^{kind}:.*(there is no|must hold)"):
        dataset(f"{kind}:{tmp_path}")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("imagnet:/x", r"no kind of dataset 'imagnet'; did you mean imagenet"),
        ("zzz", "no kind of dataset 'zzz'; there are imagenet, "),
        ("t.csv", r"the kind of dataset is missing before t.csv; did you mean csv:t.csv\?"),
        ("csv:t.csv", "there is no file t.csv"),
        ("assets:pet", r"there is no asset 'pet'; did you mean assets:pets\?"),
    ],
)
def test_specs_that_cannot_be(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        dataset(spec)


def test_a_path_alone_is_no_spec(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"did you mean folder:{tmp_path}"):
        dataset(str(tmp_path))


def test_the_fingerprint_sees_what_changed(tmp_path: Path) -> None:
    for name in "ab":
        picture(tmp_path / "x" / f"{name}.png")
    table = tmp_path / "x" / "t.csv"
    table.write_text("file,class\na.png,1\nb.png,2\n")

    def now(folder: str = "x") -> str:
        return dataset(f"csv:{tmp_path / folder / 't.csv'}").fingerprint()

    seen = [now()]
    assert now() == seen[0]
    table.write_text("file,class\na.png,1\nb.png,3\n")
    seen.append(now())
    table.write_text("file,class,boxes\na.png,1,0 0 1 1\nb.png,3,\n")
    seen.append(now())
    picture(tmp_path / "x" / "a.png", (90, 90))
    seen.append(now())
    assert len(set(seen)) == 4
    (tmp_path / "x").rename(tmp_path / "y")
    assert now("y") == seen[-1]  # another place, the same data


def test_every_kind_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"| `{kind}" not in page] == []
    for name in classes.COCO:
        assert name in page


# ---------------------------------------------------------------------------------------------------------- real images


def test_assets_need_their_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VITRAIL_ASSETS", raising=False)
    with pytest.raises(
        InputError, match="set the environment variable VITRAIL_ASSETS to the folder that holds data/pe"
    ):
        dataset("assets:pets")
    monkeypatch.setenv("VITRAIL_ASSETS", str(tmp_path))
    with pytest.raises(InputError, match=r"but there is no folder .*pets/images"):
        dataset("assets:pets")


@pytest.mark.parametrize(
    ("name", "count"), [("imagenet_val", 2000), ("imagenet_train", 992), ("pets", 960), ("coco128", 185)]
)
def test_assets(assets: Path, name: str, count: int) -> None:
    data = read(f"assets:{name}")
    assert len(data) == count
    assert all(item.accepted for item in data)
    assert all((item.present is not None) == (name == "coco128") for item in data)
    assert all((item.boxes is not None) == (name == "imagenet_val") for item in data)
    for item in data.limit(24):
        width, height = pictures.read(item.picture()).size
        for x0, y0, x1, y1 in item.boxes or ():
            assert 0 <= x0 < x1 <= width
            assert 0 <= y0 < y1 <= height
        mask = item.mask()
        assert (mask is not None) == (name in ("pets", "coco128"))
        if mask is not None:
            assert mask.shape == (height, width)
            assert mask.dtype == np.int8
            assert (mask == 1).any()
            assert (mask == 0).any()
            assert (mask == -1).any() == (name == "pets")


@pytest.fixture(scope="module")
def view(assets: Path) -> View:
    return load("timm/deit_tiny_patch16_224", assets / "weights/deit_tiny_patch16_224.safetensors")


@pytest.mark.parametrize("name", ["imagenet_val", "pets", "coco128"])
def test_the_labels_are_the_models(view: View, name: str) -> None:
    data = dataset(f"assets:{name}")
    assert data.classes == view.classes
    if name == "coco128":  # most of its objects are small: look at the large ones
        large = [item for item in data.limit(90) if (item.mask() == 1).mean() > 0.3]
        data = Dataset(data.spec, tuple(large), data.classes)
    data = data.limit(40)
    with torch.no_grad():
        logits = view.model(view.preprocess.batch([item.picture() for item in data]))
    right = np.mean([int(row.argmax()) in item.accepted for row, item in zip(logits, data)])
    assert right > (0.4 if name == "coco128" else 0.6), right
    assert all(item.best(row) in item.accepted for row, item in zip(logits, data))
