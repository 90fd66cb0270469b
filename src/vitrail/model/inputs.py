"""From pictures to the tensor a model wants, and back to the crop it really saw."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tf

from vitrail.errors import InputError, option
from vitrail.model import pictures
from vitrail.model.pictures import ENCODED

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


FILTERS = tuple(mode.value for mode in InterpolationMode)


def check_size(size: Any) -> None:
    """Refuse what is no height and width of an input."""
    sides = list(size) if isinstance(size, Iterable) and not isinstance(size, str) else [size]
    if len(sides) != 2 or not all(isinstance(side, Integral) and not isinstance(side, bool) for side in sides):
        raise InputError(f"{option('size')} must be two whole numbers, height and width, but {size!r} was given")
    if min(sides) < 1:
        raise InputError(
            f"{option('size')} must be 1 pixel or more high and wide, but {sides[0]} x {sides[1]} was given"
        )


def is_number(value: Any) -> bool:
    """Whether a value is one finite number."""
    try:
        return not isinstance(value, str | bytes | bool) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


@dataclass(frozen=True)
class Preprocess:
    """Resize, centre crop, normalise.

    Attributes:
        size: Height and width of the model's input.
        mean: Channel means of the normalisation.
        std: Channel standard deviations likewise.
        crop: Share of the resized picture that the centre crop keeps; 0.9 at 224 pixels means: resize to 248.
        squash: Resize to the input's size at once, whatever the picture's proportions (Hugging Face's ViT).
        interpolation: The resize filter: ``bicubic``, ``bilinear``, ``nearest``, ``lanczos``, ...
    """

    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    crop: float = 0.875
    interpolation: str = "bicubic"
    squash: bool = False

    def __post_init__(self) -> None:
        check_size(self.size)
        object.__setattr__(self, "size", tuple(map(int, self.size)))
        for name, values, least in (("mean", self.mean, -math.inf), ("std", self.std, 0)):
            given = list(values) if isinstance(values, Iterable) else [values]
            if len(given) != 3 or not all(is_number(one) and one > least for one in given):
                kind = "numbers above 0" if least == 0 else "numbers"
                raise InputError(f"{option(name)} must be three {kind}, one a channel, but {values!r} was given")
            object.__setattr__(self, name, tuple(map(float, given)))
        if not is_number(self.crop) or self.crop <= 0:
            raise InputError(f"crop must be a number above 0, but {self.crop!r} was given")
        if self.interpolation not in FILTERS:
            raise InputError(f"interpolation must be {' or '.join(FILTERS)}, but {self.interpolation!r} was given")

    def picture(self, source: Any) -> Image.Image:
        """The part of a picture that the model sees, at the model's size; a model input is turned back into one."""
        if isinstance(source, Tensor) and source.is_floating_point():
            return self.restore(source)
        return self._framed(pictures.read(source), InterpolationMode(self.interpolation))

    def mask(self, mask: Tensor) -> Tensor:
        """A (height, width) mask of a whole picture -> (H, W) of what the model sees of it; no value is mixed."""
        picture = Image.fromarray((mask.cpu().to(torch.int16) + 128).to(torch.uint8).numpy())
        framed = np.array(self._framed(picture, InterpolationMode.NEAREST))
        return (torch.from_numpy(framed).to(torch.int16) - 128).to(mask.dtype)

    def _framed(self, picture: Image.Image, how: InterpolationMode) -> Image.Image:
        if self.squash:
            squashed: Image.Image = tf.resize(picture, list(self.size), how)
            return squashed
        scale = max(math.floor(s / self.crop + 1e-6) / p for s, p in zip(self.size, (picture.height, picture.width)))
        # The side that fits exactly is rounded, the longer one cut off: as torchvision's Resize does.
        resized = [
            max(int(side * scale + 1e-6), wanted) for side, wanted in zip((picture.height, picture.width), self.size)
        ]
        cropped: Image.Image = tf.center_crop(tf.resize(picture, resized, how), list(self.size))
        return cropped

    def tensor(self, source: Any) -> Tensor:
        """One (3, H, W) model input. Floating point tensors are taken as model inputs already."""
        if isinstance(source, Tensor) and source.is_floating_point():
            return _checked(source)
        return self.normalise(self.picture(source))

    def normalise(self, picture: Image.Image) -> Tensor:
        """(3, H, W) from the part of a picture that the model sees, as `picture` gives it."""
        pixels: Tensor = tf.pil_to_tensor(picture).float() / 255
        mean, std = self._moments
        return (pixels - mean) / std

    def batch(self, sources: Sequence[Any]) -> Tensor:
        """(B, 3, H, W) from pictures, or from model inputs of one size."""
        inputs = [self.tensor(source) for source in sources]
        sizes = {tuple(x.shape[-2:]) for x in inputs}
        if len(sizes) > 1:
            raise InputError(
                f"the images given are of different sizes, {sorted(sizes)}; explain them one size at a time"
            )
        return torch.stack(inputs)

    @property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """(3, 1, 1) each, on the CPU."""
        return torch.tensor(self.mean, device="cpu").view(3, 1, 1), torch.tensor(self.std, device="cpu").view(3, 1, 1)

    def restore(self, tensor: Tensor) -> Image.Image:
        """A (3, H, W) model input as a picture again."""
        mean, std = self._moments
        pixels = (_checked(tensor).detach().float().cpu() * std + mean).clamp(0, 1).mul(255).round().to(torch.uint8)
        return Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))


def sources_of(images: Any) -> list[Any]:
    """Anything a user may call images -> a list with one entry an image; files are not opened yet."""
    return _sources_of(images, 0)


def _sources_of(images: Any, depth: int) -> list[Any]:
    if isinstance(images, Tensor):
        pictures.check_plain(images)
    if isinstance(images, Tensor | np.ndarray) and images.ndim == 4:
        found = list(images)
    elif isinstance(images, Sequence) and not isinstance(images, (str, *ENCODED)) and depth <= pictures.DEEPEST:
        found = [source for image in images for source in _sources_of(image, depth + 1)]
    else:
        found = pictures.expand(images, depth)
    if not found:
        raise InputError("no image was given; give at least one path, picture, array or tensor")
    return found


def _checked(tensor: Tensor) -> Tensor:
    pictures.check_plain(tensor)
    if tensor.dtype not in FLOATS:
        raise InputError(f"a model input must be of float32, float64, float16 or bfloat16, but is {tensor.dtype}")
    if tensor.ndim != 3 or tensor.shape[0] != 3:
        raise InputError(
            f"a model input must be a (3, height, width) tensor, but {tuple(tensor.shape)} was given; "
            "for a picture with other channels give a path, a PIL image or a uint8 array"
        )
    if not torch.isfinite(tensor).all():
        raise InputError("a model input must be finite, but the tensor given holds NaN or infinite values")
    return tensor
