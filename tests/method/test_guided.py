"""Guided backpropagation against Captum, and the models Captum cannot read."""

import captum.attr
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.method import GuidedBackprop, GuidedGradCAM, Saliency
from vitrail.model import load
from zoo import module, pictures, view_of

TARGETS = [3, 2]
REDUCTIONS = {"abs": lambda g: g.abs().sum(1), "sum": lambda g: g.sum(1), "norm2": lambda g: g.norm(dim=1)}


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool(torch.linalg.norm(found - expected) <= 1e-5 * torch.linalg.norm(expected))


def _resnet() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("resnet10t", num_classes=6, channels=(8, 8, 16, 48)).eval()


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
def test_gbp_agrees_with_captum() -> None:
    net = _resnet()
    assert any(isinstance(m, nn.ReLU) and m.inplace for m in net.modules())
    images = pictures(2, (64, 64))
    expected = captum.attr.GuidedBackprop(net).attribute(images, TARGETS).detach()
    view = load(net, size=(64, 64))
    for how, reduction in REDUCTIONS.items():
        assert _close(GuidedBackprop(reduce=how).attribute(view, images, TARGETS), reduction(expected))
    assert not _close(GuidedBackprop().attribute(view, images, TARGETS), Saliency().attribute(view, images, TARGETS))


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
def test_guided_gradcam_agrees_with_captum() -> None:
    net = _resnet()
    images = pictures(2, (64, 64))
    expected = captum.attr.GuidedGradCam(net, net.layer4[-1]).attribute(images, TARGETS).detach()
    view = load(net, size=(64, 64))
    assert expected.abs().max() > 0
    for how, reduction in REDUCTIONS.items():
        found = GuidedGradCAM(upsample="nearest", reduce=how).attribute(view, images, TARGETS)
        assert _close(found, reduction(expected))
    smooth = captum.attr.GuidedGradCam(net, net.layer4[-1])
    expected = smooth.attribute(images, TARGETS, interpolate_mode="bilinear").detach()
    assert _close(GuidedGradCAM().attribute(view, images, TARGETS), expected.abs().sum(1))


class _EveryReLU(nn.Module):
    """One ReLU of every spelling, some in place, and a shortcut around each."""

    spellings = (
        nn.ReLU(),
        nn.ReLU(inplace=True),
        F.relu,
        torch.relu,
        torch.Tensor.relu,
        torch.relu_,
        torch.Tensor.relu_,
        lambda x: F.relu(x, inplace=True),
    )

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1) for _ in self.spellings])
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        for conv, relu in zip(self.convs, self.spellings):
            x = x + relu(conv(x))
        return self.head(x.mean((2, 3)))


class _GuidedReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g.clamp(min=0) * (ctx.saved_tensors[0] > 0)


def test_every_spelling_of_relu_is_guided() -> None:
    torch.manual_seed(0)
    net = _EveryReLU().eval()
    images = pictures(2, (32, 32))
    x = leaf = images.clone().requires_grad_()
    for conv in net.convs:
        x = x + _GuidedReLU.apply(conv(x))
    net.head(x.mean((2, 3)))[[0, 1], TARGETS].sum().backward()
    found = GuidedBackprop(reduce="sum").attribute(load(net, size=(32, 32)), images, TARGETS)
    assert _close(found, leaf.grad.sum(1))


def test_without_relu_gbp_is_the_plain_gradient() -> None:
    view = view_of("dinov2_reg4")
    assert not any(isinstance(m, nn.ReLU) for m in module("dinov2_reg4").modules())
    images = pictures(2, view.size)
    assert _close(GuidedBackprop().attribute(view, images, TARGETS), Saliency().attribute(view, images, TARGETS))
