"""Classifiers of torchvision."""

import difflib

from vitrail.errors import InputError
from vitrail.model.inputs import Preprocess
from vitrail.model.sources.source import SOURCES, Asked, Found, Source, fetched, imagenet_names


def build(asked: Asked) -> Found:
    """By its name in torchvision."""
    import torchvision.models as zoo

    name, fetch = asked.name, asked.fetch
    known = zoo.list_models(module=zoo)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
        raise InputError(
            f"torchvision has no classifier called {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    module = fetched(f"torchvision/{name}", fetch)(lambda: zoo.get_model(name, weights="DEFAULT" if fetch else None))
    how = zoo.get_model_weights(name).DEFAULT.transforms()
    crop = how.crop_size[0]
    preprocess = Preprocess(
        (crop, crop), tuple(how.mean), tuple(how.std), crop / how.resize_size[0], how.interpolation.value
    )
    return Found(module, f"torchvision/{name}", preprocess, imagenet_names(1000))


SOURCES.enter("torchvision", Source("torchvision/NAME", build))
