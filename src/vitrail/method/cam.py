"""Class activation maps: the last spatial features, weighted for the class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.method.base import RULES, Batch, Gradient, register
from vitrail.method.layered import Layered, states_and_gradients
from vitrail.model import Need, View


@register("gradcam", family="cam", paper="Selvaraju et al. 2017", cost="1 forward, 1 backward", needs=(Need.FEATURES,))
@dataclass(frozen=True)
class GradCAM(Layered):
    """Features weighted by their mean gradient, positive part.

    On a ViT the features are the patch tokens after the last block's first normalisation, on a CNN the last map before
    pooling; neither needs to be named.

    Attributes:
        relu: Keep the positive part only.
        gradient: The model's own gradient, or the frozen one.
    """

    relu: bool = True
    gradient: Gradient = "true"

    def maps(self, view: View, batch: Batch) -> Tensor:
        # On a ViT the features lie in the last block: the graph needs to reach no further back.
        trace = view.trace(batch.images, rule=RULES[self.gradient], start=max(view.depth - 1, 0))
        (gradient,) = view.gradient(batch.score(trace.logits), [trace.entry])
        features = view.spatial(trace.entry.detach(), batch.size).float()
        weights = view.spatial(gradient, batch.size).float().mean((2, 3), keepdim=True)
        cam = (weights * features).sum(1)
        return cam.relu() if self.relu else cam

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        """Channel weights are means over all tokens, prefix tokens included; signs are kept for the sum."""
        states, gradients = states_and_gradients(view, batch, start, RULES[self.gradient])
        return torch.stack([(g.mean(1, keepdim=True) * x).sum(-1) for x, g in zip(states[:-1], gradients[:-1])])
