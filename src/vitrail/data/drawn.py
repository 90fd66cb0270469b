"""Scenes: pictures drawn when they are asked for."""

import difflib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from vitrail import scenes
from vitrail.data.items import Dataset, Item, Mask
from vitrail.errors import InputError

COUNT = 1000
"""How many scenes there are where no number is given."""

SHORTCUTS = ("never", "always", "class")

MASKS = ("object", "part", "circle")

OWN_PART = {
    name: part
    for pair in scenes.PAIRS
    for name, part in ((pair.first, pair.part_first), (pair.second, pair.part_second))
}
"""Of each class, the part that tells it from its sibling. Both have one: a rabbit's ears are not a cat's."""


@dataclass(frozen=True)
class Drawn:
    """A scene that is not drawn yet."""

    seed: tuple[int, int]
    labels: tuple[int, ...]
    circle: bool = False

    def open(self) -> Image.Image:
        """The picture."""
        return _scene(self).pil

    def stamp(self) -> str:
        """All that the scene depends on."""
        return repr((self.seed, self.labels, self.circle))


@dataclass(frozen=True)
class DrawnRegion:
    """The mask of a scene that is not drawn yet.

    Attributes:
        drawn: The scene.
        shows: The first ``object``, the ``part`` that tells it from its sibling, or the white ``circle``.
    """

    drawn: Drawn
    shows: str = "object"

    def read(self) -> Mask:
        """(H, W) int8: 1 on what is asked for, as far as it is seen."""
        scene = _scene(self.drawn)
        first = scene.objects[0]
        found = first.mask
        if self.shows == "part":
            found = first.parts[OWN_PART[first.name]]
        elif self.shows == "circle":
            assert scene.shortcut_mask is not None
            found = scene.shortcut_mask
        return found.astype(np.int8)

    def stamp(self) -> str:
        """All that the mask depends on; of an object as ever, so that results stored before are still found."""
        return self.drawn.stamp() + ("" if self.shows == "object" else f" {self.shows}")


@lru_cache(maxsize=32)  # a picture and its mask are asked for one after the other
def _scene(drawn: Drawn) -> scenes.Scene:
    return scenes.make(drawn.seed, objects=len(drawn.labels), classes=drawn.labels, shortcut=drawn.circle)


def scene_items(argument: str, spec: str) -> Dataset:
    """``scenes``, ``scenes:COUNT`` or ``scenes:COUNT,objects=2,seed=1,shortcut=class,mask=part``.

    Every class comes first once in each 14 scenes, in an order of chance. So the label is known before the scene is
    drawn. A scene without circle has no mask of the circle.
    """
    options = {"count": str(COUNT), "objects": "1", "seed": "0", "shortcut": "never", "mask": "object"}
    for i, part in enumerate(filter(None, (part.strip() for part in argument.split(",")))):
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals and i == 0:
            key, value = "count", key
        if key not in options or not value:
            near = difflib.get_close_matches(key, options, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(options)}"
            raise InputError(f"{spec}: scenes have no option {part!r}; {hint}; for example scenes:500,objects=2")
        options[key] = value
    count, objects, seed = (_number(options[key], key, spec) for key in ("count", "objects", "seed"))
    if count < 1 or objects not in (1, 2) or options["shortcut"] not in SHORTCUTS:
        raise InputError(
            f"{spec}: give 1 scene or more, 1 or 2 objects, and shortcut={' or '.join(SHORTCUTS)}; "
            f"count={count}, objects={objects}, shortcut={options['shortcut']} was given"
        )
    if options["mask"] not in MASKS:
        raise InputError(f"{spec}: mask must be {' or '.join(MASKS)}, but {options['mask']!r} was given")
    if options["mask"] == "circle" and options["shortcut"] == "never":
        raise InputError(f"{spec}: no scene has a circle to mask; add shortcut=always or shortcut=class")
    items = []
    for i in range(count):
        block, place = divmod(i, len(scenes.CLASSES))
        order = np.random.default_rng((seed, block)).permutation(len(scenes.CLASSES))
        labels = tuple(int(order[(place + slot) % len(order)]) for slot in range(objects))
        marked = options["shortcut"] == "class" and labels[0] == scenes.SHORTCUT_CLASS
        circle = marked or options["shortcut"] == "always"
        drawn = Drawn((seed, i), labels, circle)
        others = tuple((label,) for label in labels[1:])
        region = DrawnRegion(drawn, options["mask"]) if circle or options["mask"] != "circle" else None
        items.append(Item(f"scene {i}", drawn, labels[0], region=region, present=others))
    return Dataset(spec, tuple(items), tuple(scenes.CLASSES))


def _number(text: str, key: str, spec: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{spec}: {key} must be a whole number, but {text!r} was given; for example scenes:500")
    return int(text)
