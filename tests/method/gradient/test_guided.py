"""Guided backpropagation against Captum, and the models Captum cannot read."""

import copy
import re
from collections.abc import Callable

import captum.attr
import pytest
import timm
import torch
import torch.nn.functional as F
from pytorch_grad_cam import GuidedBackpropReLUModel
from torch import Tensor, nn

import vitrail
from helpers.oracle import oracle
from helpers.small import close, exact
from helpers.zoo import pictures
from vitrail.method import GuidedBackprop, GuidedGradCAM
from vitrail.model import Need, load

TARGETS = [3, 2]
REDUCTIONS = {"abs": lambda g: g.abs().sum(1), "sum": lambda g: g.sum(1), "norm2": lambda g: g.norm(dim=1)}


def _resnet() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("resnet10t", num_classes=6, channels=(8, 8, 16, 48)).double().eval()


@oracle("gbp")
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


@oracle("guided_gradcam")
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
    """One activation of every spelling of the ReLU family, some in place, and a shortcut around each."""

    spellings = (
        nn.ReLU(),
        nn.ReLU(inplace=True),
        F.relu,
        torch.relu,
        torch.Tensor.relu,
        torch.relu_,
        torch.Tensor.relu_,
        lambda x: F.relu(x, inplace=True),
        nn.ReLU6(),
        nn.ReLU6(inplace=True),
        F.relu6,
        nn.Hardtanh(0, 6),
        lambda x: F.hardtanh(x, min_val=0.0, max_val=6.0),
        lambda x: F.hardtanh_(x, 0, 6),
        nn.Threshold(0, 0),
        lambda x: x.clamp(min=0),
        lambda x: x.clamp(0, 6),
        lambda x: x.clamp_min_(0),
        lambda x: torch.clip(x, 0.0),
    )
    capped = (8, 9, 10, 11, 12, 13, 16)

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1) for _ in self.spellings])
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        for conv, relu in zip(self.convs, self.spellings):
            x = x + relu(8 * conv(x))
        return self.head(x.mean((2, 3)))


class _GuidedReLU(torch.autograd.Function):
    """The rule of the paper: back goes what is positive, where the activation let its input through."""

    @staticmethod
    def forward(ctx, x: Tensor, most: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.most = most
        return x.clamp(0, most)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return g.clamp(min=0) * ((x > 0) & (x < ctx.most)), None


def test_every_spelling_of_relu_is_guided() -> None:
    torch.manual_seed(0)
    net = _EveryReLU().double().eval()
    images = pictures(2, (32, 32)).double()
    x = leaf = images.clone().requires_grad_()
    reached = False
    for i, conv in enumerate(net.convs):
        given = 8 * conv(x)
        reached |= i in net.capped and bool((given > 6).any())
        x = x + _GuidedReLU.apply(given, 6.0 if i in net.capped else torch.inf)
    assert reached, "no ReLU6 was asked to cap anything"
    net.head(x.mean((2, 3)))[[0, 1], TARGETS].sum().backward()
    found = exact("gbp(reduce=sum)", load(net, size=(32, 32)), images, TARGETS)
    assert close(found, leaf.grad.sum(1))


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_relu6_is_guided_throughout_a_real_network() -> None:
    """Captum and pytorch-grad-cam know ReLU alone; backward hooks on every ReLU6 say the same of a whole network."""
    torch.manual_seed(0)
    net = timm.create_model("tf_efficientnet_lite0", num_classes=6).double().eval()
    view = load(copy.deepcopy(net), size=(64, 64))
    rectifiers = [m for m in net.modules() if isinstance(m, nn.ReLU6)]
    assert len(rectifiers) > 30
    for rectifier in rectifiers:
        rectifier.inplace = False
        rectifier.register_full_backward_hook(lambda _, into, out: (into[0].clamp(min=0),))
    images = pictures(2, view.size).double()
    leaf = images.clone().requires_grad_()
    net(leaf)[[0, 1], TARGETS].sum().backward()
    found = exact("gbp(reduce=sum)", view, images, TARGETS)
    assert close(found, leaf.grad.sum(1))
    assert not close(found, exact("saliency(reduce=sum)", view, images, TARGETS))


def test_relu_is_guided_as_pytorch_grad_cam_guides_it() -> None:
    net = _resnet()
    view = load(copy.deepcopy(net), size=(64, 64))
    images = pictures(1, view.size).double()
    peer = GuidedBackpropReLUModel(net, torch.device("cpu"))
    expected = torch.tensor(peer(images, TARGETS[0])).permute(2, 0, 1)[None]
    found = exact("gbp(reduce=sum)", view, images, TARGETS[:1])
    assert close(found, expected.double().sum(1))


class _OneActivation(nn.Module):
    def __init__(self, *activations: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)
        self.activations = activations

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        for activation in self.activations:
            x = activation(x)
        return self.head(x.mean((2, 3)))


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "GELU": F.gelu,
    "SiLU": nn.SiLU(),
    "Hardswish": F.hardswish,
    "ELU": nn.ELU(),
    "LeakyReLU": nn.LeakyReLU(0.1),
    "Mish": F.mish,
    "Hardtanh": nn.Hardtanh(-1, 1),
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "GELU (erf)": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
}


@pytest.mark.parametrize("method", ["gbp", "var(guided_gradcam)"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_activations_are_refused_by_name(name: str, method: str) -> None:
    images = pictures(1, (16, 16))
    both = () if name == "sigmoid" else (torch.relu,)  # a sigmoid beside ReLUs is a gate
    for found in ((OTHERS[name],), (*both, OTHERS[name])):
        view = load(_OneActivation(*found), size=(16, 16))
        assert Need.RELU not in view.offers
        with pytest.raises(
            vitrail.InputError, match=rf"ReLU family .* does not have \(it has {re.escape(name)}\); use"
        ):
            vitrail.explain(view, images, method)


def test_a_gate_is_no_activation_and_other_clamps_are_no_relu() -> None:
    gated = load(_OneActivation(torch.relu, lambda x: x * x.mean((2, 3), keepdim=True).sigmoid()), size=(16, 16))
    assert Need.RELU in gated.offers
    clamped = load(_OneActivation(lambda x: x.clamp(min=-1), lambda x: x.clamp_min(1e-6)), size=(16, 16))
    assert Need.RELU not in clamped.offers
    with pytest.raises(vitrail.InputError, match=r"ReLU family .* does not have; use"):
        vitrail.explain(clamped, pictures(1, (16, 16)), "gbp")


def test_transformers_with_gelu_are_refused() -> None:
    with pytest.raises(vitrail.InputError, match=r"gbp needs activations of the ReLU family .*GELU.*; use "):
        vitrail.explain("demo", pictures(1, (144, 144)), "gbp")
