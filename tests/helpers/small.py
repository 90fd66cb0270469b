"""Small random timm ViTs, one for each way a head reads its tokens, and cheap settings of every method."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import timm
import torch
from torch import Tensor, nn

from vitrail.method import Batch, Method, parse
from vitrail.model import Need, View, load, resolve

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


QUICK = {
    "ig": "ig(steps=3)",
    "smoothgrad": "smoothgrad(samples=2)",
    "scorecam": "scorecam(channels=4)",
    "ablationcam": "ablationcam(channels=4)",
    "bt_h": "bt_h(steps=3)",
    "bt_t": "bt_t(steps=3)",
    "t_attn": "t_attn(steps=3)",
    "rise": "rise(masks=4)",
    "occlusion": "occlusion(window={half}, stride={half})",
    "pami": "pami(window={half}, stride={half})",
    "lime": "lime(samples=4)",
    "kernel_shap": "kernel_shap(samples=3)",
    "shapley": "shapley(samples=1, antithetic=False, grid=2)",
    "hsic": "hsic(designs=4, grid=2)",
    "tis": "tis(masks=6)",
    "vit_cx": "vit_cx(masks=3)",
    "atman": "atman(grid=2)",
    "less_is_more": "less_is_more(regions=(1, 2))",
    "mda": "mda(seed=None, cells=2, baseline=zero_norm)",
}
"""Cheaper settings where the defaults take long; everything else runs as it is. ``half`` is half of the longer side."""


def quick(name: str, size: tuple[int, int] = (64, 64)) -> Method:
    return parse(QUICK.get(name, name).format(half=max(size) // 2))


def small_vit(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    settings = {"img_size": 64, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 6}
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, **(settings | options)).eval()


def serving(method: Method) -> nn.Module:
    """A small model that offers all a method needs."""
    vit = small_vit()
    return vit if method.requirements() <= load(vit).offers else timm.create_model("resnet18", num_classes=6).eval()


@cache
def shared(relu: bool) -> View:
    """The view of such a model, made once: a test must not change it."""
    return load(serving(parse("gbp" if relu else "random")), size=(96, 96) if relu else (64, 64))


def served_by(method: Method) -> View:
    """The shared view of a small model that offers all a method needs."""
    return shared(Need.RELU in method.requirements())
