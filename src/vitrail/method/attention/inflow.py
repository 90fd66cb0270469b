"""InFlow: attention, skip connections and MLPs of every block in the shares their lengths have in the tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.method.attention.biattn import head_importance
from vitrail.method.base import Method, register
from vitrail.method.batch import Batch
from vitrail.method.layered import weighted
from vitrail.model import Hooks, Layout, Need, View, full


@register(
    "inflow",
    paper="Walker et al. 2025",
    cost="2 forwards, 1 backward, 1 backward block by block",
    needs=(Need.ATTENTION, Need.GRADIENTS),
)
@dataclass(frozen=True)
class InFlow(Method):
    """Rollout of each block's most important heads, with skip connection and MLP weighed by their lengths.

    For block l with input z, attention branch a, r = z + a and MLP branch m, lengths taken token by token:
    Q = max over heads of I_h A_h (I_h as in ``bt_h``), Q <- (gbar Q)^+ with gbar the heads' mean of dy_l / dA_l;
    w_a = |a| / (|z| + |a|), w_z = 1 - w_a, w_m = |m| / (|r| + |m|), w_r = 1 - w_m, rho = w_m / w_r over its sum;
    B_l = (Q diag(w_a) + diag(w_z)) diag(rho w_m + w_r), rows summing to one. The map is the readout's row of the
    product. y_l is the score of block l's own tokens: the mean of the head's answers to each token in the class token's
    place (the head of the mean, where it is linear), the head itself where a model pools.
    """

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(2, 2)

    def maps(self, view: View, batch: Batch) -> Tensor:
        layout = view.layout(batch.size)
        trace = view.trace(batch.images, attention=True)
        gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), trace.attention, again=True)
        row = view.readout_weights(trace, layout)
        view.meter.begin(len(batch))  # every block is run once more for its branches
        places = fewest_read(view, trace.states[-1], layout)
        for block in reversed(range(view.depth)):
            attention = trace.attention[block]
            with torch.enable_grad():
                score = batch.target.score(own_logits(view, trace.states[block + 1], layout, places))
            (own,) = view.gradient(score, [attention], again=True, counted=block == 0)
            attention = full(attention.detach())
            chosen = (attention * head_importance(attention, gradients[block])[:, :, None, None]).amax(1)
            chosen = (chosen * full(own).mean(1)).relu()
            skip, mixed, kept = _shares(view, trace.states[block].detach(), layout, block)
            # One row through B = (Q diag(mixed) + diag(skip)) diag(kept), without building B.
            sums = (chosen @ (mixed * kept)[:, :, None])[:, :, 0] + skip * kept
            row = row / sums
            row = (weighted(row, chosen) * mixed + row * skip) * kept
        return view.patch_map(row, layout)


def fewest_read(view: View, state: Tensor, layout: Layout) -> int:
    """How many tokens the head must be given, where it reads class tokens: all, if it lays them out as a square."""
    places = layout.prefix + int(view.readout.patches)
    try:
        with torch.no_grad():
            view.head(state[:1, :places].detach(), layout)
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, IndexError, RuntimeError, ValueError):
        return layout.tokens
    return places


def own_logits(view: View, state: Tensor, layout: Layout, places: int) -> Tensor:
    """(B, T, D) tokens of any block -> (B, classes): what the head makes of them, shown each in ``places`` places."""
    if not view.readout.prefix:
        return view.head(state, layout)
    answers = view.head(state.flatten(0, 1)[:, None].expand(-1, places, -1), layout)
    mean: Tensor = answers.unflatten(0, state.shape[:2]).mean(1)
    return mean


def _shares(view: View, entering: Tensor, layout: Layout, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T) each: the share of the skip connection and of the attention, and what the MLP makes of both."""
    middle, leaving = _branches(view, entering, layout, block)
    z, a, r, m = (full(x).norm(dim=-1) for x in (entering, middle - entering, middle, leaving - middle))
    tiny = torch.finfo(z.dtype).tiny
    before, behind = (z + a).clamp_min(tiny), (r + m).clamp_min(tiny)
    ratio = m / r.clamp_min(tiny)
    ratio = ratio / ratio.sum(-1, keepdim=True).clamp_min(tiny)
    return z / before, a / before, (ratio * m + r) / behind


def _branches(view: View, entering: Tensor, layout: Layout, block: int) -> tuple[Tensor, Tensor]:
    """The tokens between a block's attention and its MLP, and those behind it: its second norm is given the former."""
    assert view.blocks is not None
    given: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].shape == entering.shape:
            given.append(args[0])

    with view.still(), Hooks() as hooks, torch.no_grad():
        for module in view.blocks.modules[block].modules():
            if "norm" in type(module).__name__.lower():
                hooks.before(module, note)
        projection = view.blocks.projections[block]
        if projection is not None:  # norms inside the attention (EVA-02) do not count
            hooks.behind(projection, lambda *_: given.__delitem__(slice(1, None)))
        leaving = view.encode(entering, layout, start=block, stop=block + 1)[-1]
    if len(given) != 2 or not torch.equal(given[0], entering):
        raise InputError(
            f"inflow needs blocks with one norm before attention and one before the MLP, which {view.name} does not "
            "have; use bt_h"
        )
    return given[1], leaving
