"""Small random timm ViTs in float64, one for each way a head reads its tokens: what oracles are compared on."""

import timm
import torch
from torch import Tensor, nn

SIZES = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 6}

MODELS = {
    "class token": ("vit_tiny_patch16_224", {}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "average pooling": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "init_values": 0.5}),
}


def build(name: str, **options: object) -> nn.Module:
    """The model of that name, always with the same weights."""
    torch.manual_seed(1)
    base, own = MODELS[name]
    return timm.create_model(base, pretrained=False, **(SIZES | own | options)).double().eval()


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two maps agree to 1e-5, relative to the length of the expected one."""
    return bool(torch.linalg.norm(found.flatten() - expected.flatten()) <= 1e-5 * torch.linalg.norm(expected))
