"""The embedded model of drawn scenes, and its twin that learned a shortcut."""

from vitrail.errors import InputError
from vitrail.model.inputs import Preprocess
from vitrail.model.sources.source import SOURCES, Asked, Found, Source


def build(asked: Asked) -> Found:
    """``demo`` or ``demo/shortcut``."""
    from vitrail import scenes

    if asked.name not in ("", "shortcut"):
        raise InputError(f"there is no demo model called {asked.name!r}; give demo or demo/shortcut")
    module = scenes.classifier(shortcut=asked.name == "shortcut")
    preprocess = Preprocess((scenes.SIZE, scenes.SIZE), scenes.MEAN, scenes.STD, 1.0, "bilinear")
    return Found(module, "demo/shortcut" if asked.name else "demo", preprocess, scenes.CLASSES)


SOURCES.enter("demo", Source("demo", build))
