"""FullGrad: what the input and every bias on the way add to the score.

Biases are heard in the functional calls of the model's own forward pass (``linear``, ``conv2d``, ``layer_norm``, ...),
so that none needs to be named, and fused layers that end in an activation still show theirs in front of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.method.base import RULES, Gradient, Method, register
from vitrail.method.batch import Batch
from vitrail.method.layered import Block, Layered, block_field, block_of, check_start
from vitrail.model import Hooks, Need, Rule, Trace, View, full

_HEARD = "_vitrail_biases"

Note = Callable[[Tensor, bool], Tensor]
"""What is kept of one bias: (bias x gradient, batch first; whether channels come last) -> (B, ...)."""


@dataclass
class Ledger:
    """One entry for each bias the gradient passed, noted on its way back.

    Attributes:
        entries: (block, note) of the last backward pass; what comes behind the last block counts as part of it.
        block: The block that is running.
        tokens_first: Whether (tokens, batch, channels) is being computed, inside ``torch.nn.MultiheadAttention``.
    """

    entries: list[tuple[int, Tensor]] = field(default_factory=list)
    block: int = 0
    tokens_first: bool = False


def _bias(*args: Any, position: int, **kwargs: Any) -> Tensor | None:
    bias: Tensor | None = kwargs["bias"] if "bias" in kwargs else args[position] if len(args) > position else None
    return bias


def _batch_norm_bias(
    input: Tensor,  # noqa: A002, ARG001  the argument's name in torch
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,  # noqa: ARG001
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor | None:
    """Batch normalisation is a scale and a shift: the shift is its bias, running mean included."""
    if running_mean is None or running_var is None:
        return bias
    scale = (running_var + eps).rsqrt() * (1 if weight is None else weight)
    return (0 if bias is None else bias) - running_mean * scale


_BIASES: dict[Callable[..., Any], tuple[Callable[..., Tensor | None], bool]] = {
    F.linear: (partial(_bias, position=2), True),
    F.layer_norm: (partial(_bias, position=3), True),
    F.conv2d: (partial(_bias, position=2), False),
    F.group_norm: (partial(_bias, position=3), False),
    F.batch_norm: (_batch_norm_bias, False),
}
"""The bias of each function's call, and whether its output has the channels last."""


def _listening(rule: Rule, ledger: Ledger, note: Note, name: str) -> Rule:
    """The same rule, with every bias entered in the ledger when the gradient comes by."""

    def heard(function: Callable[..., Any]) -> Callable[..., Tensor]:
        run: Callable[..., Any] = rule.calls.get(function, function)
        bias_of, last = _BIASES[function]

        def call(*args: Any, **kwargs: Any) -> Tensor:
            out: Tensor = run(*args, **kwargs)
            bias = bias_of(*args, **kwargs)
            if bias is not None and out.requires_grad:
                shaped = bias.detach() if last else bias.detach().view(-1, *[1] * (out.ndim - 2))
                block, swap = ledger.block, ledger.tokens_first

                # A hook hears the gradient of this very value, even if an in-place ReLU overwrites it afterwards.
                def passing(gradient: Tensor) -> None:
                    share = gradient * shaped
                    ledger.entries.append((block, note(share.transpose(0, 1) if swap else share, last)))

                out.register_hook(passing)
            return out

        return call

    return Rule(f"{rule.name}, {name}", rule.attention, {**rule.calls, **{f: heard(f) for f in _BIASES}})


@contextmanager
def _watched(view: View, ledger: Ledger) -> Iterator[None]:
    """Tell the ledger which block runs, and when tokens come before the batch."""

    def entering(block: int) -> Callable[..., None]:
        return lambda *_: setattr(ledger, "block", block)

    def swapping(first: bool) -> Callable[..., None]:
        return lambda *_: setattr(ledger, "tokens_first", first)

    with Hooks() as hooks:
        for i, block in enumerate(view.blocks.modules if view.blocks is not None else ()):
            hooks.before(block, entering(i))
        for module in view.model.modules():
            if isinstance(module, nn.MultiheadAttention):
                hooks.before(module, swapping(True))
                hooks.behind(module, swapping(False))
        yield


def trace_with_biases(
    view: View, batch: Batch, gradient: Gradient, note: Note, name: str, *, pixels: bool = False, start: int = 0
) -> tuple[Trace, Ledger]:
    """A trace, and the ledger that any backward pass through it fills anew (empty it before each).

    Args:
        view: The model.
        batch: The images.
        gradient: The backward rule.
        note: What to keep of each bias.
        name: The note's own name: traces that are remembered are told apart by it.
        pixels: Reach back to the pixels.
        start: The block the graph begins at.
    """
    ledger = Ledger()
    rule = _listening(RULES[gradient], ledger, note, name)
    with view.still(), _watched(view, ledger):
        trace = view.trace(batch.images, rule=rule, pixels=pixels, start=start)
    # A remembered trace has another call's hooks: its ledger travels with the logits.
    ledger = vars(trace.logits).setdefault(_HEARD, ledger)
    ledger.entries.clear()
    return trace, ledger


def scaled(share: Tensor) -> Tensor:
    """Absolute values of each image, brought to 0..1 over all channels and places."""
    size = full(share.abs())
    flat = size.flatten(1)
    low, high = flat.amin(1), flat.amax(1)
    shape = (-1, *[1] * (size.ndim - 1))
    return (size - low.view(shape)) / (high - low + 1e-6).view(shape)


@register("fullgrad", paper="Srinivas and Fleuret 2019", cost="1 forward, 1 backward")
@dataclass(frozen=True)
class FullGrad(Method):
    """Input x gradient plus bias x gradient of every layer, absolute, each layer brought to 0..1 before they add up.

    Layers count where their output is laid out as a picture: convolutions and batch, group or layer norms of a CNN
    (a batch norm with its effective bias, running mean included), and on a ViT the patch embedding and every linear
    layer and layer norm over patch tokens (prefix tokens are left out). Layers behind the pooling and inside attention
    windows have no place in the picture and add nothing. Maps are stretched to the pixels (bilinear, corners aligned).

    Attributes:
        gradient: The model's own gradient, or the frozen one.
    """

    pixels: ClassVar[bool] = True
    gradient: Gradient = "true"

    def maps(self, view: View, batch: Batch) -> Tensor:
        layout = None if view.blocks is None else view.layout(batch.size)

        def note(share: Tensor, last: bool) -> Tensor:
            """(B, rows, columns), channels added up; nothing where there is no picture."""
            if layout is not None and last:
                if share.ndim < 3 or share.shape[0] != len(batch) or share.shape[-2] != layout.tokens:
                    return share.new_zeros(0)
                return scaled(view.patch_map(_token_rows(share).transpose(1, 2), layout)).sum(1)
            if share.ndim != 4 or share.shape[0] != len(batch):
                return share.new_zeros(0)
            return scaled(share).sum(-1 if last else 1)

        name = f"pictures of {len(batch)} x {batch.size}"
        trace, ledger = trace_with_biases(view, batch, self.gradient, note, name, pixels=True)
        (gradient,) = view.gradient(batch.learn(trace.logits).score(trace.logits), [trace.images])
        total = scaled(gradient * batch.images).sum(1)
        for _, picture in ledger.entries:
            if len(picture):
                total += F.interpolate(picture[:, None], batch.size, mode="bilinear", align_corners=True)[:, 0]
        return total


@register("fullgrad_plus", paper="Mehri et al. 2024", cost="1 forward, 1 backward", needs=(Need.TOKENS, Need.GRADIENTS))
@dataclass(frozen=True)
class FullGradPlus(Layered):
    """Token x gradient plus bias x gradient of every later layer at that token, signed and not normalised.

    Every linear layer and layer norm in the blocks from ``start`` on counts, queries, keys and values included, and the
    final norm. Biases without a token (the classifier's, a norm behind the pooling) go to the first prefix token, so
    that with ``gradient=frozen`` the tokens of a model with a class token add up to the logit. What lies before the
    first block (patch embedding, positions, a norm before the blocks) is part of its input tokens.

    PLUS takes every bias once: ``plus(fullgrad_plus)`` adds token x gradient of all blocks and each bias, where the sum
    of the layers' own maps would count a bias again for every block in front of it.

    Attributes:
        start: The block whose input tokens are taken by the method alone: from 0, from the end when negative,
            ``middle`` or ``last``.
        gradient: The model's own gradient, or the frozen one.
    """

    start: Block = block_field(0, alone=True)
    gradient: Gradient = "true"

    @property
    def signed(self) -> bool:
        return True

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        products, biases = self.parts(view, batch, start)
        return products + biases.flip(0).cumsum(0).flip(0)

    def increments(self, view: View, batch: Batch, start: int) -> Tensor:
        products, biases = self.parts(view, batch, start)
        return products + biases

    def parts(self, view: View, batch: Batch, start: int) -> tuple[Tensor, Tensor]:
        """Token x gradient at the input of each block from ``start`` on, and its own biases' shares: (layers, B, T)."""
        check_start(start, view)
        layout = view.layout(batch.size)

        def note(share: Tensor, _: bool) -> Tensor:
            """(B, T), or (B, 1) for a bias without a token."""
            if share.ndim > 2 and share.shape[0] == len(batch) and share.shape[-2] == layout.tokens:
                return _token_rows(full(share)).sum(-1)
            if share.shape[0] == len(batch):
                return full(share).flatten(1).sum(1, keepdim=True)
            return share.new_zeros(0)

        name = f"tokens of {len(batch)} x {batch.size}"
        trace, ledger = trace_with_biases(view, batch, self.gradient, note, name, start=start)
        states = trace.states[start:-1]
        gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), states)
        products = torch.stack([(full(x.detach()) * full(g)).sum(-1) for x, g in zip(states, gradients)])
        biases = torch.zeros_like(products)
        for block, shares in ledger.entries:
            if shares.shape == products.shape[1:]:
                biases[block - start] += shares
            elif len(shares) and layout.prefix:
                biases[block - start, :, 0] += shares[:, 0]
        return products, biases

    def maps(self, view: View, batch: Batch) -> Tensor:
        return view.patch_map(self.layers(view, batch, block_of(self.start, view))[0], view.layout(batch.size))


def _token_rows(share: Tensor) -> Tensor:
    """(B, T, channels) from (B, T, channels), or from (B, heads, T, channels) with the heads laid side by side."""
    return share if share.ndim == 3 else share.flatten(1, -3).permute(0, 2, 1, 3).flatten(2)
