"""Attention methods against the papers' matrix form, in float64."""

import pytest
import timm
import torch

import oracles.attention
import vitrail
from small import MODELS, SIZES, build, close
from vitrail.method import GenAtt, RawAttention, Rollout
from vitrail.model import load
from zoo import pictures


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", [RawAttention(), Rollout(), GenAtt()], ids=lambda method: method.id)
def test_agrees_with_the_matrix_form(model: str, method: vitrail.method.Method) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = method.attribute(view, images, target=[0, 5]).double()
    for image, target, found in zip(images, (0, 5), maps):
        expected = getattr(oracles.attention, method.id)(module, image, target)
        assert close(found, expected)


def test_start_leaves_early_blocks_out() -> None:
    torch.manual_seed(1)
    module = timm.create_model("vit_tiny_patch16_224", pretrained=False, **SIZES).eval()
    view = load(module)
    image = pictures(1, view.size)
    last = Rollout(start=3).attribute(view, image)
    attention = view.trace(image, attention=True).attention[-1].mean(1)[0]
    mixing = attention + torch.eye(len(attention))
    expected = (mixing / mixing.sum(-1, keepdim=True))[0, 1:].view(4, 4)
    assert torch.allclose(last[0], expected, atol=1e-6)


@pytest.mark.parametrize("layer", [-5, 4])
def test_a_layer_that_does_not_exist_is_refused(layer: int) -> None:
    view = load(timm.create_model("vit_tiny_patch16_224", pretrained=False, **SIZES))
    with pytest.raises(vitrail.InputError, match="has 4 blocks"):
        RawAttention(layer=layer).attribute(view, pictures(1, view.size))


def test_an_attention_pool_is_where_reading_begins() -> None:
    torch.manual_seed(1)
    options = SIZES | {"depth": 2}
    module = timm.create_model("vit_base_patch16_siglip_224", pretrained=False, **options).eval()
    view = load(module)
    image = pictures(1, view.size)
    trace = view.trace(image, attention=True)
    assert trace.pool is not None
    expected = trace.pool[0].mean(0)[0] @ trace.attention[-1][0].mean(0)
    found = RawAttention().attribute(view, image)[0]
    assert torch.allclose(found.flatten(), expected.detach(), atol=1e-6)
