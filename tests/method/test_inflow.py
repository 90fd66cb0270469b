"""InFlow against whole matrices, in float64."""

import pytest
import timm
import torch
from torch import nn

import oracles.inflow
import vitrail
from vitrail.method import InFlow
from vitrail.model import load
from zoo import pictures

_SMALL = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 6}

MODELS = {
    "class token": ("vit_tiny_patch16_224", {}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "average pooling": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "init_values": 0.5}),
}


def _model(name: str, **options: object) -> nn.Module:
    torch.manual_seed(1)
    base, own = MODELS[name]
    return timm.create_model(base, pretrained=False, **(_SMALL | own | options)).double().eval()


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(torch.linalg.norm(found.flatten() - expected) <= 1e-5 * torch.linalg.norm(expected))


@pytest.mark.parametrize("model", MODELS)
def test_agrees_with_the_matrix_form(model: str) -> None:
    module = _model(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = InFlow().attribute(view, images, target=[0, 5]).double()
    for image, target, found in zip(images, (0, 5), maps):
        assert _close(found, oracles.inflow.inflow(module, image, target))


def test_blocks_without_two_norms_are_refused() -> None:
    module = _model("class token").float()
    for block in module.blocks:
        block.norm2 = nn.Identity()
    view = load(module)
    with pytest.raises(vitrail.InputError, match="inflow needs blocks with one norm before attention"):
        vitrail.explain(view, pictures(1, view.size), "inflow")
    assert not any(m._forward_pre_hooks for m in module.modules()), "the hooks are gone, also after the refusal"


def test_it_can_be_compared_between_classes() -> None:
    view = load(_model("class token").float())
    assert torch.isfinite(vitrail.explain(view, pictures(2, view.size), "var(inflow, classes=top2)").maps).all()
