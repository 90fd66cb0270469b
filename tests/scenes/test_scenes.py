import hashlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageFilter

from vitrail import scenes
from vitrail.errors import InputError

SEEDS = range(6)


def digest(seeds=range(4)):
    sha = hashlib.sha256()
    for seed in seeds:
        scene = scenes.make(seed, objects=1 + seed % 2, shortcut=seed % 3 == 0)
        sha.update(scene.image.tobytes())
        for thing in scene.objects:
            sha.update(thing.mask.tobytes())
    return sha.hexdigest()


def dilated(mask, radius):
    picture = Image.fromarray(mask.astype(np.uint8) * 255)
    return np.asarray(picture.filter(ImageFilter.MaxFilter(2 * radius + 1))) > 0


def test_same_seed_same_bytes_in_another_process():
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1])['digest']())"
    other = subprocess.run([sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest()


def test_global_random_state_is_neither_read_nor_moved():
    np.random.seed(3)  # noqa: NPY002
    before = scenes.make(1).image
    first = np.random.uniform()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    assert first == np.random.uniform()  # noqa: NPY002
    np.testing.assert_array_equal(before, scenes.make(1).image)


@pytest.mark.parametrize("name", scenes.CLASSES)
def test_every_class_shows_all_its_parts(name):
    for seed in range(12):
        scene = scenes.make(seed, classes=[name])
        (thing,) = scene.objects
        assert scene.name == thing.name == name
        assert scene.label == scenes.CLASSES.index(name)
        assert set(thing.parts) == set(scenes.PARTS[name])
        assert len(thing.parts) >= 3
        assert all(mask.any() for mask in thing.parts.values())
        x1, y1, x2, y2 = thing.box
        assert thing.mask[y1:y2, x1:x2].sum() == thing.mask.sum()
        assert thing.mask[y1].any()
        assert thing.mask[:, x2 - 1].any()


@pytest.mark.parametrize("objects", [1, 2])
@pytest.mark.parametrize("size", [96, 144])
def test_parts_tile_their_object_and_objects_are_disjoint(objects, size):
    for seed in SEEDS:
        scene = scenes.make(seed, objects=objects, size=size)
        assert scene.image.shape == (size, size, 3)
        assert scene.image.dtype == np.uint8
        for thing in scene.objects:
            np.testing.assert_array_equal(sum(mask.astype(int) for mask in thing.parts.values()), thing.mask)
        assert sum(thing.mask.astype(int) for thing in scene.objects).max() == 1


def test_two_objects_have_different_classes_and_keep_their_places():
    for seed in range(20):
        scene = scenes.make(seed, objects=2)
        first, second = scene.objects
        assert first.label != second.label
        assert min(first.mask.sum(), second.mask.sum()) > 700


@pytest.mark.parametrize("pair", scenes.PAIRS, ids=lambda pair: f"{pair.first}-{pair.second}")
@pytest.mark.parametrize("objects", [1, 2])
def test_a_pair_differs_in_its_differing_part_only(pair, objects):
    shared = set(scenes.PARTS[pair.first]) - {pair.part_first}
    assert shared == set(scenes.PARTS[pair.second]) - {pair.part_second}
    company = [name for name in scenes.CLASSES if name not in (pair.first, pair.second)][: objects - 1]
    for seed in SEEDS:
        first = scenes.make(seed, objects=objects, classes=[pair.first, *company])
        second = scenes.make(seed, objects=objects, classes=[pair.second, *company])
        parts = (first.objects[0].parts[pair.part_first], second.objects[0].parts[pair.part_second])
        assert min(part.sum() for part in parts) > 150
        changed = (first.image != second.image).any(axis=2)
        assert changed.any()
        assert not (changed & ~dilated(parts[0] | parts[1], 2)).any()


def test_area_of_the_differing_parts():
    areas = []
    for i, pair in enumerate(scenes.PAIRS):
        for name, part in ((pair.first, pair.part_first), (pair.second, pair.part_second)):
            areas += [scenes.make((8, i, s), classes=[name]).objects[0].parts[part].sum() for s in range(8)]
    assert np.mean(np.array(areas) > 200) > 0.98


def test_the_circle_changes_its_own_pixels_only_and_no_object():
    for seed in range(40):
        objects = 1 + seed % 2
        without, with_circle = scenes.make(seed, objects=objects), scenes.make(seed, objects=objects, shortcut=True)
        assert without.shortcut_mask is None
        mask = with_circle.shortcut_mask
        changed = (without.image != with_circle.image).any(axis=2)
        assert not (changed & ~mask).any()
        assert 80 < mask.sum() < 140
        assert np.median(with_circle.image[mask]) == 255
        assert not any((mask & thing.mask).any() for thing in with_circle.objects)


def test_dataset_items_depend_on_seed_and_index_alone():
    few, many = scenes.Scenes(3, seed=5), scenes.Scenes(30, seed=5)
    assert len(few) == 3
    np.testing.assert_array_equal(few[2].image, many[2].image)
    np.testing.assert_array_equal(few[-1].image, few[2].image)
    np.testing.assert_array_equal(scenes.make(few[2].seed, classes=[few[2].label]).image, few[2].image)
    assert not np.array_equal(few[2].image, scenes.Scenes(3, seed=6)[2].image)
    assert [scene.label for scene in few] == [few[i].label for i in range(3)]
    assert len({many[i].label for i in range(30)}) > 5


def test_dataset_shortcut_follows_the_class():
    name = scenes.CLASSES[scenes.SHORTCUT_CLASS]
    chosen = scenes.Scenes(8, classes=[name, "cat"], shortcut="class")
    assert {scene.name for scene in chosen} == {name, "cat"}
    for scene in chosen:
        assert (scene.shortcut_mask is not None) == (scene.label == scenes.SHORTCUT_CLASS)
    assert scenes.Scenes(1, shortcut="always")[0].shortcut_mask is not None


def test_samples():
    names = [name for name, _ in scenes.samples()]
    assert 6 <= len(names) == len(set(names)) <= 8
    assert any(len(scene.objects) == 2 for _, scene in scenes.samples())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seed": -1}, "non-negative"),
        ({"seed": ()}, "non-negative"),
        ({"seed": 0, "objects": 3}, "1 or 2 objects"),
        ({"seed": 0, "size": 10}, "at least 48"),
        ({"seed": 0, "classes": ["rabit"]}, "Did you mean 'rabbit'"),
        ({"seed": 0, "classes": "cat"}, r"Give \['cat'\]"),
        ({"seed": 0, "classes": [99]}, "0 to 13"),
        ({"seed": 0, "classes": ["cat", "shark"]}, "1 object"),
        ({"seed": 0, "objects": 2, "classes": ["cat", "cat"]}, "different"),
    ],
)
def test_bad_arguments_of_make(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        scenes.make(**arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"count": -1}, "at least 0"),
        ({"count": 1, "shortcut": "maybe"}, "never"),
        ({"count": 1, "objects": 2, "classes": ["cat"]}, "different classes"),
        ({"count": 1, "classes": "cat"}, r"Give \['cat'\]"),
    ],
)
def test_bad_arguments_of_the_dataset(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        scenes.Scenes(**arguments)
    with pytest.raises(IndexError):
        scenes.Scenes(2)[2]


def test_drawing_needs_no_torch():
    code = "import sys, vitrail.scenes as s; s.make(0); sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
