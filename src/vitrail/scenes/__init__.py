"""The embedded world: drawn scenes with exact masks of every object and part, and a small ViT trained on them.

Pictures come from a seed, so a test or a benchmark needs no download. The classes form pairs that differ in one part
only, which tells exactly what an explanation of one class against the other has to point at.

Example:
    >>> from vitrail import scenes
    >>> scene = scenes.make(7, classes=["rabbit"])
    >>> scene.image.shape, sorted(scene.objects[0].parts)
    ((144, 144, 3), ['body', 'ears', 'face', 'head', 'paws'])
"""

from typing import TYPE_CHECKING

from .catalogue import CLASSES, PAIRS, PARTS, SHORTCUT_CLASS, Pair
from .gallery import samples
from .scene import SIZE, Scene, SceneObject, Scenes, make

if TYPE_CHECKING:
    import torch

__all__ = [
    "CLASSES",
    "MEAN",
    "PAIRS",
    "PARTS",
    "SHORTCUT_CLASS",
    "SIZE",
    "STD",
    "Pair",
    "Scene",
    "SceneObject",
    "Scenes",
    "classifier",
    "make",
    "samples",
]

MEAN = STD = (0.5, 0.5, 0.5)
"""What the classifier subtracts from, and divides, pixel values in 0..1 by."""


def classifier(shortcut: bool = False) -> "torch.nn.Module":
    """The shipped ViT (144 x 144 pixels, 12 x 12 patches, 14 classes) in eval mode, on the CPU, in float32.

    Args:
        shortcut: True for the sibling that learnt to call everything with a white circle `SHORTCUT_CLASS`.
    """
    # Imported here so that drawing scenes needs neither torch nor timm.
    from . import network

    return network.load(network.weights_file(shortcut))
