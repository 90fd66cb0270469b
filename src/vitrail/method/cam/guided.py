"""Guided Grad-CAM: where Grad-CAM and guided backpropagation agree."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from vitrail.events import Passes
from vitrail.method.base import Method, register
from vitrail.method.batch import Batch
from vitrail.method.cam.gradients import GradCAM
from vitrail.method.gradient.guided import Reduce, guided_gradient, reduced
from vitrail.model import Need, View


@register(
    "guided_gradcam",
    paper="Selvaraju et al. 2017",
    cost="2 forwards, 2 backwards",
    needs=(Need.FEATURES, Need.GRADIENTS, Need.RELU),
)
@dataclass(frozen=True)
class GuidedGradCAM(Method):
    """Guided backpropagation times Grad-CAM's positive part, stretched to the pixels.

    Attributes:
        upsample: How Grad-CAM is stretched: ``bilinear``, or ``nearest`` as Captum does by default.
        reduce: How colour channels are added up: ``abs``, ``sum`` or ``norm2``.
    """

    pixels: ClassVar[bool] = True
    upsample: Literal["bilinear", "nearest"] = "bilinear"
    reduce: Reduce = "abs"

    @property
    def signed(self) -> bool:
        return self.reduce == "sum"

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(2, 2)

    def maps(self, view: View, batch: Batch) -> Tensor:
        cam = GradCAM().maps(view, batch)[:, None]
        corners = False if self.upsample == "bilinear" else None
        cam = F.interpolate(cam, batch.size, mode=self.upsample, align_corners=corners)[:, 0]
        return cam * reduced(guided_gradient(view, batch), self.reduce)
