"""DecompX by one backward pass against its forward decomposition, and against the meaning of its numbers."""

import pytest
import timm
import torch
from torch import nn

import oracles.decompx_bias
from helpers.oracle import oracle
from helpers.small import close, exact, off
from helpers.zoo import pictures
from oracles.decompx import decompx
from vitrail import InputError
from vitrail.method import DecompX, Plus
from vitrail.method.base import Batch
from vitrail.method.decomposition import decompx as module
from vitrail.model import View, load
from vitrail.model.target import Target

_SMALL = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 6}

CONFIGURATIONS = {
    "class token": ("vit_tiny_patch16_224", _SMALL),
    "registers and layer scale": ("vit_small_patch14_reg4_dinov2", {**_SMALL, "img_size": 56, "init_values": 0.3}),
    "average pooling": ("vit_tiny_patch16_224", {**_SMALL, "global_pool": "avg"}),
    "query-key norm, non-square": ("vit_tiny_patch16_224", {**_SMALL, "img_size": (64, 96), "qk_norm": True}),
}


def _lively(model: nn.Module) -> nn.Module:
    """Fresh weights have zero biases and unit norms: draw them, so that every term of the formula counts."""
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.double().eval()


@oracle("decompx")
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("start", range(4))
def test_equals_the_forward_decomposition_from_every_start_layer(configuration: str, start: int) -> None:
    name, options = CONFIGURATIONS[configuration]
    torch.manual_seed(0)
    model = _lively(timm.create_model(name, pretrained=False, **options))
    view = load(model, size=options["img_size"] if isinstance(options["img_size"], tuple) else None)
    images = pictures(2, view.size).double()
    targets = [1, 4]
    maps = exact(DecompX(start=start), view, images, targets)
    for image, target, found in zip(images, targets, maps):
        assert close(found, decompx(model, image, target, start))


def test_it_is_not_the_plain_gradient() -> None:
    """The rule matters: with the true gradient the numbers are others, so the test above can fail."""
    name, options = CONFIGURATIONS["class token"]
    torch.manual_seed(0)
    model = _lively(timm.create_model(name, pretrained=False, **options))
    view = load(model)
    image = pictures(1, view.size).double()
    trace = view.trace(image)
    (gradient,) = view.gradient(trace.logits[:, 1], [trace.states[0]])
    plain = view.patch_map((trace.states[0] * gradient).sum(-1), view.layout(view.size))[0]
    assert off(plain.detach(), decompx(model, image[0], 1, 0)) > 0.05


# ------------------------------------------------------------------------------------------------------- biases

SHARED = ["absdot", "abssim", "norm", "equal", "cls", "dot"]


def _made(configuration: str) -> tuple[nn.Module, View]:
    name, options = CONFIGURATIONS[configuration]
    torch.manual_seed(0)
    model = _lively(timm.create_model(name, pretrained=False, **options))
    return model, load(model, size=options["img_size"] if isinstance(options["img_size"], tuple) else None)


@pytest.mark.parametrize("bias", SHARED)
@pytest.mark.parametrize(
    ("configuration", "activation"), [*((each, "zo") for each in CONFIGURATIONS), ("registers and layer scale", "la")]
)
def test_shared_biases_agree_with_the_row_by_row_form(configuration: str, bias: str, activation: str) -> None:
    model, view = _made(configuration)
    images, targets = pictures(2, view.size).double(), [1, 4]
    method = DecompX(start=1, bias=bias, activation=activation)
    found = method.shares(view, Batch(images, Target(torch.tensor(targets))), 1)
    maps = exact(method, view, images, targets)
    for i, target in enumerate(targets):
        expected = oracles.decompx_bias.decompx(model, images[i], target, 1, bias, activation)
        assert close(found[i], expected)
        assert close(maps[i], expected[-maps[i].numel() :])


@pytest.mark.parametrize("bias", SHARED)
@pytest.mark.parametrize("activation", ["zo", "la"])
def test_with_every_bias_shared_out_nothing_is_lost(
    bias: str, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, view = _made("registers and layer scale")
    images = pictures(1, view.size).double()
    trace = view.trace(images, attention=True)
    method = DecompX(bias=bias, activation=activation)
    assert view.parts is not None
    monkeypatch.setattr(module, "_CHUNK", 3 * 21 * 192)  # a few rows and sources at a time
    parts = method.decompose(
        list(view.parts), trace.states[0][0].detach(), [attention[0].detach() for attention in trace.attention]
    )
    last = trace.states[-1][0].detach()
    assert off(parts.sum(1), last) <= 1e-12
    shares = method.shares(view, Batch(images, Target(torch.tensor([2]))), 0)
    assert close(shares.sum(-1), model(images)[:, 2])


@pytest.mark.parametrize("start", [0, 3])
def test_the_tangent_without_biases(start: int) -> None:
    model, view = _made("class token")
    image = pictures(1, view.size).double()
    found = exact(DecompX(start=start, activation="la"), view, image, 2)
    assert close(found, oracles.decompx_bias.decompx(model, image[0], 2, start, "none", "la")[1:])


def test_a_bias_token_takes_what_no_token_has() -> None:
    model, view = _made("average pooling")
    images = pictures(2, view.size).double()
    batch = Batch(images, Target(torch.tensor([1, 4])))
    method = DecompX(bias="token")
    assert torch.equal(exact(method, view, images, [1, 4]), exact("decompx", view, images, [1, 4]))
    whole = method.layers(view, batch, 0)[0].sum(-1) + method.bias_share(view, batch)
    assert close(whole.detach(), model(images)[[0, 1], [1, 4]])


def test_plus_adds_every_start_layer_with_its_biases() -> None:
    model, view = _made("class token")
    image = pictures(1, view.size).double()
    found = exact(Plus(DecompX(bias="absdot")), view, image, 3)
    expected = sum(oracles.decompx_bias.decompx(model, image[0], 3, start, "absdot", "zo")[1:] for start in range(4))
    assert close(found, expected)


def test_no_class_token_to_give_the_biases_to() -> None:
    torch.manual_seed(0)
    view = load(timm.create_model("vit_base_patch16_siglip_224", pretrained=False, **_SMALL))
    with pytest.raises(InputError, match="has none; use bias=absdot"):
        DecompX(bias="cls").attribute(view, pictures(1, view.size))
    assert torch.isfinite(DecompX(bias="absdot").attribute(view, pictures(1, view.size))).all()
