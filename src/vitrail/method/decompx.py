"""DecompX: the share of every token in the logit, exact once attention, normalisers and gates are held constant."""

from dataclasses import dataclass

from torch import Tensor

from vitrail.method.attention import check_start
from vitrail.method.base import Batch, Method, register
from vitrail.model import FROZEN, Need, View


@register(
    "decompx",
    family="decomposition",
    paper="Modarressi et al. 2023",
    cost="1 forward, 1 backward",
    needs=(Need.TOKENS,),
)
@dataclass(frozen=True)
class DecompX(Method):
    """Each token's vector carried to the logit (without biases).

    The published code carries a (tokens x tokens x channels) tensor through every layer. With attention, normalisers
    and gates held constant the network is affine in its tokens, so the same numbers are input x gradient under that
    rule: one forward and one backward pass.

    Attributes:
        start: The block whose input tokens are decomposed.
    """

    start: int = 0

    def maps(self, view: View, batch: Batch) -> Tensor:
        check_start(self.start, view)
        trace = view.trace(batch.images, rule=FROZEN, start=self.start)
        state = trace.states[self.start]
        (gradient,) = view.gradient(batch.score(trace.logits), [state])
        return view.patch_map((state.detach() * gradient).float().sum(-1), view.layout(batch.size))
