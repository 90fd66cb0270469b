"""What a source of models is: a function from a name to a module, in the registry; and what all of them need."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, option
from vitrail.model.inputs import Preprocess
from vitrail.model.sources.packed import Packed
from vitrail.model.view import View
from vitrail.registry import Registry

HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Asked:
    """What is asked of a source.

    Attributes:
        name: The model's name, without that of the source.
        weights: The tensors of a checkpoint, by name; loaded into the module later.
        classes: Class names, for models that choose between texts.
        size: Input height and width, where the model's own is not wanted.
        pretrained: Whether published weights are wanted where there is no checkpoint.
    """

    name: str
    weights: dict[str, Tensor] | None = None
    classes: Sequence[str] | None = None
    size: tuple[int, int] | None = None
    pretrained: bool = True

    @property
    def fetch(self) -> bool:
        """Whether published weights are to be fetched."""
        return self.pretrained and self.weights is None


class Found(NamedTuple):
    """A model as a source gives it.

    Attributes:
        module: The model.
        name: What it is called, such as ``timm/vit_tiny_patch16_224``.
        preprocess: What it takes.
        classes: The names of its classes, where they are known.
    """

    module: nn.Module
    name: str
    preprocess: Preprocess
    classes: Sequence[str] | None


@dataclass(frozen=True)
class Source:
    """Where models come from.

    Attributes:
        form: How a model of it is written, such as ``timm/NAME``.
        build: From what is asked to the model.
    """

    form: str
    build: Callable[[Asked], Found]


def _adopt(name: str, build: Callable[..., Any]) -> None:
    """Enter a plug-in's source: a function from a name, and whether weights are wanted, to a module or a view."""

    def built(asked: Asked) -> Found:
        called = f"{name}/{asked.name}"
        try:
            made = build(asked.name, pretrained=asked.fetch)
        except InputError:
            raise
        except Exception as error:  # whatever code of others raises
            raise InputError(f"the model {called} cannot be made: its plug-in raised {said(error)}") from error
        return of_user(made, called, f"the plug-in of {name}")

    SOURCES.enter(name, Source(f"{name}/NAME", built))


SOURCES: Registry[Source] = Registry(
    "source of models",
    "vitrail.models",
    adopt=_adopt,
    tell=lambda name, source: {"id": name, "form": source.form},
)


def of_user(made: Any, called: str, builder: str) -> Found:
    """What a user's own function returned, as a source gives it.

    Args:
        made: A module or a view.
        called: What the model is called.
        builder: What returned it, in words.
    """
    if isinstance(made, View):
        return Found(made.model, called, made.preprocess, made.classes)
    if not isinstance(made, nn.Module):
        raise InputError(
            f"{builder} must return a torch module or what vitrail.load makes of one, "
            f"but it returned a {type(made).__name__}"
        )
    module = unwrapped(made)
    return Found(module, called, *facts(module))


def facts(module: nn.Module) -> tuple[Preprocess, Sequence[str] | None]:
    """What a module itself says about its input and its classes."""
    config = getattr(module, "pretrained_cfg", None)
    if config:  # timm
        names = config.get("label_names") or imagenet_names(getattr(module, "num_classes", 0))
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
    return Preprocess(size), imagenet_names(classes)


def imagenet_names(classes: int) -> tuple[str, ...] | None:
    """The names of ImageNet's classes, for a model with as many."""
    if classes != 1000:
        return None
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return tuple(info.index_to_description(i) for i in range(1000))


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile's or DataParallel's wrapper, whose parts can be watched."""
    inner = getattr(model, "_orig_mod", None) or (
        model.module if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) else None
    )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("a TorchScript model hides its parts; give the Python module it was made from")
    if isinstance(inner, nn.Module):
        return unwrapped(inner)
    return Packed(model) if Packed.suits(model) else model


def extra(module: str, extra: str) -> Any:
    """A library that not everybody has, or a sentence that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this model needs {module}: pip install 'vitrail[{extra}]'") from error


def fetched(name: str, fetch: bool) -> Callable[[Callable[[], Any]], Any]:
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


def said(error: Exception) -> str:
    """An error of others, in a line."""
    return f"{type(error).__name__}: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).strip() or "without a word").splitlines()[0][:160]
