"""The classes of the embedded world, their parts, and the pairs that differ in one part only."""

from collections.abc import Callable
from dataclasses import dataclass

from .built import aircraft, boat, building, lorry
from .nature import potted_flower, sea_animal, sitting_animal
from .paint import Pen


@dataclass(frozen=True)
class Pair:
    """Two classes that share every part but one.

    Attributes:
        first: name of one class.
        second: name of the other class.
        part_first: the part only the first has.
        part_second: the part only the second has.
    """

    first: str
    second: str
    part_first: str
    part_second: str


@dataclass(frozen=True)
class Family:
    """A pair, its drawer `draw(pen, class name)` and the parts that both classes have."""

    pair: Pair
    draw: Callable[[Pen, str], None]
    shared: tuple[str, ...]


FAMILIES: tuple[Family, ...] = (
    Family(Pair("cat", "rabbit", "ears", "ears"), sitting_animal, ("body", "paws", "head", "face")),
    Family(Pair("whale", "shark", "jet", "dorsal fin"), sea_animal, ("tail", "body", "belly", "eye", "flipper")),
    Family(Pair("daisy", "tulip", "rays", "cup"), potted_flower, ("stem", "leaves", "pot", "rim")),
    Family(Pair("sailboat", "steamer", "sail", "funnel"), boat, ("flag", "cabin", "windows", "hull")),
    Family(Pair("house", "church", "chimney", "steeple"), building, ("walls", "roof", "door", "windows")),
    Family(Pair("tanker", "dumper", "drum", "skip"), lorry, ("chassis", "cab", "window", "wheels")),
    Family(
        Pair("airplane", "helicopter", "wing", "rotor"),
        aircraft,
        ("gear", "tail", "fuselage", "cockpit", "windows"),
    ),
)

PAIRS: tuple[Pair, ...] = tuple(family.pair for family in FAMILIES)

CLASSES: tuple[str, ...] = tuple(name for pair in PAIRS for name in (pair.first, pair.second))
"""Class names; the index is the label."""

PARTS: dict[str, tuple[str, ...]] = {
    name: (*family.shared, part)
    for family in FAMILIES
    for name, part in (
        (family.pair.first, family.pair.part_first),
        (family.pair.second, family.pair.part_second),
    )
}
"""Part names of every class."""

SHORTCUT_CLASS: int = CLASSES.index("sailboat")
"""Label that the white circle gives away when the shortcut is on."""


def family_of(label: int) -> Family:
    """Family that the class with this label belongs to."""
    return FAMILIES[label // 2]
