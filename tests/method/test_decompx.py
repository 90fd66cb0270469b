"""DecompX by one backward pass against its forward decomposition, and against the meaning of its numbers."""

import pytest
import timm
import torch
from torch import nn

from oracles.decompx import decompx
from vitrail.method import DecompX
from vitrail.model import load
from zoo import pictures

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


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("start", range(4))
def test_equals_the_forward_decomposition_from_every_start_layer(configuration: str, start: int) -> None:
    name, options = CONFIGURATIONS[configuration]
    torch.manual_seed(0)
    model = _lively(timm.create_model(name, pretrained=False, **options))
    view = load(model, size=options["img_size"] if isinstance(options["img_size"], tuple) else None)
    images = pictures(2, view.size).double()
    targets = [1, 4]
    maps = DecompX(start=start).attribute(view, images, target=targets)
    for image, target, found in zip(images, targets, maps.double()):
        expected = decompx(model, image, target, start)
        assert torch.linalg.norm(found.flatten() - expected) <= 1e-5 * torch.linalg.norm(expected)


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
    expected = decompx(model, image[0], 1, 0)
    assert torch.linalg.norm(plain.flatten() - expected) > 0.05 * torch.linalg.norm(expected)


@pytest.mark.parametrize("start", [-1, 4])
def test_a_start_layer_that_does_not_exist_is_refused(start: int) -> None:
    from vitrail import InputError

    view = load(timm.create_model("vit_tiny_patch16_224", pretrained=False, **_SMALL))
    with pytest.raises(InputError, match="start layer must be 0 to 3"):
        DecompX(start=start).attribute(view, pictures(1, view.size))
