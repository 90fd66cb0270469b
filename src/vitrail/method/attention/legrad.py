"""LeGrad: how each block's attention moves the score that the head would give to that very block's tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.fields import number
from vitrail.method.base import Method, register
from vitrail.method.batch import Batch
from vitrail.method.layered import DEEPEST
from vitrail.model import Layout, Need, View, full


@register(
    "legrad",
    paper="Bousselham et al. 2024",
    cost="1 forward, 1 backward block by block",
    needs=(Need.ATTENTION, Need.GRADIENTS),
)
@dataclass(frozen=True)
class LeGrad(Method):
    """The positive gradient of every block's own score with respect to its attention, over heads and rows, added up.

    The score s_l of block l is what the model's head answers to the tokens Z_l that leave the block. A head that reads
    class tokens is shown the mean of all tokens in their place, s_l = head(mean of Z_l); a head that averages patches
    averages those of Z_l. The map is the sum over blocks of the mean over heads and rows of (ds_l / dA_l)^+. Where the
    model pools by attention, s_l = head(Z_l), and the gradient is that of the pool's attention.

    Attributes:
        layers: How many blocks are taken in, counted from the last; all by default, as in the paper (the authors' code
            takes the last 2).
    """

    layers: int | None = number(None, low=1, high=DEEPEST)

    def maps(self, view: View, batch: Batch) -> Tensor:
        layout = view.layout(batch.size)
        start = max(0, view.depth - (self.layers or view.depth))
        trace = view.trace(batch.images, attention=True, start=start)
        batch.learn(trace.logits)
        found = []
        for block in range(start, view.depth):
            state = trace.states[block + 1]
            attention = trace.attention[block]
            with torch.enable_grad():
                if trace.pool is not None:
                    logits, pool = view.pooled(state, layout)
                    assert pool is not None
                    attention = pool
                else:
                    logits = view.head(shown(view, state, layout), layout)
                score = batch.target.score(logits)
            (gradient,) = view.gradient(score, [attention], again=True, counted=block == start)
            found.append(full(gradient).relu().mean((1, 2)))
        return view.patch_map(torch.stack(found).sum(0), layout)


def shown(view: View, state: Tensor, layout: Layout) -> Tensor:
    """What the head is given of a block's (B, T, D) tokens: themselves where it pools, else their mean everywhere."""
    if not view.readout.prefix:
        return state
    return state.mean(1, keepdim=True).expand(-1, layout.tokens, -1)
