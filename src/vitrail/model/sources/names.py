"""Names, files and modules -> `View`: each library and each kind of file is a source, in a file of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, option
from vitrail.model.anatomy.check import refuse_unmade
from vitrail.model.inputs import Preprocess
from vitrail.model.sources import demo, file, hf, open_clip, timm, torchvision  # noqa: F401
from vitrail.model.sources.answering import Answering
from vitrail.model.sources.checkpoint import load_weights, read_checkpoint
from vitrail.model.sources.open_clip import ZeroShot
from vitrail.model.sources.source import SOURCES, Asked, Found, facts, one_line, unwrapped
from vitrail.model.still import usual_device
from vitrail.model.view import View


@usual_device()
def load(
    model: str | nn.Module | View | Callable[[Tensor], Any],
    checkpoint: str | Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: str | torch.device | None = None,
    pretrained: bool = True,
) -> View:
    """One view over a classifier.

    Args:
        model: ``demo``, ``demo/shortcut``, ``timm/<name>`` (or the bare name), ``torchvision/<name>``,
            ``hf/<repository or folder>``, ``open_clip/<architecture>[:<weights>]``, ``<file>.py:<function>`` (which
            runs that file, and the function must return a module or a view), any module, or any function that
            answers (B, 3, H, W) inputs with (B, classes) logits.
        checkpoint: A file with the weights (safetensors, or one that torch loads with ``weights_only``).
        classes: Class names; for open_clip the text prompts to choose between.
        size: Input height and width, where the model's own is not wanted or not known.
        mean: Channel means of the input normalisation, where they are not known.
        std: Channel standard deviations likewise.
        device: Where to run, by default on the GPU if there is one.
        pretrained: Fetch the published weights when no checkpoint is given.

    Example:
        >>> load("timm/vit_tiny_patch16_224", pretrained=False).grid
        (14, 14)
    """
    if isinstance(model, View):
        return model
    if size is not None and min(size) < 1:
        raise InputError(f"{option('size')} must be 1 pixel or more high and wide, but {size[0]} x {size[1]} was given")
    weights = None if checkpoint is None else read_checkpoint(checkpoint)
    if isinstance(model, str):
        with torch.inference_mode(False):  # weights made in inference mode could never be held still
            module, name, preprocess, names = _by_name(Asked(model, weights, classes, size, pretrained))
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    elif isinstance(model, nn.Module):
        module = unwrapped(model)
        name = type(module).__name__
        preprocess, names = facts(module)
    elif callable(model) and not isinstance(model, type):
        module = Answering(model)
        name = getattr(model, "__name__", type(model).__name__)
        preprocess, names = facts(module)
    else:
        raise InputError(
            f"a model must be a name, a torch module, a view or a function, but a {type(model).__name__} was given"
        )
    if weights is not None:
        refuse_unmade(name, module)
    if weights is not None and isinstance(model, str) and isinstance(module, ZeroShot):
        clip, tokenizer = module._text  # the file holds both towers, and the prompts are read anew
        load_weights(clip, weights, str(checkpoint))
        module = ZeroShot(clip, tokenizer, names or ())
    elif weights is not None:
        load_weights(module, weights, str(checkpoint))
    if device is not None:
        with torch.inference_mode(False):
            module = module.to(usable(device))
    own = preprocess.size
    preprocess = replace(
        preprocess,
        mean=tuple(mean or preprocess.mean),
        std=tuple(std or preprocess.std),
    )
    if isinstance(model, str):
        module.eval()
    view = _viewed(module, name, replace(preprocess, size=size or own), own, classes or None)
    if not classes and names is not None and len(names) == view.num_classes:
        view.classes = tuple(names)
    return view


def _viewed(
    module: nn.Module, name: str, preprocess: Preprocess, own: tuple[int, int], classes: Sequence[str] | None
) -> View:
    """The view; where a size was asked for that the model does not take, a sentence with the one that it does."""
    try:
        return View(module, name=name, preprocess=preprocess, classes=classes)
    except InputError as error:
        if preprocess.size == own or error.__cause__ is None:
            raise
        try:
            View(module, name=name, preprocess=replace(preprocess, size=own))
        except InputError:
            raise error from error.__cause__
        raise InputError(
            f"{option('size', preprocess.size)} does not suit {name} ({one_line(error.__cause__)}); it takes "
            f"{own[0]} x {own[1]} pixels, its own size"
        ) from error.__cause__


def _by_name(asked: Asked) -> Found:
    name = asked.name
    family, slash, rest = name.partition("/")
    if ".py:" in name:
        return SOURCES["file"].build(asked)
    if name.endswith(".py"):
        raise InputError(
            f"{name} names no function; a model of your own is given as FILE.py:FUNCTION, such as {name}:model"
        )
    if name == "demo":
        return SOURCES["demo"].build(replace(asked, name=""))
    if not (rest if slash else name).strip():
        forms = [source.form for source in SOURCES.values()]
        raise InputError(
            f"the {option('model')} has no name ({name!r} was given); give {', '.join(forms[:-1])} or {forms[-1]}"
        )
    if slash and family != "file" and family in SOURCES:
        return SOURCES[family].build(replace(asked, name=rest))
    near = SOURCES.near(family) if slash and ":" not in family else []  # hf-hub:OWNER/NAME is a name of timm's
    if near:
        raise InputError(f"there is no source of models called {family!r}; did you mean {' or '.join(near)}?")
    return SOURCES["timm"].build(asked)


def usable(device: str | torch.device) -> torch.device:
    """A device by its name, once something could be put on it."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device {str(device)!r} cannot be used here ({str(error).splitlines()[0]})") from error
    if found.type == "meta":
        raise InputError("the device 'meta' holds no numbers, so no model can answer on it; give cpu or cuda")
    return found
