"""Norm maps by Gram matrices against explicit vectors, in float64."""

import pytest
import timm
import torch
from torch import Tensor, nn

import oracles.norms
import vitrail
from helpers.oracle import oracle
from helpers.small import close, exact
from helpers.zoo import pictures
from vitrail.method import AttIN, GlobEnc, Mixing, NRes, Plus, Rollout
from vitrail.method.base import Batch
from vitrail.method.decomposition.norms import gram_squares
from vitrail.model import Need, load
from vitrail.model.target import Target

_SMALL = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 6}

MODELS = {
    "class token": ("vit_tiny_patch16_224", {}),
    "registers and layer scale": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "init_values": 0.3}),
    "average pooling": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "non-square, query-key norm": ("vit_tiny_patch16_224", {"img_size": (64, 96), "qk_norm": True}),
}
METHODS = [AttIN(), NRes(), GlobEnc()]


def lively(name: str) -> nn.Module:
    """Fresh weights have zero biases and unit norms: draw them, so that every term of the formulas counts."""
    kind, options = MODELS[name]
    torch.manual_seed(1)
    model = timm.create_model(kind, pretrained=False, **(_SMALL | options))
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn(parameter.shape)
    return model.double().eval()


def viewed(model: nn.Module, name: str) -> vitrail.model.View:
    size = MODELS[name][1].get("img_size")
    return load(model, size=size if isinstance(size, tuple) else None)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.id)
def test_every_layer_agrees_with_explicit_vectors(name: str, method: Mixing) -> None:
    model = lively(name)
    view = viewed(model, name)
    images = pictures(2, view.size).double()
    matrices, _ = method.matrices(view, Batch(images, Target(torch.tensor([0, 5]))), 0)
    for i, image in enumerate(images):
        for found, expected in zip(matrices, oracles.norms.matrices(method.id, model, image), strict=True):
            assert close(found[i], expected)


@oracle("attin", "globenc", "n_res")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.id)
def test_the_map_is_the_papers_aggregation(name: str, method: Mixing) -> None:
    model = lively(name)
    view = viewed(model, name)
    images = pictures(2, view.size).double()
    maps = exact(method, view, images, 0)
    assert torch.equal(maps, exact(Rollout(method), view, images, 0))
    for image, found in zip(images, maps):
        expected = oracles.norms.rolled(method.id, model, image)
        if method.id != "attin":  # products of norms are known up to a factor: they are given as shares
            found, expected = found / found.sum(), expected / expected.sum()
        assert close(found, expected)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.id)
def test_plus_adds_the_layers_own_rows(method: Mixing) -> None:
    model = lively("registers and layer scale")
    view = load(model)
    images = pictures(1, view.size).double()
    found = exact(Plus(method), view, images, 0)
    layers = oracles.norms.matrices(method.id, model, images[0])
    expected = sum(oracles.norms.readout(model, layer) for layer in layers)
    assert close(found, expected)


def test_gram_matrices_give_inner_products_of_sums() -> None:
    attention = torch.rand(2, 3, 5, 5, dtype=torch.float64)
    first, second = torch.randn(2, 2, 5, 3, 7, dtype=torch.float64)
    one, other = (torch.einsum("bhij,bjhd->bijd", attention, messages) for messages in (first, second))
    assert torch.allclose(gram_squares(attention, first, second), (one * other).sum(-1), rtol=1e-12)


def test_deep_products_stay_finite() -> None:
    """Norms of a large model multiply beyond what float32 holds."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **(_SMALL | {"depth": 12})).eval()
    model.pos_embed.data *= 1e5
    maps = GlobEnc().attribute(model, pictures(1, (64, 64)))
    assert torch.isfinite(maps).all()
    assert 0 < maps.sum() <= 1


class _PostNorm(nn.Module):
    """A classifier whose blocks normalise behind their skip connections, as BERT's do."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        layers = [nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, norm_first=False) for _ in range(2)]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def test_blocks_of_another_form_are_refused_in_a_sentence() -> None:
    view = load(_PostNorm(), size=(32, 32))
    assert Need.PARTS not in view.offers
    with pytest.raises(vitrail.InputError, match=r"globenc needs .*pre-norm blocks of the usual form.*use "):
        GlobEnc().attribute(view, pictures(1, (32, 32)))


def test_parts_follow_the_weights() -> None:
    model = lively("class token")
    view = load(model)
    images = pictures(1, view.size).double()
    before = NRes().attribute(view, images)
    with torch.no_grad():
        model.blocks[0].attn.proj.weight.mul_(3)
    after = NRes().attribute(view, images)
    assert torch.equal(after, NRes().attribute(load(model), images))
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("faint", [1e-5, 1e-6])
def test_a_faint_layer_scale_is_still_found(faint: float) -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch14_reg4_dinov2", pretrained=False, **(_SMALL | {"img_size": 56}))
    for block in model.blocks:
        block.ls1.gamma.data.fill_(faint)
    parts = load(model.eval()).parts
    assert parts is not None
    assert torch.equal(parts[0].scale1, model.blocks[0].ls1.gamma)
