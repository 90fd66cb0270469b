"""Attention methods against the papers' matrix form, in float64."""

import pytest
import timm
import torch

import oracles.attention
import vitrail
from helpers.oracle import oracle
from helpers.small import MODELS, SIZES, build, close, exact
from helpers.zoo import pictures
from vitrail.method import GenAtt, RawAttention, Rollout
from vitrail.model import load


@oracle("genatt", "raw_attention", "rollout")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", [RawAttention(), Rollout(), GenAtt()], ids=lambda method: method.id)
def test_agrees_with_the_matrix_form(model: str, method: vitrail.method.Method) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = exact(method, view, images, [0, 5])
    for image, target, found in zip(images, (0, 5), maps):
        expected = getattr(oracles.attention, method.id)(module, image, target)
        assert close(found, expected)


def test_start_leaves_early_blocks_out() -> None:
    module = build("class token")
    image = pictures(1, (64, 64)).double()
    attention, _ = oracles.attention.read(module, image[0], 0)
    mixing = attention[-1].mean(0) + torch.eye(17)
    expected = (mixing / mixing.sum(-1, keepdim=True))[0, 1:]
    assert close(exact(Rollout(start=3), module, image, 0), expected)


@pytest.mark.parametrize("layer", [-5, 4])
def test_a_layer_that_does_not_exist_is_refused(layer: int) -> None:
    view = load(timm.create_model("vit_tiny_patch16_224", pretrained=False, **SIZES))
    with pytest.raises(vitrail.InputError, match="has 4 blocks"):
        RawAttention(layer=layer).attribute(view, pictures(1, view.size))
