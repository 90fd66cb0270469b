"""Models of timm."""

import difflib
from typing import Any

from vitrail.errors import InputError
from vitrail.model.sources.source import SOURCES, Asked, Found, Source, facts, fetched


def build(asked: Asked) -> Found:
    """By its name in timm, with or without that of its weights behind a dot."""
    import timm

    name, fetch, weights, size = asked.name, asked.fetch, asked.weights, asked.size
    plain = name.partition(".")[0]
    if not name.startswith("hf-hub:") and not timm.is_model(plain):
        near = difflib.get_close_matches(plain, timm.list_models(), n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "timm has no name like it"
        raise InputError(f"timm has no model called {name!r}; {hint}")
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # the part behind the dot
        raise InputError(f"timm has no weights called {name!r}; see timm.list_pretrained('{plain}*')") from error
    options: dict[str, Any] = {}
    if weights is not None:
        head = config.classifier if config else None
        weight = weights.get(f"{head[0] if isinstance(head, tuple) else head}.weight")
        if weight is not None and weight.ndim in (2, 4):
            options["num_classes"] = weight.shape[0]  # a fine-tuned head has its own number of classes
    if size is not None:
        options["img_size"] = size
    made = fetched(f"timm/{name}", fetch)
    try:
        module = made(lambda: timm.create_model(name, pretrained=fetch, **options))
    except TypeError:  # convolutional models take any size and no img_size
        options.pop("img_size", None)
        module = made(lambda: timm.create_model(name, pretrained=fetch, **options))
    return Found(module, f"timm/{name}", *facts(module))


SOURCES.enter("timm", Source("timm/NAME", build))
