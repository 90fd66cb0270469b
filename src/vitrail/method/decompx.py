"""DecompX: the share of every token in the logit, exact once attention, normalisers and gates are held constant."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.method.base import Batch, register
from vitrail.method.layered import Layered, states_and_gradients
from vitrail.model import FROZEN, Need, View


@register(
    "decompx",
    family="decomposition",
    paper="Modarressi et al. 2023",
    cost="1 forward, 1 backward",
    needs=(Need.TOKENS,),
)
@dataclass(frozen=True)
class DecompX(Layered):
    """Each token's vector carried to the logit (without biases).

    The published code carries a (tokens x tokens x channels) tensor through every layer. With attention, normalisers
    and gates held constant the network is affine in its tokens, so the same numbers are input x gradient under that
    rule: one forward and one backward pass, for every start layer at once.

    Attributes:
        start: The block whose input tokens are decomposed.
    """

    start: int = 0

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        states, gradients = states_and_gradients(view, batch, start, FROZEN)
        return torch.stack([(x * g).sum(-1) for x, g in zip(states[:-1], gradients[:-1])])

    def maps(self, view: View, batch: Batch) -> Tensor:
        return view.patch_map(self.layers(view, batch, self.start)[0], view.layout(batch.size))
