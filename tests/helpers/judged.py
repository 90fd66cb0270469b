"""Cheap settings of every metric, and what there is to judge."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn

from helpers.zoo import pictures
from vitrail.metric import METRICS
from vitrail.model import View, load

QUICK = {
    "comprehensiveness": "comprehensiveness(shares=(0.3, 0.8){hide})",
    "sufficiency": "sufficiency(shares=(0.3, 0.8){hide})",
    "aic": "aic(thresholds=(0.1, 0.5))",
    "sic": "sic(thresholds=(0.1, 0.5))",
    "avg_sensitivity": "avg_sensitivity(samples=2)",
    "max_sensitivity": "max_sensitivity(samples=2)",
    "noise_floor": "noise_floor(samples=2)",
    "infidelity": "infidelity(samples=8)",
    "faithfulness_correlation": "faithfulness_correlation(samples=16)",
    "irof": "irof(segments=9, iterations=2)",
    "cascading_randomisation": "cascading_randomisation(steps=2)",
    "mprt_smooth": "mprt_smooth(steps=1, samples=2)",
    "road": "road(shares=(0.3, 0.7))",
    "road_morf": "road_morf(shares=(0.3, 0.7))",
    "road_lerf": "road_lerf(shares=(0.3, 0.7))",
}
"""What takes long by default; the rest runs as it is, with few steps. ``hide`` is for models without tokens."""


def quick(name: str, size: tuple[int, int] = (64, 64), *, tokens: bool = True) -> str:
    """A spec that costs few passes.

    Args:
        name: The metric.
        size: Of the pictures.
        tokens: Whether the model has patch tokens to take away.
    """
    fields = {field.name: field.default for field in dataclasses.fields(METRICS[name])}
    hide, step = "baseline=zero_norm", size[0] * size[1] // 4
    if name in QUICK:
        return QUICK[name].format(hide="" if tokens else f", {hide}")
    removes = "baseline" in fields and fields["baseline"] is None
    if removes:
        return name if tokens else f"{name}({hide}, step={step})"
    return f"{name}(step={step})" if "step" in fields and "shares" not in fields else name


SIZES = {"token": (64, 64), "oblong": (48, 80), "cnn": (64, 64)}


def model(name: str, images: Tensor) -> nn.Module:
    """A small model whose head is fitted to the pictures: each is surely of a class of its own."""
    torch.manual_seed(3)
    if name == "cnn":
        found = timm.create_model("resnet18", channels=(16, 32, 64, 128), num_classes=6).eval()
    else:
        how: dict[str, Any] = {"token": {}, "oblong": {"global_pool": "avg"}}[name]
        small = {"img_size": SIZES[name], "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 6}
        found = timm.create_model("vit_tiny_patch16_224", **small, **how).eval()
    head = found.get_classifier()
    with torch.no_grad():
        features = found.forward_head(found.forward_features(images), pre_logits=True)
        head.weight.copy_((4 * torch.linalg.pinv(features) @ torch.eye(len(images), 6)).T)
        head.bias.zero_()
    return found


@dataclass(frozen=True)
class Judged:
    """A model, pictures, their maps, and what is known of them."""

    view: View
    images: Tensor
    maps: Tensor
    masks: Tensor
    labels: list[int]
    tokens: bool

    @property
    def known(self) -> dict[str, Any]:
        """What `evaluate` is told."""
        return {"masks": self.masks, "labels": self.labels}


def judged(name: str, count: int = 4) -> Judged:
    """So many pictures with smooth signed maps at the model's grid, and an object in each."""
    size = SIZES[name]
    images = 1.5 * pictures(count, size)
    view = load(model(name, images), size=size)
    maps = torch.randn(count, *view.grid, generator=torch.Generator().manual_seed(5))
    masks = torch.zeros(count, *size, dtype=torch.int8)
    for i, mask in enumerate(masks):
        mask[4 * i + 4 : 4 * i + 28, 10:40] = 1
        mask[:, -3:] = -1
    return Judged(view, images, maps, masks, list(range(count)), name != "cnn")
