"""Guided backpropagation against Captum, and the models Captum cannot read."""

import captum.attr
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from small import close, exact
from vitrail.method import GuidedBackprop, GuidedGradCAM
from vitrail.model import load
from zoo import double_view, pictures

TARGETS = [3, 2]
REDUCTIONS = {"abs": lambda g: g.abs().sum(1), "sum": lambda g: g.sum(1), "norm2": lambda g: g.norm(dim=1)}


def _resnet() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("resnet10t", num_classes=6, channels=(8, 8, 16, 48)).double().eval()


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
def test_gbp_agrees_with_captum() -> None:
    net = _resnet()
    assert any(isinstance(m, nn.ReLU) and m.inplace for m in net.modules())
    images = pictures(2, (64, 64)).double()
    expected = captum.attr.GuidedBackprop(net).attribute(images, TARGETS).detach()
    view = load(net, size=(64, 64))
    for how, reduction in REDUCTIONS.items():
        assert close(exact(GuidedBackprop(reduce=how), view, images, TARGETS), reduction(expected))
    assert not close(exact("gbp", view, images, TARGETS), exact("saliency", view, images, TARGETS))


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
def test_guided_gradcam_agrees_with_captum() -> None:
    net = _resnet()
    images = pictures(2, (64, 64)).double()
    expected = captum.attr.GuidedGradCam(net, net.layer4[-1]).attribute(images, TARGETS).detach()
    view = load(net, size=(64, 64))
    assert expected.abs().max() > 0
    for how, reduction in REDUCTIONS.items():
        found = exact(GuidedGradCAM(upsample="nearest", reduce=how), view, images, TARGETS)
        assert close(found, reduction(expected))
    smooth = captum.attr.GuidedGradCam(net, net.layer4[-1])
    expected = smooth.attribute(images, TARGETS, interpolate_mode="bilinear").detach()
    assert close(exact("guided_gradcam", view, images, TARGETS), expected.abs().sum(1))


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
    net = _EveryReLU().double().eval()
    images = pictures(2, (32, 32)).double()
    x = leaf = images.clone().requires_grad_()
    for conv in net.convs:
        x = x + _GuidedReLU.apply(conv(x))
    net.head(x.mean((2, 3)))[[0, 1], TARGETS].sum().backward()
    found = exact("gbp(reduce=sum)", load(net, size=(32, 32)), images, TARGETS)
    assert close(found, leaf.grad.sum(1))


def test_without_relu_gbp_is_the_plain_gradient() -> None:
    view = double_view("dinov2_reg4")
    assert not any(isinstance(m, nn.ReLU) for m in view.model.modules())
    images = pictures(2, view.size).double()
    assert close(exact("gbp", view, images, TARGETS), exact("saliency", view, images, TARGETS))
