"""An explainer's pass as CUDA graphs: on a small model the GPU would wait for Python, kernel after kernel.

A batch of one shape is explained as usual the first time. The second time its kernels are recorded, and from then on
they are played back: the same numbers, without Python in between. There are two graphs, because what is to be
explained may depend on what the model answers: one up to the logits, one from the classes on.
"""

from collections import OrderedDict
from collections.abc import Hashable
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from vitrail.events import Passes
from vitrail.method.aha.explainer import Explainer
from vitrail.method.aha.features import Sight
from vitrail.model import View, full

KEPT = 2
"""Recordings that a view keeps: the usual batch, and another. Each holds the memory of its pass."""

REHEARSALS = 2
"""Passes before recording, in which libraries choose their kernels and take what memory they need."""


class Recording:
    """The kernels of one batch's pass, and the memory they work in.

    The view is not kept: its weights live as long as it does, and a recording goes with it.

    Args:
        explainer: The explainer, on the view's device.
        view: The target, held still.
        images: (B, 3, H, W) inputs; any of this shape can be played.
        made: The passes made so far, those of the recording behind them, see `Meter.apart`.
    """

    def __init__(self, explainer: Explainer, view: View, images: Tensor, made: list[Passes]) -> None:
        self._explainer = explainer
        self._images = images.clone()
        self._classes = torch.zeros(len(images), dtype=torch.long, device=images.device)
        stream = torch.cuda.Stream(images.device)
        stream.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(stream):
            for _ in range(REHEARSALS):
                answered(explainer, explainer.encode(view, self._images), self._images, self._classes)
        torch.cuda.current_stream(images.device).wait_stream(stream)
        self._looking, self._telling = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        before = len(made)
        # Only this thread is watched for calls that cannot be recorded: another may use the GPU meanwhile.
        with torch.cuda.graph(self._looking, stream=stream, capture_error_mode="thread_local"):
            sight = explainer.encode(view, self._images)
        pool = self._looking.pool()
        with torch.cuda.graph(self._telling, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._maps = answered(explainer, sight, self._images, self._classes)
        self._logits = sight.logits
        self._passes = reduce(Passes.plus, made[before:], Passes(0))

    def look(self, view: View, images: Tensor) -> Tensor:
        """(B, classes) logits of the images."""
        self._images.copy_(images)
        self._looking.replay()
        view.meter.begin(int(self._passes.forwards))
        return self._logits.clone()

    def tell(self, view: View, classes: Tensor) -> Tensor:
        """(B, H, W) maps of what was looked at last, for (B,) classes."""
        self._classes.copy_(classes)
        self._telling.replay()
        view.meter.begin(backwards=int(self._passes.backwards))
        return self._maps.clone()


def answered(explainer: Explainer, sight: Sight, images: Tensor, classes: Tensor) -> Tensor:
    """(B, H, W) maps of images that were looked at, for (B,) classes.

    In full precision whatever the model calculates in: few digits would make ties of most pixels.
    """
    features = sight.features(classes)
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        return full(explainer(features, images, classes))


State = Recording | Literal["seen", "impossible"]


def recorded(explainer: Explainer, view: View, images: Tensor) -> Recording | None:
    """The recording that serves these images; None where the pass is to be made as usual.

    That is on a CPU, the first time, and where the model does something that cannot be recorded.

    Args:
        explainer: The explainer, on the view's device.
        view: The target, held still.
        images: (B, 3, H, W) inputs.
    """
    if images.device.type != "cuda" or view.remembers:
        return None
    kept: OrderedDict[Hashable, State] = view.memo.once("method/aha/recorded: passes", (), OrderedDict)
    key = (id(explainer), images.shape, images.dtype, view.precision, view.stamp())
    if key not in kept:
        kept[key] = "seen"
        while len(kept) > KEPT:
            kept.popitem(last=False)
        return None
    kept.move_to_end(key)
    if kept[key] == "seen":
        kept[key] = _tried(explainer, view, images)
    state = kept[key]
    return state if isinstance(state, Recording) else None


def _tried(explainer: Explainer, view: View, images: Tensor) -> State:
    """A recording, if there can be one."""
    try:
        with view.still(), view.meter.apart() as made:
            return Recording(explainer, view, images, made)
    except RuntimeError:  # a model that waits for the device on its way, or no memory left to keep a pass in
        torch.cuda.synchronize(images.device)
        torch.cuda.empty_cache()
        return "impossible"
