"""Class activation maps without gradients: channels weighted by what the model answers, or by their own spread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.events import Passes
from vitrail.fields import number, value
from vitrail.method.base import MAP, Method, SharedPasses, State, register
from vitrail.method.batch import Batch
from vitrail.method.cam.gradients import positions
from vitrail.model import Hooks, Need, View, full


def clean_features(view: View, batch: Batch) -> Tensor:
    """(B, channels, rows, columns) features of the clean images, whose target is settled on the way."""
    trace = view.trace(batch.images, start=view.depth)  # no gradient is asked for
    batch.learn(trace.logits)
    batch.check()  # not every decomposition takes what is not a number
    return full(view.spatial(trace.entry.detach(), batch.size))


def busiest(features: Tensor, channels: int | None) -> Tensor:
    """(B, k): the channels of each image whose values spread most (standard deviation), all of them for None."""
    total = features.shape[1]
    if channels is None or channels >= total:
        return torch.arange(total, device=features.device).expand(len(features), -1)
    return features.flatten(2).std(-1).topk(channels, dim=1).indices.sort(1).values


def answers(batches: Sequence[Batch], chosen: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, k, targets) scores for each chosen channel; all images go through together, a few channels at a time.

    Args:
        batches: The images, once for each target, which is settled.
        chosen: (B, k) channels.
        ask: (n, B) channels -> (n * B, classes) logits, one copy of the batch after the other.
    """

    def scores(part: slice) -> Tensor:
        some = chosen.T[part]
        logits = ask(some).unflatten(0, some.shape)
        columns = []
        which = torch.arange(len(some[0]), device=logits.device)
        for batch in batches:
            found = [full(batch.target.score(copy)) for copy in logits]
            for copy, one in zip(logits, found):
                batch.heard(which, one, batch.target.rounding(copy, one, probability=False))
            columns.append(torch.stack(found, 1))
        return torch.stack(columns, 2)

    return torch.cat(list(batches[0].in_parts(chosen.shape[1], scores)), 1)


def weighted(features: Tensor, chosen: Tensor, weights: Tensor) -> list[State]:
    """The chosen channels, added up with the (B, k, targets) weights of each target."""
    channels = features.gather(1, chosen[..., None, None].expand(-1, -1, *features.shape[2:]))
    return [{MAP: (own[..., None, None] * channels).sum(1)} for own in weights.unbind(2)]


class WeightedChannels(SharedPasses):
    """A method that weighs channels by what the model answers.

    Attributes:
        channels: Use only so many channels of each image, those whose values spread most; all of them by default.
        relu: Keep the positive part only.
    """

    channels: int | None
    relu: bool

    @property
    def signed(self) -> bool:
        return not self.relu

    def render(self, state: State) -> Tensor:
        return state[MAP].relu() if self.relu else state[MAP]


@register("scorecam", paper="Wang et al. 2020", cost="1 forward a channel, 1 forward", needs=(Need.FEATURES,))
@dataclass(frozen=True)
class ScoreCAM(WeightedChannels):
    """Features weighted by the score of the image seen through them (softmax over channels).

    Each channel is stretched to the image (bilinear, corners aligned), scaled to 0..1 and multiplied with the
    normalised input, so that what it hides takes the mean colour. The paper subtracts a baseline's score, the same for
    every channel: the softmax does not see it.

    Attributes:
        channels: Use only so many channels of each image, those whose values spread most; all of them by default.
        relu: Keep the positive part only.
    """

    channels: int | None = number(None, low=1, high=1_000_000)
    relu: bool = value(True, stage="render")

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(1 + (self.channels or view.width))

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        batch = batches[0]
        features = clean_features(view, batch)
        for own in batches:
            own.settle(view)
        chosen = busiest(features, self.channels)

        def through(channels: Tensor) -> Tensor:
            rows = torch.arange(len(batch), device=channels.device)
            masks = F.interpolate(features[rows, channels], batch.size, mode="bilinear", align_corners=True)
            low, high = masks.amin((2, 3), keepdim=True), masks.amax((2, 3), keepdim=True)
            masks = ((masks - low) / (high - low + 1e-8)).to(batch.images.dtype)
            return view.logits((masks[:, :, None] * batch.images).flatten(0, 1))

        with torch.no_grad():
            weights = answers(batches, chosen, through).softmax(1)
        return weighted(features, chosen, weights)


@register(
    "ablationcam",
    paper="Desai and Ramaswamy 2020",
    cost="1 forward a channel, 2 forwards",
    needs=(Need.FEATURES,),
)
@dataclass(frozen=True)
class AblationCAM(WeightedChannels):
    """Features weighted by how much of the score is lost without them: w = (y - y without the channel) / |y|.

    A channel is taken out by setting it to zero, as in the paper, everywhere, prefix tokens included; what one image
    gets does not depend on the others. pytorch-grad-cam sets it to zero only where the smallest feature is zero (behind
    a ReLU; there both agree), and otherwise to the batch's smallest value minus 1e7, which drives the model far out of
    its range and changes with the batch. It also divides by y, which turns the map around where the logit is negative.
    Always runs at the model's own precision.

    Attributes:
        channels: Use only so many channels of each image, those whose values spread most; all of them by default.
        relu: Keep the positive part only.
    """

    channels: int | None = number(None, low=1, high=1_000_000)
    relu: bool = value(True, stage="render")

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(2 + (self.channels or view.width))

    def search_shared(self, view: View, batches: Sequence[Batch]) -> list[State]:
        batch = batches[0]
        if view.blocks is None:
            assert view.features is not None
            entry, axis = view.features.module, 1 if view.features.order == "NCHW" else -1
        else:
            entry, axis = view.blocks.entry, -1

        def without(channels: Tensor) -> Tensor:
            with view.still(), ablated(entry, calls, channels.flatten(), axis):
                return view.logits(batch.images.repeat(len(channels), 1, 1, 1))

        with torch.no_grad():
            features = clean_features(view, batch)
            chosen = busiest(features, self.channels)
            with view.still():
                calls, logits = counted(entry, lambda: view.logits(batch.images))
            score = torch.stack([full(own.settle(view).score(logits)) for own in batches], 1)[:, None]
            losses = score - answers(batches, chosen, without)
        return weighted(features, chosen, losses / score.abs().clamp_min(1e-6))


def counted(module: nn.Module, run: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """How often a run calls a module, and its result: a shared ReLU serves many layers, its last call the features."""
    calls: list[None] = []
    with Hooks() as hooks:
        hooks.behind(module, lambda *_: calls.append(None))
        result = run()
    return len(calls), result


@contextmanager
def ablated(module: nn.Module, call: int, channels: Tensor, axis: int) -> Iterator[None]:
    """Inside, a module's ``call``-th answer has one channel set to zero: another one for every image."""
    before = iter(range(call - 1))

    def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if next(before, None) is not None:
            return output
        x = output[0] if isinstance(output, tuple) else output
        keep = torch.ones(len(x), x.shape[axis], dtype=x.dtype, device=x.device).scatter_(1, channels[:, None], 0)
        shape = [len(x)] + [1] * (x.ndim - 1)
        shape[axis] = -1
        x = x * keep.view(shape)
        return (x, *output[1:]) if isinstance(output, tuple) else x

    with Hooks() as hooks:
        hooks.behind(module, hook)
        yield


@register("eigencam", paper="Muhammad and Yeasin 2020", cost="1 forward", needs=(Need.FEATURES,))
@dataclass(frozen=True)
class EigenCAM(Method):
    """The first principal component of the features over the places. The same for every class.

    Features are centred, as in pytorch-grad-cam. A principal component has no sign of its own: it is turned so that its
    largest absolute value is positive.

    Attributes:
        relu: Keep the positive part only.
    """

    classless: ClassVar[bool] = True
    relu: bool = value(False, stage="render")

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(1)

    def search(self, view: View, batch: Batch) -> State:
        features = clean_features(view, batch)
        x = positions(features)
        left, strength, _ = torch.linalg.svd(x - x.mean(1, keepdim=True), full_matrices=False)
        cam: Tensor = left[..., 0] * strength[:, :1]
        extreme = cam.gather(1, cam.abs().argmax(1, keepdim=True))
        return {MAP: (cam * extreme.sign()).unflatten(1, features.shape[2:])}

    def render(self, state: State) -> Tensor:
        return state[MAP].relu() if self.relu else state[MAP]
