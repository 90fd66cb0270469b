"""Small random timm ViTs in float64, one for each way a head reads its tokens: what oracles are compared on."""

from collections.abc import Sequence

import timm
import torch
from torch import Tensor, nn

from vitrail.method import Batch, Method, parse
from vitrail.model import View, load, resolve

SIZES = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 6}

MODELS = {
    "class token": ("vit_tiny_patch16_224", {}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "average pooling": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "init_values": 0.5}),
    "attention pool": ("vit_base_patch16_siglip_224", {}),
}


def build(name: str, **options: object) -> nn.Module:
    """The model of that name, always with the same weights."""
    torch.manual_seed(1)
    base, own = MODELS[name]
    return timm.create_model(base, pretrained=False, **(SIZES | own | options)).double().eval()


def exact(method: Method | str, model: nn.Module | View, images: Tensor, target: int | Sequence[int]) -> Tensor:
    """A method's maps in float64, before `Method.attribute` rounds them to float32."""
    method = parse(method)
    view, resolved = resolve(load(model), target, len(images))
    method.check(view)
    with view.still():
        return method.maps(view, Batch(images.to(view.device), resolved)).detach()


def off(found: Tensor, expected: Tensor) -> float:
    """How far two float64 tensors lie apart, relative to the length of the expected one."""
    assert found.dtype == expected.dtype == torch.float64
    expected = expected.detach()
    return float(torch.linalg.norm(found.flatten() - expected.flatten()) / torch.linalg.norm(expected))


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two float64 tensors agree to 1e-7 relative: hardly more than one rounding to float32 on the way."""
    return off(found, expected) <= 1e-7
