"""Batch normalisation with a gradient of its own: torch's values, torch's gradients, for less."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import vitrail
from vitrail.model.rules.fixednorm import FixedNorm


def norm(channels: int, affine: bool) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(channels, affine=affine, eps=0.01).double().eval()
    generator = torch.Generator().manual_seed(0)
    for value in made.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return made


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(2, 5, 4, 3), (7, 5), (2, 5, 6)])
def test_values_and_gradients_are_torchs(affine: bool, shape: tuple[int, ...]) -> None:
    layer, x = norm(5, affine), torch.randn(shape, dtype=torch.float64).requires_grad_()
    settings = (layer.running_mean, layer.running_var, layer.weight, layer.bias)
    expected = F.batch_norm(x, *settings, eps=layer.eps)
    with FixedNorm():
        found = F.batch_norm(x, *settings, eps=layer.eps)
    assert type(found.grad_fn) is not type(expected.grad_fn)
    assert torch.equal(found, expected)
    slope = torch.randn(shape, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(y, x, slope)[0] for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_statistics_of_the_batch_are_left_to_torch() -> None:
    x = torch.randn(4, 5, 3, 3).requires_grad_()
    slope = torch.randn(4, 5, 3, 3)
    for settings in ({"training": True}, {"training": True, "momentum": 0.5}):
        expected = F.batch_norm(x, torch.zeros(5), torch.ones(5), **settings)
        with FixedNorm():
            found = F.batch_norm(x, torch.zeros(5), torch.ones(5), **settings)
        assert torch.equal(*(torch.autograd.grad(y, x, slope)[0] for y in (found, expected)))


def test_half_precision_keeps_its_type() -> None:
    layer, x = norm(5, True).float(), torch.randn(2, 5, 4, 4, dtype=torch.bfloat16).requires_grad_()
    with FixedNorm():
        found = layer(x)
    assert found.dtype == torch.bfloat16
    assert torch.autograd.grad(found.sum(), x)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0"])
def test_a_models_gradient_is_its_own(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10).eval().double()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(std=0.1)
            layer.running_var.uniform_(0.5, 1.5)
    view = vitrail.load(model, size=(64, 64), device="cpu")
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    trace = view.trace(images, pixels=True)
    found = view.gradient(trace.logits[:, 3], [trace.images], again=True)[0]
    images.requires_grad_()
    logits = model(images)
    expected = torch.autograd.grad(logits[:, 3].sum(), images)[0]
    assert torch.equal(trace.logits, logits)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12 * float(expected.abs().max()))
    assert torch.equal(view.gradient(trace.logits[:, 3], [trace.images])[0], found), "and again"
    assert "Scaled" in _names(trace.logits.grad_fn), "the model ran with it"


def _names(node: object) -> str:
    seen, todo = set(), [node]
    while todo:
        one = todo.pop()
        if one is not None and one not in seen:
            seen.add(one)
            todo += [below for below, _ in one.next_functions]
    return " ".join(type(one).__name__ for one in seen)
