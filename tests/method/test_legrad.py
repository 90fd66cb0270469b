"""LeGrad against its definition on timm's own parts, in float64."""

import pytest
import timm
import torch

import oracles.legrad
import vitrail
from small import MODELS, SIZES, build, close
from vitrail.method import LeGrad
from vitrail.model import load
from zoo import pictures


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layers", [None, 2])
def test_agrees_with_the_definition(model: str, layers: int | None) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = LeGrad(layers=layers).attribute(view, images, target=[0, 5]).double()
    for image, target, found in zip(images, (0, 5), maps):
        assert close(found, oracles.legrad.legrad(module, image, target, layers or 4))


def test_an_attention_pool_is_asked_about_every_block() -> None:
    torch.manual_seed(1)
    options = SIZES | {"depth": 2}
    module = timm.create_model("vit_base_patch16_siglip_224", pretrained=False, **options).double().eval()
    view = load(module)
    image = pictures(1, view.size).double()
    found = LeGrad().attribute(view, image, target=2)[0].double()

    tokens, expected = module.patch_embed(image) + module.pos_embed, 0
    for block in module.blocks:
        tokens = block(tokens)
        pool = module.attn_pool
        x = module.norm(tokens)
        q = pool.q(pool.latent.expand(1, -1, -1)).view(1, 1, 3, 16).transpose(1, 2)
        k, v = pool.kv(x).view(1, -1, 2, 3, 16).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1) / 4).softmax(-1)
        y = pool.proj((a @ v).transpose(1, 2).reshape(1, 1, 48))
        y = y + pool.mlp(pool.norm(y))
        (gradient,) = torch.autograd.grad(module.head(module.fc_norm(y[:, 0]))[0, 2], a)
        expected = expected + gradient[0, :, 0].clamp(min=0).mean(0)
        tokens = tokens.detach()
    assert close(found, expected)


def test_no_layers_are_refused() -> None:
    with pytest.raises(vitrail.InputError, match="at least 1 layer"):
        LeGrad(layers=0)


def test_more_layers_than_there_are_means_all() -> None:
    view = load(build("class token"))
    image = pictures(1, view.size).double()
    assert torch.equal(LeGrad(layers=40).attribute(view, image), LeGrad().attribute(view, image))
