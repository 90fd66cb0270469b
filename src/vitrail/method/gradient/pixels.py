"""Gradients at the pixels: saliency, input x gradient, integrated gradients, SmoothGrad."""

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import number, random_seed
from vitrail.method.base import MAP, RULES, Gradient, Method, SharedPasses, State, register
from vitrail.method.batch import Batch, besides
from vitrail.method.enlargement import Enlargement
from vitrail.method.layered import Layered, check_length, ignores, products, states_and_gradients
from vitrail.model import View, full


def pixel_gradient(view: View, batch: Batch, gradient: Gradient) -> Tensor:
    """(B, 3, H, W): the gradient of the clean images' scores."""
    trace = view.trace(batch.images, rule=RULES[gradient], pixels=True)
    return full(view.gradient(batch.learn(trace.logits).score(trace.logits), [trace.images])[0])


@register("saliency", paper="Simonyan et al. 2014", cost="1 forward, 1 backward")
@dataclass(frozen=True)
class Saliency(Layered):
    """How strongly each pixel moves the score: the gradient, its channels added up.

    Attributes:
        reduce: ``abs`` adds absolute values, ``sum`` keeps the sign, ``norm2`` takes the length.
        gradient: The model's own gradient, or the frozen one.
    """

    pixels: ClassVar[bool] = True
    reduce: Literal["abs", "sum", "norm2"] = "abs"
    gradient: Gradient = "true"

    @property
    def signed(self) -> bool:
        return self.reduce == "sum"

    def maps(self, view: View, batch: Batch) -> Tensor:
        return self._reduced(pixel_gradient(view, batch, self.gradient), 1)

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        _, gradients = states_and_gradients(view, batch, start, RULES[self.gradient])
        if self.reduce == "sum":
            return products(view, batch, [torch.ones_like(gradient) for gradient in gradients[:-1]], gradients[:-1])
        return torch.stack([self._reduced(gradient, -1) for gradient in gradients[:-1]])

    def check_layers(self, view: View, start: int, composition: str) -> None:
        if self.reduce == "sum" and ignores(view, start, lambda patches: patches + patches.std()):
            raise InputError(
                f"{composition} is zero on {view.name}, whatever the picture: its tokens go through layer norms alone, "
                "which ignore shifts, so that a token's gradients add up to zero; use reduce=abs or reduce=norm2"
            )

    def _reduced(self, gradient: Tensor, channels: int) -> Tensor:
        if self.reduce == "norm2":
            return gradient.square().sum(channels).sqrt()
        return (gradient.abs() if self.reduce == "abs" else gradient).sum(channels)


@register("ixg", paper="Shrikumar et al. 2016", cost="1 forward, 1 backward")
@dataclass(frozen=True)
class InputXGradient(Layered):
    """Input times gradient, its channels added up.

    Attributes:
        gradient: The model's own gradient, or the frozen one.
    """

    pixels: ClassVar[bool] = True
    gradient: Gradient = "true"

    @property
    def signed(self) -> bool:
        return True

    def maps(self, view: View, batch: Batch) -> Tensor:
        return (full(batch.images) * pixel_gradient(view, batch, self.gradient)).sum(1)

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        states, gradients = states_and_gradients(view, batch, start, RULES[self.gradient])
        return products(view, batch, states[:-1], gradients[:-1])

    def check_layers(self, view: View, start: int, composition: str) -> None:
        if self.gradient == "true":
            check_length(view, start, composition, self.id)


@register("ig", paper="Sundararajan et al. 2017", cost="steps forwards and backwards, 1 forward")
@dataclass(frozen=True)
class IntegratedGradients(SharedPasses):
    """The gradient averaged on the straight way from the mean colour to the image, times the way (Gauss-Legendre).

    Attributes:
        steps: Points on the way.
        gradient: The model's own gradient, or the frozen one.
    """

    pixels: ClassVar[bool] = True
    steps: int = number(50, low=1, high=2000, cost="would make {} forward and backward passes an image")
    gradient: Gradient = "true"

    @property
    def signed(self) -> bool:
        return True

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(self.steps + 1, self.steps)

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        batch, targets = batches[0], [own.aim(view) for own in batches]
        images = batch.images
        # Both before any pass: behind one, their way to the device would wait for it.
        alphas, weights = torch.tensor(way(self.steps), dtype=full(images[:0]).dtype, device=images.device)

        def gradients(part: slice) -> Tensor:
            points = alphas[part].to(images.dtype)
            copies = (points.view(-1, 1, 1, 1, 1) * images).flatten(0, 1)
            trace = view.trace(copies, rule=RULES[self.gradient], pixels=True)
            summed = []
            for left, target in zip(reversed(range(len(targets))), targets):
                scores = target.repeat(len(points)).score(trace.logits)
                gradient = full(view.gradient(scores, [trace.images], again=left > 0)[0])
                summed.append(weights[part] @ gradient.reshape(len(points), -1))
            return torch.stack(summed)

        total = functools.reduce(torch.add, batch.in_parts(self.steps, gradients))
        return [{MAP: (found.view_as(images) * full(images)).sum(1)} for found in total]


@functools.cache
def way(steps: int) -> np.ndarray:
    """(2, steps): the points of the Gauss-Legendre rule on the way from 0 to 1, and their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # on [-1, 1], which is twice as long
    halved: np.ndarray = np.stack([1 + nodes, weights]) / 2
    return halved


@register("smoothgrad", paper="Smilkov et al. 2017", cost="samples x the base method")
@dataclass(frozen=True)
class SmoothGrad(SharedPasses):
    """Any method, averaged over noisy copies of the image.

    Attributes:
        base: The method to smooth.
        samples: Noisy copies.
        noise: The noise's standard deviation, as a share of the image's range of values.
        seed: Another seed draws other noise.
    """

    base: Method = Saliency()
    samples: int = number(16, low=1, high=10_000, cost="would explain each image {} times")
    noise: float = number(0.15, low=0, high=1000)
    seed: int = random_seed()

    def shape(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        return self.base.shape(view, size)

    @property
    def enlargement(self) -> Enlargement:
        return self.base.enlargement

    def tells_classes(self) -> bool:
        return self.base.tells_classes()

    @property
    def signed(self) -> bool:
        return self.base.signed

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return self.base.passes(view, size).times(self.samples).plus(Passes(1))

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        for own in batches:
            own.aim(view)
        batch = batches[0]
        flat = batch.images.flatten(1)
        spread = (self.noise * (flat.amax(1) - flat.amin(1))).view(-1, 1, 1, 1)
        generators = [batch.generator(i, self.seed) for i in range(len(batch))]
        total: Tensor | int = 0
        for _ in range(self.samples):
            noise = torch.stack([torch.randn(batch.images.shape[1:], generator=g) for g in generators])
            noisy = besides(batches, batch.images + spread * noise.to(batch.images))
            with view.remembering(noisy[0].images) if len(noisy) > 1 else nullcontext():
                total = total + torch.stack([self.base.render(state) for state in self.base.search_of(view, noisy)])
        assert isinstance(total, Tensor)
        return [{MAP: own} for own in total / self.samples]
