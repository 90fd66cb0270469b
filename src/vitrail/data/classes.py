"""Which class of ImageNet something is: by number, WordNet id or name, and for the classes of other datasets."""

import difflib
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from vitrail.errors import InputError


@lru_cache(maxsize=1)
def wordnet_ids() -> dict[str, int]:
    """The 1,000 WordNet ids of ImageNet with their class numbers."""
    from timm.data import ImageNetInfo  # takes seconds, and scenes need none of it

    return {name: i for i, name in enumerate(ImageNetInfo().label_names())}


@lru_cache(maxsize=1)
def imagenet_names() -> tuple[str, ...]:
    """The names of ImageNet's classes as the models of timm have them, synonyms separated by commas."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return tuple(info.index_to_description(i) for i in range(1000))


@lru_cache(maxsize=1)
def _by_name() -> dict[str, tuple[int, ...]]:
    found = defaultdict(list)
    for i, names in enumerate(imagenet_names()):
        for name in {names, *names.split(",")}:
            found[_plain(name)].append(i)
    return {name: tuple(classes) for name, classes in found.items()}


def _plain(name: str) -> str:
    return name.replace("_", " ").strip().casefold()


def class_index(given: str, where: str) -> int:
    """The class that a table names: a number, or a WordNet id or name of ImageNet.

    Args:
        given: What the table says.
        where: What to call the place in an error message.

    Example:
        >>> class_index("zebra", "row 1"), class_index("n02391049", "row 1"), class_index("340", "row 1")
        (340, 340, 340)
    """
    text = given.strip()
    if text.isdecimal():
        return int(text)
    if text in wordnet_ids():
        return wordnet_ids()[text]
    found = _by_name().get(_plain(text), ())
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{where}: {text!r} is the name of the classes {' and '.join(map(str, found))}; give the number"
        )
    near = difflib.get_close_matches(_plain(text), _by_name(), n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "give the class number"
    raise InputError(f"{where}: ImageNet has no class {text!r}; {hint}")


def _listed(names: str) -> tuple[str, ...]:
    return tuple(names.split(","))


# Classes of other datasets -> classes of ImageNet. An ImageNet class stands here only if everything it shows would be
# called so in the other dataset, and a class of the other dataset only if the ImageNet classes beside it are most of
# what it shows. So `bear` is here, and `chair` is not: few chairs are barber chairs, folding chairs or thrones.

_BIRDS = (*range(7, 25), *range(80, 101), *range(127, 147))
_CATS = tuple(range(281, 286))
_DOGS = tuple(range(151, 269))
_BOATS = (472, 484, 554, 625, 780, 814, 871, 914)  # canoe, catamaran, fireboat, lifeboat, schooner, ..., yawl
_BOTTLES = (440, 720, 737, 898, 907)  # beer, pill, pop, water, wine
_BUSES = (654, 779, 874)  # minibus, school bus, trolleybus
_CARS = (436, 468, 511, 609, 627, 656, 661, 717, 751, 817)  # station wagon, cab, ..., minivan, ..., pickup, sports car
_PLANES = (404, 895)  # airliner, warplane
_BICYCLES = (444, 671)  # tandem, mountain bike
_TRAINS = (466, 547, 820)  # bullet train, electric and steam locomotive
_SCREENS = (664, 782, 851)  # monitor, screen, television

COCO: dict[str, tuple[int, ...]] = {
    "bicycle": _BICYCLES,
    "car": tuple(i for i in _CARS if i != 717),  # COCO calls a pickup a truck
    "airplane": _PLANES,
    "bus": _BUSES,
    "train": _TRAINS,
    "truck": (555, 569, 717, 864, 867),  # fire engine, garbage truck, pickup, tow truck, trailer truck
    "boat": _BOATS,
    "traffic light": (920,),
    "parking meter": (704,),
    "bench": (703,),  # park bench
    "bird": _BIRDS,
    "cat": _CATS,
    "dog": _DOGS,
    "horse": (339,),  # sorrel, the one horse of ImageNet
    "elephant": (386, 385, 101),  # African, Indian, tusker
    "bear": (294, 295, 296, 297),
    "zebra": (340,),
    "backpack": (414,),
    "umbrella": (879,),
    "handbag": (748,),  # purse
    "tie": (906, 457, 451),  # Windsor tie, bow tie, bolo tie
    "skis": (795,),
    "sports ball": (429, 430, 522, 574, 722, 768, 805, 852, 890),
    "tennis racket": (752,),
    "bottle": _BOTTLES,
    "cup": (968, 504),  # cup, coffee mug
    "banana": (954,),
    "orange": (950,),
    "broccoli": (937,),
    "hot dog": (934,),
    "pizza": (963,),
    "couch": (831,),  # studio couch
    "dining table": (532,),
    "tv": _SCREENS,
    "laptop": (620, 681),  # laptop, notebook
    "mouse": (673,),
    "remote": (761,),
    "keyboard": (508,),
    "cell phone": (487,),
    "microwave": (651,),
    "toaster": (859,),
    "refrigerator": (760,),
    "clock": (409, 530, 892),  # analog, digital, wall
    "vase": (883,),
    "teddy bear": (850,),
    "hair drier": (589,),
}
"""COCO's name -> the ImageNet classes that mean the same."""

VOC: dict[str, tuple[int, ...]] = {
    "aeroplane": _PLANES,
    "bicycle": _BICYCLES,
    "bird": _BIRDS,
    "boat": _BOATS,
    "bottle": _BOTTLES,
    "bus": _BUSES,
    "car": _CARS,
    "cat": _CATS,
    "diningtable": (532,),
    "dog": _DOGS,
    "horse": (339,),
    "sofa": (831,),
    "train": _TRAINS,
    "tvmonitor": _SCREENS,
}
"""PASCAL VOC's name -> the ImageNet classes that mean the same."""

VOC_NAMES = _listed(
    "aeroplane,bicycle,bird,boat,bottle,bus,car,cat,chair,cow,diningtable,dog,horse,motorbike,person,pottedplant,sheep,"
    "sofa,train,tvmonitor"
)
"""PASCAL VOC's classes; the first is number 1 in its masks."""

PETS: dict[str, int] = {
    "chihuahua": 151,
    "japanese_chin": 152,
    "basset_hound": 161,
    "beagle": 162,
    "staffordshire_bull_terrier": 179,
    "yorkshire_terrier": 187,
    "scottish_terrier": 199,
    "wheaten_terrier": 202,
    "german_shorthaired": 210,
    "english_setter": 212,
    "english_cocker_spaniel": 219,
    "miniature_pinscher": 237,
    "boxer": 242,
    "saint_bernard": 247,
    "pug": 254,
    "leonberger": 255,
    "newfoundland": 256,
    "great_pyrenees": 257,
    "samoyed": 258,
    "pomeranian": 259,
    "keeshond": 261,
    "Persian": 283,
    "Siamese": 284,
    "Egyptian_Mau": 285,
}
"""The breeds of Oxford-IIIT Pet that are ImageNet classes; the other 13 are none."""

COCO80 = _listed(
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,parking meter,"
    "bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,frisbee,"
    "skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,"
    "cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
)
"""COCO's 80 classes in the order of its category ids, which files with YOLO's labels count by."""


def others(name: str, shown: Iterable[str], table: dict[str, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The ImageNet classes of each other thing that a picture shows, where the table knows it.

    Example:
        >>> others("dog", ["person", "zebra", "dog"], COCO)
        ((340,),)
    """
    found = set(shown) - {name}
    return tuple(classes for other, classes in table.items() if other in found)


def meaning(classes: tuple[int, ...]) -> tuple[int | None, tuple[int, ...]]:
    """Label and accepted classes: no label where the other dataset does not say which of several it is."""
    return (classes[0] if len(classes) == 1 else None), classes
