"""Hiding tokens: the two forms agree with each other, and with the model's own blocks run by hand."""

import pytest
import torch

from helpers.homemade import Unfolded, half_kept, near
from helpers.zoo import TOKEN_MODELS, module, pictures, view_of
from vitrail.errors import InputError
from vitrail.model import load, removal

ROTARY_OR_BIASED = {"beit_base", "eva02_tiny"}


@pytest.mark.parametrize("ragged", [False, True], ids=["equal", "ragged"])
@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_gather_and_mask_agree(name, ragged):
    found = view_of(name)
    layout = found.layout(found.size)
    tokens = found.embed(pictures(3, found.size))
    keep = half_kept(3, layout.patches, ragged=ragged)
    masked = found.respond(tokens, keep, layout, "mask")
    if name in ROTARY_OR_BIASED:
        assert not removal.can_gather(found, tokens[:1], layout)
        assert near(found.respond(tokens, keep, layout), masked, 1e-6)
        return
    assert removal.can_gather(found, tokens[:1], layout)
    assert near(found.respond(tokens, keep, layout, "gather"), masked)
    everything = torch.ones_like(keep)
    assert not near(masked, found.respond(tokens, everything, layout), 1e-4)  # hiding half does change the answer


@pytest.mark.parametrize("name", ["deit_tiny_distilled", "eva02_tiny", "siglip"])
def test_patches_can_be_named_instead(name):
    found = view_of(name)
    layout = found.layout(found.size)
    tokens = found.embed(pictures(2, found.size))
    named = torch.stack([torch.randperm(layout.patches, generator=torch.Generator().manual_seed(i)) for i in (0, 1)])
    named = named[:, :50]
    keep = torch.zeros(2, layout.patches, dtype=torch.bool).scatter_(1, named, True)
    assert near(found.respond(tokens, named, layout), found.respond(tokens, keep, layout))
    for wrong in (named[:, :0], named[:1], named.float()):
        with pytest.raises(InputError, match="keep must be a boolean"):
            found.respond(tokens, wrong, layout)


@pytest.mark.parametrize("form", ["gather", "mask"])
def test_respond_against_timms_own_blocks(form):
    """The independent check: timm's fused blocks, run by hand on the tokens that are left."""
    found, model, images = view_of("vit_tiny_patch16_224"), module("vit_tiny_patch16_224"), pictures(2, (224, 224))
    assert model.blocks[0].attn.fused_attn
    layout = found.layout((224, 224))
    keep = half_kept(2, 196, ragged=True)
    with torch.no_grad():
        tokens = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
        assert near(found.embed(images), tokens, 1e-6)
        everything = found.respond(tokens, torch.ones_like(keep), layout, form)
        assert near(everything, model(images))
        expected = []
        for row, stays in zip(tokens, keep):
            left = torch.cat([row[:1], row[1:][stays]])[None]
            for block in model.blocks:
                left = block(left)
            expected.append(model.forward_head(model.norm(left)))
        assert near(found.respond(tokens, keep, layout, form), torch.cat(expected))


@pytest.mark.parametrize("form", ["gather", "mask"])
def test_dropped_tokens_are_left_out_of_the_mean(form):
    found, model, images = view_of("average_pooled"), module("average_pooled"), pictures(1, (224, 224))
    layout, keep = found.layout((224, 224)), half_kept(1, 196, ragged=False)
    with torch.no_grad():
        tokens = model._pos_embed(model.patch_embed(images))
        left = torch.cat([tokens[:, :1], tokens[:, 1:][keep][None]], 1)
        for block in model.blocks:
            left = block(left)
        expected = model.head(model.fc_norm(model.norm(left)[:, 1:].mean(1)))
    assert near(found.respond(tokens, keep, layout, form), expected)


@pytest.mark.parametrize("name", ["average_pooled", "siglip", "hf_dinov2_registers", "eva02_tiny"])
def test_a_model_that_pools_patches_needs_one(name):
    found = view_of(name)
    layout, tokens = found.layout(found.size), found.embed(pictures(2, found.size))
    keep = torch.zeros(2, layout.patches, dtype=torch.bool)
    keep[0, 3] = True
    with pytest.raises(InputError, match="at least one patch must be kept"):
        found.respond(tokens, keep, layout)
    keep[1, 0] = True
    assert torch.isfinite(found.respond(tokens, keep, layout)).all()


@pytest.mark.parametrize("name", ["deit_tiny_distilled", "dinov2_reg4", "torchvision_vit_b_32"])
def test_a_class_token_answers_without_any_patch(name):
    found = view_of(name)
    layout, tokens = found.layout(found.size), found.embed(pictures(2, found.size))
    keep = torch.zeros(2, layout.patches, dtype=torch.bool)
    gathered = found.respond(tokens, keep, layout, "gather")
    assert torch.isfinite(gathered).all()
    assert near(found.respond(tokens, keep, layout, "mask"), gathered)
    assert near(gathered[:1], gathered[1:])  # nothing of the pictures is left to tell them apart


@pytest.mark.parametrize(
    "keep",
    [
        torch.ones(2, 195, dtype=torch.bool),
        torch.ones(2, 197, dtype=torch.bool),
        torch.ones(1, 196, dtype=torch.bool),
        torch.ones(196, dtype=torch.bool),
        torch.ones(2, 196),
        torch.ones(2, 196, dtype=torch.long),
    ],
    ids=lambda keep: f"{keep.dtype} {tuple(keep.shape)}",
)
def test_keep_of_a_wrong_shape_or_type(keep):
    found = view_of("vit_tiny_patch16_224")
    tokens = torch.zeros(2, 197, 192)
    with pytest.raises(InputError, match=r"keep must be a boolean \(2, 196\) tensor, but a torch\.\w+ \(.*was given"):
        found.respond(tokens, keep, found.layout((224, 224)))


def test_the_trial_of_gathering_is_not_counted():
    view = load(Unfolded().eval(), size=(32, 48))
    tokens, layout = view.embed(torch.randn(2, 3, 32, 48)), view.layout(view.size)
    before = view.meter.forwards
    view.respond(tokens, torch.ones(2, 24, dtype=torch.bool), layout)
    assert view.meter.forwards - before == 2
