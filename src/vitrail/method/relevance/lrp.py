"""Relevance propagated backwards from the score: to the attention (T-Attr, partial LRP), the tokens or the pixels."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import number, unseen
from vitrail.method.base import register
from vitrail.method.batch import Batch
from vitrail.method.layered import Block, Layered, Mixing, alone, block_field, block_of, check_start, weighted
from vitrail.model import Entry, Need, Relevance, View, full, relevances, trace_pixels, trace_tokens

CONSERVING = Relevance(dense="plus", convolution="plus", renormalise=True)
"""The rules of T-Attr."""

ORIGINAL = Relevance(dense="split", convolution="split")
"""The LRP its authors compare with: positive and negative parts each take all the relevance."""

AttentionRules = Literal["original", "conserving"]
Start = Literal["one", "logit"]
_BY_NAME = {"original": ORIGINAL, "conserving": CONSERVING}


def attention_relevance(view: View, batch: Batch, rules: Relevance, start: int) -> tuple[list[Tensor], Tensor]:
    """The (B, heads, T, T) relevance of the attention of each block from ``start`` on, and the readout's (B, T) row."""
    check_start(start, view)
    trace = trace_tokens(view, batch.images, rules, start)
    found = relevances(view, batch.learn(trace.logits).score(trace.logits), trace.attention)
    return found, view.readout_weights(trace, view.layout(batch.size))


@register("t_attr", paper="Chefer et al. 2021a", cost="2 forwards, 2 backwards", needs=(Need.ATTENTION, Need.GRADIENTS))
@dataclass(frozen=True)
class TAttr(Mixing):
    """Attention's relevance times its gradient, positive part, rolled out with the skip connections.

    Attributes:
        start: The first block taken in: counted from 0, from the end when negative, ``middle`` or ``last``. The
            authors' benchmarks leave block 0 out.
        normalise: Make the rows sum to one, as later comparisons with this method do.
    """

    identity: ClassVar[bool] = True
    start: Block = block_field(0, alone=True)
    normalise: bool = alone(False, "rollout")  # type: ignore[misc]

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(2, 2)

    def matrices(self, view: View, batch: Batch, start: int) -> tuple[list[Tensor], Tensor]:
        found, row = attention_relevance(view, batch, CONSERVING, start)
        trace = view.trace(batch.images, attention=True, start=start)
        gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), trace.attention[start:])
        return [(r * full(gradient)).relu().mean(1) for r, gradient in zip(found, gradients)], row

    def rolled(self, view: View, batch: Batch, start: int) -> Tensor:
        if self.normalise:
            return super().rolled(view, batch, start)
        matrices, row = self.matrices(view, batch, start)
        # Without the readout's own row, a constant over patches that would drown small relevances where a mean is read.
        moved = torch.zeros_like(row)
        for matrix in reversed(matrices):
            moved = moved + weighted(row + moved, matrix)
        return moved

    def maps(self, view: View, batch: Batch) -> Tensor:
        return view.patch_map(self.rolled(view, batch, block_of(self.start, view)), view.layout(batch.size))


@register(
    "partial_lrp", paper="Voita et al. 2019", cost="1 forward, 1 backward", needs=(Need.ATTENTION, Need.GRADIENTS)
)
@dataclass(frozen=True)
class PartialLRP(Mixing):
    """The positive relevance of one layer's attention, as the head reads it.

    Attributes:
        layer: The block: counted from 0, from the end when negative, ``middle`` or ``last``.
        rules: The ``original`` rules, or the ``conserving`` ones of T-Attr.
    """

    identity: ClassVar[bool] = True
    normalise: ClassVar[bool] = False
    layer: Block = block_field(-1, alone=True)
    rules: AttentionRules = "original"

    def matrices(self, view: View, batch: Batch, start: int) -> tuple[list[Tensor], Tensor]:
        found, row = attention_relevance(view, batch, _BY_NAME[self.rules], start)
        return [r.relu().mean(1) for r in found], row

    def maps(self, view: View, batch: Batch) -> Tensor:
        found = self.layers(view, batch, block_of(self.layer, view, "layer"))
        return view.patch_map(found[0], view.layout(batch.size))


@register("lrp", paper="Bach et al. 2015; Montavon et al. 2019", cost="1 forward, 1 backward")
@dataclass(frozen=True)
class LRP(Layered):
    """The score handed back layer by layer, each input taking its share, down to the pixels or the tokens.

    Attributes:
        to: One value a pixel, or one a token that enters the first block.
        rules: ``composite`` (epsilon on dense layers, z-plus on convolutions), ``original`` or ``conserving`` as in
            `PartialLRP`; ``auto`` takes ``original`` on models with token blocks, else ``composite``.
        entry: The rule of a convolution on the pixels: z^B (``box``), evenly (``flat``), or as elsewhere (``plain``).
        epsilon: The stabiliser of ``composite``'s dense layers.
        start: The relevance the score starts with: ``one``, or the ``logit`` itself as Bach et al. have it. Maps of one
            class differ in scale (and sign, where the logit is negative); it counts where classes are compared.
        wide: Calculate in float64. Without, a map of pixels is made in the model's own type, several times faster; good
            for CNNs of convolutions, batch norms and ReLUs, and for these alone.
    """

    to: Literal["pixels", "tokens"] = alone("pixels")
    rules: Literal["auto", "composite", "original", "conserving"] = unseen(
        "auto",
        original="auto takes it on models with token blocks",
        composite="auto takes it on models without token blocks",
    )
    entry: Entry = alone("box")
    epsilon: float = number(1e-6, above=0, high=1_000_000)
    start: Start = "one"
    wide: bool = alone(True)

    def __post_init__(self) -> None:
        if not self.wide and self.to == "tokens":
            raise InputError("lrp(wide=False) is for CNNs, which have no tokens; leave out to=tokens")
        if self.to == "tokens" and self.entry != "box":
            raise InputError(
                f"lrp's entry is the rule of a convolution on the pixels, which to=tokens does not reach, but "
                f"entry={self.entry} was given; leave it out"
            )
        if self.rules in _BY_NAME:
            self._refuse_epsilon(f"rules={self.rules}")

    @property
    def signed(self) -> bool:
        return True

    def requirements(self) -> frozenset[Need]:
        return self.needs | {Need.TOKENS} if self.to == "tokens" else self.needs

    def shape(self, view: View, size: tuple[int, int]) -> tuple[int, int]:
        return size if self.to == "pixels" else view.grid_at(size)

    def maps(self, view: View, batch: Batch) -> Tensor:
        if self.to == "tokens":
            return view.patch_map(self.layers(view, batch, 0)[0], view.layout(batch.size))
        if not self.wide and view.blocks is not None:
            raise InputError(f"lrp(wide=False) is for CNNs, but {view.name} has token blocks; use lrp")
        logits, leaves = trace_pixels(view, batch.images, self._chosen(view), self.entry, self.wide)
        found = relevances(view, batch.learn(logits).score(logits), leaves, self.start == "logit")
        return torch.stack(found).sum((0, 2))

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        check_start(start, view)
        trace = trace_tokens(view, batch.images, self._chosen(view), start)
        found = relevances(
            view, batch.learn(trace.logits).score(trace.logits), trace.states[:-1], self.start == "logit"
        )
        return torch.stack([r.sum(-1) for r in found])

    def check(self, view: View) -> None:
        super().check(view)
        if self._chosen(view) is ORIGINAL:
            self._refuse_epsilon(f"{view.name}, whose rules are original,")

    def check_layers(self, view: View, start: int, composition: str) -> None:
        self.check(view)

    def _refuse_epsilon(self, where: str) -> None:
        if self.epsilon != type(self).epsilon:
            raise InputError(
                f"lrp's epsilon is the stabiliser of the composite rules, but epsilon={self.epsilon} was given for "
                f"{where}; use rules=composite, or leave it out"
            )

    def _chosen(self, view: View) -> Relevance:
        if self.rules in _BY_NAME:
            return _BY_NAME[self.rules]
        if self.rules == "auto" and view.blocks is not None:
            return ORIGINAL
        return Relevance(dense="epsilon", convolution="plus", epsilon=self.epsilon)
