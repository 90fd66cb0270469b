"""Names, files and modules -> `View`: demo, timm, torchvision, Hugging Face, open_clip, a user's file, any module."""

import difflib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from vitrail.errors import InputError, option
from vitrail.model.anatomy.check import refuse_unmade
from vitrail.model.inputs import Preprocess
from vitrail.model.sources.answering import Answering
from vitrail.model.sources.checkpoint import load_weights, read_checkpoint
from vitrail.model.sources.packed import Packed
from vitrail.model.still import usual_device
from vitrail.model.view import View

HALF = (0.5, 0.5, 0.5)


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
            module, name, preprocess, names = _by_name(model, weights, classes, size, pretrained)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    elif isinstance(model, nn.Module):
        module = _unwrapped(model)
        name = type(module).__name__
        preprocess, names = _facts(module)
    elif callable(model) and not isinstance(model, type):
        module = Answering(model)
        name = getattr(model, "__name__", type(model).__name__)
        preprocess, names = _facts(module)
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
            f"{option('size', preprocess.size)} does not suit {name} ({_one_line(error.__cause__)}); it takes "
            f"{own[0]} x {own[1]} pixels, its own size"
        ) from error.__cause__


_Found = tuple[nn.Module, str, Preprocess, Sequence[str] | None]


def _by_name(
    name: str,
    weights: dict[str, Tensor] | None,
    classes: Sequence[str] | None,
    size: tuple[int, int] | None,
    pretrained: bool,
) -> _Found:
    fetch = pretrained and weights is None
    family, slash, rest = name.partition("/")
    if name in ("demo", "demo/shortcut"):
        return _demo(name)
    if ".py:" in name:
        return _own_file(name)
    if name.endswith(".py"):
        raise InputError(
            f"{name} names no function; a model of your own is given as FILE.py:FUNCTION, such as {name}:model"
        )
    if not (rest if slash else name).strip():
        raise InputError(
            f"the {option('model')} has no name ({name!r} was given); give demo, timm/NAME, torchvision/NAME, "
            "hf/REPOSITORY, open_clip/ARCHITECTURE or FILE.py:FUNCTION"
        )
    if slash and family == "torchvision":
        return _torchvision(rest, fetch)
    if slash and family == "hf":
        return _hugging_face(rest, weights is None)
    if slash and family == "open_clip":
        return _open_clip(rest, fetch, classes)
    return _timm(rest if slash and family == "timm" else name, fetch, weights, size)


def _demo(name: str) -> _Found:
    from vitrail import scenes

    module = scenes.classifier(shortcut=name.endswith("shortcut"))
    preprocess = Preprocess((scenes.SIZE, scenes.SIZE), scenes.MEAN, scenes.STD, 1.0, "bilinear")
    return module, name, preprocess, scenes.CLASSES


def _timm(name: str, fetch: bool, weights: dict[str, Tensor] | None, size: tuple[int, int] | None) -> _Found:
    import timm

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
    build = _fetched(f"timm/{name}", fetch)
    try:
        module = build(lambda: timm.create_model(name, pretrained=fetch, **options))
    except TypeError:  # convolutional models take any size and no img_size
        options.pop("img_size", None)
        module = build(lambda: timm.create_model(name, pretrained=fetch, **options))
    preprocess, names = _facts(module)
    return module, f"timm/{name}", preprocess, names


def _torchvision(name: str, fetch: bool) -> _Found:
    import torchvision.models as zoo

    known = zoo.list_models(module=zoo)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
        raise InputError(
            f"torchvision has no classifier called {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    module = _fetched(f"torchvision/{name}", fetch)(lambda: zoo.get_model(name, weights="DEFAULT" if fetch else None))
    how = zoo.get_model_weights(name).DEFAULT.transforms()
    crop = how.crop_size[0]
    preprocess = Preprocess(
        (crop, crop), tuple(how.mean), tuple(how.std), crop / how.resize_size[0], how.interpolation.value
    )
    return module, f"torchvision/{name}", preprocess, _imagenet_names(1000)


def _hugging_face(name: str, fetch: bool) -> _Found:
    transformers = _extra("transformers", "hf")
    build, auto = _fetched(f"hf/{name}", fetch=True), transformers.AutoModelForImageClassification
    if fetch:
        module = build(lambda: auto.from_pretrained(name))
    else:  # the weights come from a file; what the model looks like must be known all the same
        module = auto.from_config(build(lambda: transformers.AutoConfig.from_pretrained(name)))
    module = _unwrapped(module)
    preprocess, names = _facts(module)
    try:
        how = transformers.AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError):
        return module, f"hf/{name}", preprocess, names
    size = getattr(how, "crop_size", None) or how.size
    height, width = (size["height"], size["width"]) if "height" in size else (size["shortest_edge"],) * 2
    short = how.size.get("shortest_edge", height)
    preprocess = Preprocess(
        (height, width),
        tuple(how.image_mean),
        tuple(how.image_std),
        height / short,
        Image.Resampling(how.resample).name.lower(),
        squash="height" in how.size and not getattr(how, "do_center_crop", False),
    )
    return module, f"hf/{name}", preprocess, names


class ZeroShot(nn.Module):
    """An image tower that chooses between text prompts: logits are scaled cosines, as CLIP was trained with."""

    def __init__(self, clip: nn.Module, tokenizer: Callable[[list[str]], Tensor], prompts: Sequence[str]) -> None:
        super().__init__()
        self.visual = clip.visual
        self._text = (clip, tokenizer)  # in a tuple: the text tower is a tool here, not a part of the classifier
        device = next(clip.parameters()).device
        with torch.no_grad():
            rows = nn.functional.normalize(clip.encode_text(tokenizer(list(prompts)).to(device)), dim=-1)  # type: ignore[operator]
            self.classifier = nn.Linear(rows.shape[1], len(rows), bias=False)
            self.classifier.weight.copy_(rows * clip.logit_scale.exp())  # type: ignore[operator]
        self.classifier.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, prompts)."""
        found = self.visual(images)  # type: ignore[operator]
        logits: Tensor = self.classifier(
            nn.functional.normalize(found[0] if isinstance(found, tuple) else found, dim=-1)
        )
        return logits

    def with_prompts(self, prompts: Sequence[str]) -> "ZeroShot":
        """The same tower with more prompts to choose from, behind those it has."""
        clip, tokenizer = self._text
        more = ZeroShot(clip, tokenizer, prompts).to(self.classifier.weight)
        weight = torch.cat([self.classifier.weight, more.classifier.weight])
        more.classifier = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        more.classifier.weight = nn.Parameter(weight, requires_grad=False)
        return more


def _open_clip(name: str, fetch: bool, classes: Sequence[str] | None) -> _Found:
    open_clip = _extra("open_clip", "clip")
    architecture, _, tag = name.partition(":")
    if architecture not in open_clip.list_models():
        near = difflib.get_close_matches(architecture, open_clip.list_models(), n=2, cutoff=0.5)
        raise InputError(
            f"open_clip has no model called {architecture!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    if not classes:
        raise InputError(
            f"open_clip/{name} chooses between texts: say which, for example "
            + option("classes", ["a photo of a cat", "a photo of a dog"])
        )
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    tag = tag or ("openai" if "openai" in tags else tags[0] if tags else "")
    build = _fetched(f"open_clip/{name}", fetch)
    clip = build(lambda: open_clip.create_model(architecture, pretrained=(tag or None) if fetch else None))
    clip.eval()
    return zero_shot(clip, open_clip.get_tokenizer(architecture), classes, f"open_clip/{name}")


def zero_shot(clip: nn.Module, tokenizer: Callable[[list[str]], Tensor], prompts: Sequence[str], name: str) -> _Found:
    """An open_clip model the user has built already, as a classifier over prompts."""
    visual: Any = clip.visual
    size = visual.image_size if isinstance(visual.image_size, tuple) else (visual.image_size,) * 2
    mean = getattr(visual, "image_mean", None) or (0.48145466, 0.4578275, 0.40821073)
    std = getattr(visual, "image_std", None) or (0.26862954, 0.26130258, 0.27577711)
    return ZeroShot(clip, tokenizer, prompts), name, Preprocess(size, tuple(mean), tuple(std), 1.0), tuple(prompts)


def _own_file(name: str) -> _Found:
    """What a function in a user's file returns; called by the file without its folder, which differs by machine."""
    path, _, function = name.rpartition(":")
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise InputError(f"there is no file {path}; a model of your own is given as FILE.py:FUNCTION")
    try:
        build = getattr(_imported(file), function, None)
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"{path} cannot be imported: it raised {_said(error)}") from error
    if not callable(build):
        named = f"has no function called {function!r}" if function else "is given without a function"
        raise InputError(f"{path} {named}; a model of your own is given as FILE.py:FUNCTION")
    try:
        found = build()
    except Exception as error:
        raise InputError(f"{function}() in {path} raised {_said(error)}") from error
    called = f"{file.name}:{function}"
    if isinstance(found, View):
        return found.model, called, found.preprocess, found.classes
    if not isinstance(found, nn.Module):
        raise InputError(
            f"{function}() in {path} must return a torch module or what vitrail.load makes of one, "
            f"but it returned a {type(found).__name__}"
        )
    module = _unwrapped(found)
    return module, called, *_facts(module)


def _imported(file: Path) -> Any:
    """A user's file as a module, under a name of our own: it hides no other, and pickle and dataclasses find it."""
    private = "_vitrail" + re.sub(r"\W", "_", str(file))
    spec = importlib.util.spec_from_file_location(private, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[private] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[private]
        raise
    return module


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    return (str(error).strip() or "without a word").splitlines()[0][:160]


def _facts(module: nn.Module) -> tuple[Preprocess, Sequence[str] | None]:
    """What a module itself says about its input and its classes."""
    config = getattr(module, "pretrained_cfg", None)
    if config:  # timm
        names = config.get("label_names") or _imagenet_names(getattr(module, "num_classes", 0))
        size = getattr(getattr(module, "patch_embed", None), "img_size", None) or config["input_size"][1:]
        return (
            Preprocess(
                tuple(size), tuple(config["mean"]), tuple(config["std"]), config["crop_pct"], config["interpolation"]
            ),
            names,
        )
    config = getattr(module, "config", None)
    if config is not None and hasattr(config, "id2label"):  # Hugging Face
        side = getattr(config, "image_size", None) or getattr(module, "image_size", None) or 224
        size = (side, side) if isinstance(side, int) else tuple(side)
        imagenet = "dino" in config.model_type or config.model_type in ("swin", "resnet", "convnext")
        names = config.id2label and [str(config.id2label[i]) for i in range(config.num_labels)]  # some name none
        if imagenet:
            return Preprocess(size), names
        return Preprocess(size, HALF, HALF, 1.0, "bilinear", squash=True), names
    # torchvision's ViT and timm's patch embedding say it, most modules do not.
    side = getattr(module, "image_size", None) or getattr(getattr(module, "patch_embed", None), "img_size", None) or 224
    size = (side, side) if isinstance(side, int) else tuple(side)
    classes = next((m.out_features for m in reversed(list(module.modules())) if isinstance(m, nn.Linear)), 0)
    return Preprocess(size), _imagenet_names(classes)


def _imagenet_names(classes: int) -> tuple[str, ...] | None:
    if classes != 1000:
        return None
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return tuple(info.index_to_description(i) for i in range(1000))


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile's or DataParallel's wrapper, whose parts can be watched."""
    inner = getattr(model, "_orig_mod", None) or (
        model.module if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) else None
    )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("a TorchScript model hides its parts; give the Python module it was made from")
    if isinstance(inner, nn.Module):
        return _unwrapped(inner)
    return Packed(model) if Packed.suits(model) else model


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


def _extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this model needs {module}: pip install 'vitrail[{extra}]'") from error


def _fetched(name: str, fetch: bool) -> Callable[[Callable[[], Any]], Any]:
    """Run a builder, and turn a failed download into a sentence."""

    def run(build: Callable[[], Any]) -> Any:
        try:
            return build()
        except TypeError:
            raise
        except Exception as error:
            if not fetch:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
            raise InputError(
                f"the weights of {name} could not be fetched ({reason}); without a network, pass them as a file: "
                + option("checkpoint", "weights.safetensors")
            ) from error

    return run
