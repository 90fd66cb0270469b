"""Models that answer as others do, but give no gradient, change themselves, or are no modules at all."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from helpers.small import small_vit

SIZE = (32, 32)


def cnn() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)).eval()


def vit(**options: Any) -> nn.Module:
    return small_vit(img_size=32, patch_size=8, embed_dim=24, depth=2, **options)


BASES: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "vit": vit}


class Around(nn.Module):
    """A model whose forward pass is a function of another one and the pictures."""

    def __init__(self, body: nn.Module, run: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.run = body, run

    def forward(self, images: Tensor) -> Any:
        return self.run(self.body, images)


def without_gradients(body: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return body(images)


def in_inference_mode(body: nn.Module, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return body(images)


def through_numpy(body: nn.Module, images: Tensor) -> Tensor:
    return torch.from_numpy(without_gradients(body, images).numpy())


def made_in_inference_mode(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.inference_mode():
        return build()


def quantised(build: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(build(), {nn.Linear}, dtype=torch.qint8)


GRADIENTLESS: dict[str, Callable[[Callable[[], nn.Module]], Any]] = {
    "runs under no_grad": lambda build: Around(build(), without_gradients),
    "runs in inference mode": lambda build: Around(build(), in_inference_mode),
    "detaches its answer": lambda build: Around(build(), lambda body, images: body(images).detach()),
    "answers through numpy": lambda build: Around(build(), through_numpy),
    "made in inference mode": made_in_inference_mode,
    "quantised": quantised,
    "a function": lambda build: partial(without_gradients, build()),
}
"""By how it comes that they give none; each is made from a function that builds a model."""


class Counting(nn.Module):
    """Counts its calls in one buffer, in place, and keeps a running mean in another, which is a new one each time."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * images.detach().mean((0, 2, 3))
        return self.body(images)


def starts_training(body: nn.Module, images: Tensor) -> Tensor:
    answer: Tensor = body(images)
    body.train()
    return answer


def thaws(body: nn.Module, images: Tensor) -> Tensor:
    body.requires_grad_()
    answer: Tensor = body(images)
    return answer


CHANGING: dict[str, Callable[[Callable[[], nn.Module]], nn.Module]] = {
    "counts": lambda build: Counting(build()),
    "starts training": lambda build: Around(build(), starts_training),
    "thaws its weights": lambda build: Around(build().requires_grad_(False), thaws),
    "trains": lambda build: build().train(),
    "made in inference mode": made_in_inference_mode,
}
"""By what they change about themselves when they run, or what is hard to put back."""
