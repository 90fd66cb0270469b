"""What stands where a picture is hidden. The names say what is really done, because papers do not agree on theirs.

Everything works on model inputs, which are normalised: a raw value of v is (v - mean) / std there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

from vitrail.errors import InputError
from vitrail.fields import number, random_seed, schema
from vitrail.model import Preprocess, Target, View
from vitrail.registry import Registry
from vitrail.spec import Configured, entered, read

BASELINES: Registry[type["Baseline"]] = Registry("baseline", "vitrail.baselines", tell=lambda name, _: describe(name))


WIDEST = 501
"""Pixels that a blur may be wide: at most as many as the usual pictures, and more."""


@dataclass(frozen=True)
class Baseline(Configured, ABC):
    """A picture of nothing, made for each image."""

    kind = "baseline"
    registry = BASELINES
    of_target: ClassVar[bool] = False
    """Whether the picture depends on what is explained."""

    @abstractmethod
    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        """(B, 3, H, W) model inputs -> what replaces their hidden pixels, of the same shape.

        Args:
            view: The model, for its normalisation (and its answers, which `AdaptiveBlur` asks for).
            images: The images.
            target: What is explained about them.
        """

    def fill_and_tell(self, view: View, images: Tensor, target: Target) -> tuple[Tensor, list[str]]:
        """What `fill` gives, and for each image a sentence that a reader of results must know, or an empty one."""
        return self.fill(view, images, target), [""] * len(images)


T = TypeVar("T", bound=type[Baseline])


def register(name: str, *, was: tuple[str, ...] = ()) -> Callable[[T], T]:
    """Enter a baseline in the registry.

    Args:
        name: Its id in spec strings.
        was: The names that it had before.
    """
    return lambda cls: entered(cls, name, was)


def describe(name: str) -> dict[str, Any]:
    """What the viewer shows of a baseline."""
    cls = BASELINES[name]
    return {"id": name, "summary": (cls.__doc__ or "").strip().splitlines()[0], "schema": schema(cls)}


def baseline(spec: str | Baseline) -> Baseline:
    """The baseline a spec string describes.

    Example:
        >>> baseline("rise_blur(11, 5)")
        RiseBlur(kernel=11, sigma=5.0)
    """
    return read(spec, Baseline, "rise_blur(11, 5)")  # type: ignore[type-abstract]


def _colour(raw: tuple[float, ...], preprocess: Preprocess, images: Tensor) -> Tensor:
    """One raw colour everywhere."""
    values = [(v - m) / s for v, m, s in zip(raw, preprocess.mean, preprocess.std)]
    return torch.tensor(values, dtype=images.dtype, device=images.device).view(1, 3, 1, 1).expand_as(images)


@register("black_pixel")
@dataclass(frozen=True)
class BlackPixel(Baseline):
    """True black: raw pixels of 0. Chefer's perturbation tests use it, and few others do."""

    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        return _colour((0.0, 0.0, 0.0), view.preprocess, images)


@register("zero_norm")
@dataclass(frozen=True)
class ZeroNorm(Baseline):
    """Zeros in the normalised space, the colour the model takes for the mean. What most papers call black."""

    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        return torch.zeros_like(images)


@register("dataset_mean")
@dataclass(frozen=True)
class DatasetMean(Baseline):
    """ImageNet's mean colour; the same as ``zero_norm`` for models that are normalised by it."""

    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        return _colour(Preprocess().mean, view.preprocess, images)


@register("image_mean")
@dataclass(frozen=True)
class ImageMean(Baseline):
    """The mean colour of each image itself.

    Attributes:
        channels: Each channel's own mean, or one mean of all normalised values together, as TIS has it.
    """

    channels: Literal["apart", "together"] = "apart"

    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        return images.mean((2, 3) if self.channels == "apart" else (1, 2, 3), keepdim=True).expand_as(images)


@register("rise_blur")
@dataclass(frozen=True)
class RiseBlur(Baseline):
    """RISE's blur: a Gaussian cut off at ``kernel`` pixels and folded back into them; beyond the border lies zero.

    With ``sigma`` as large as ``kernel``, as MDA has it, this is a box filter to four digits.

    Attributes:
        kernel: Width in pixels, odd.
        sigma: Standard deviation.
    """

    kernel: int = number(11, low=1, high=WIDEST, only="odd")
    sigma: float = number(5.0, above=0, high=1000)

    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        return rise_blur(images, self.kernel, self.sigma)


@register("gaussian_blur")
@dataclass(frozen=True)
class GaussianBlur(Baseline):
    """A plain Gaussian blur; the picture is mirrored at its border.

    Attributes:
        kernel: Width in pixels, odd.
        sigma: Standard deviation.
    """

    kernel: int = number(31, low=1, high=WIDEST, only="odd")
    sigma: float = number(10.0, above=0, high=1000)

    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        if self.kernel // 2 >= min(images.shape[-2:]):
            raise InputError(f"{self.spec} is too wide for images of {images.shape[-2]} x {images.shape[-1]} pixels")
        with torch.autocast(images.device.type, enabled=False):
            blurred: Tensor = gaussian_blur(images, [self.kernel] * 2, [self.sigma] * 2)
        return blurred


MOST_TRIED = 256
"""Pictures that `adaptive_blur` asks a GPU about at once, where there are several widths left to try."""


@register("adaptive_blur")
@dataclass(frozen=True)
class AdaptiveBlur(Baseline):
    """MDA's blur: a box filter widened, image by image, until the target's probability falls below a share.

    Images that never fall so low get the widest filter, and results say so. For a target that is no class there is no
    probability: they get the first one, and results say that.

    Attributes:
        first: The narrowest filter tried, in pixels, odd.
        last: The widest.
        step: How much wider the next one is, even.
        below: The probability to fall below.
    """

    of_target = True

    first: int = number(31, low=1, high=WIDEST, only="odd")
    last: int = number(101, low=1, high=WIDEST, cost="would widen the blur, one pass after the other, up to {} pixels")
    step: int = number(2, low=2, high=WIDEST, only="even")
    below: float = number(0.01, low=0, high=1)

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise InputError(
                f"adaptive_blur widens from first to last, but first={self.first}, last={self.last} were given"
            )

    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        blurred, _ = self.search(view, images, target)
        return blurred

    def fill_and_tell(self, view: View, images: Tensor, target: Target) -> tuple[Tensor, list[str]]:
        blurred, widths = self.search(view, images, target)
        if target.classes is None:
            told = f"a target that is no class has no probability to fall below {self.below:g}: the first blur is used"
            return blurred, [told] * len(images)
        told = (
            f"no blur of up to {self.last} pixels brings the probability below {self.below:g}: the widest is used, "
            "and the model still sees the target in it"
        )
        return blurred, [told if width == 0 else "" for width in widths.tolist()]

    def search(self, view: View, images: Tensor, target: Target, *, ahead: bool | None = None) -> tuple[Tensor, Tensor]:
        """The blurred images, and (B,) the width of each one's filter; 0 where none was wide enough.

        Args:
            view: The model.
            images: (B, 3, H, W) model inputs.
            target: What is explained about each.
            ahead: Ask about several widths at once, also those that turn out not to be needed; by default on a GPU,
                which would wait for us more than for the passes.
        """
        ahead = images.device.type == "cuda" if ahead is None else ahead
        found = torch.empty_like(images)
        widths = torch.zeros(len(images), dtype=torch.long)
        left = torch.arange(len(images), device=images.device)
        tries = list(range(self.first, self.last + 1, self.step))
        together = 1
        while tries and len(left):
            now, tries = tries[:together], tries[together:]
            blurred = torch.stack([rise_blur(images[left], width, width) for width in now])
            with torch.no_grad():
                logits = view.logits(blurred.flatten(0, 1))
            low = target.take(left.repeat(len(now))).probability(logits).view(len(now), -1) < self.below
            enough, first = low.max(0)
            found[left] = blurred[torch.where(enough, first, len(now) - 1), torch.arange(len(left), device=left.device)]
            widths[left[enough].cpu()] = torch.tensor(now)[first[enough].cpu()]
            left = left[~enough]
            if target.classes is None:
                break
            if ahead:
                together = max(1, min(2 * together, MOST_TRIED // max(1, len(left))))
        return found, widths


@register("uniform_noise")
@dataclass(frozen=True)
class UniformNoise(Baseline):
    """Every value drawn evenly between 0 and 1: of the raw pixels, or of the normalised inputs as TIS has it.

    Attributes:
        space: Where 0 and 1 are.
        seed: Another seed draws other noise; all images get the same.
    """

    space: Literal["raw", "normalised"] = "raw"
    seed: int = random_seed()

    def fill(self, view: View, images: Tensor, target: Target) -> Tensor:
        noise = torch.rand(images.shape[1:], generator=torch.Generator().manual_seed(self.seed)).to(images)
        if self.space == "raw":
            mean, std = (torch.tensor(x).view(3, 1, 1).to(images) for x in (view.preprocess.mean, view.preprocess.std))
            noise = (noise - mean) / std
        return noise.expand_as(images)


@cache
def rise_kernel(width: int, sigma: float) -> Tensor:
    """(width,) one side of RISE's kernel, which is the outer product of two: a Gaussian folded back at the edges."""
    impulse = np.zeros(width)
    impulse[width // 2] = 1
    return torch.tensor(gaussian_filter(impulse, sigma, mode="reflect"))


def rise_blur(images: Tensor, width: int, sigma: float) -> Tensor:
    """Blur as RISE does: zeros beyond the border. Always in the images' own type, whatever the model calculates in."""
    side = rise_kernel(width, float(sigma)).to(images)
    with torch.autocast(images.device.type, enabled=False):
        for shape in ((-1, 1), (1, -1)):
            kernel = side.view(1, 1, *shape).expand(images.shape[1], -1, -1, -1)
            padding = (width // 2, 0) if shape == (-1, 1) else (0, width // 2)
            images = F.conv2d(images, kernel, padding=padding, groups=images.shape[1])
    return images
