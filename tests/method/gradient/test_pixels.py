"""Gradient methods against Captum, and against what integrated gradients promise."""

import captum.attr
import pytest
import torch
from torch import Tensor, nn

import vitrail
from helpers.oracle import oracle
from helpers.small import build, close, exact, off
from helpers.zoo import double_view, pictures, view_of
from vitrail.method import Batch, InputXGradient, IntegratedGradients, Saliency, SmoothGrad, parse

MODELS = ["average_pooled", "dinov2_reg4", "tf_efficientnet_lite0"]
TARGETS = [3, 7]
TARGETS_OF_SIX = [3, 5]


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(torch.linalg.norm(found - expected) <= 1e-5 * torch.linalg.norm(expected))


@oracle("ixg", "saliency")
@pytest.mark.parametrize("model", MODELS)
def test_saliency_and_ixg_agree_with_captum(model: str) -> None:
    view = double_view(model)
    images = pictures(2, view.size).double()
    gradient = captum.attr.Saliency(view.model).attribute(images, TARGETS, abs=False)
    assert close(exact("saliency", view, images, TARGETS), gradient.abs().sum(1))
    assert close(exact("saliency(reduce=sum)", view, images, TARGETS), gradient.sum(1))
    assert close(exact("saliency(reduce=norm2)", view, images, TARGETS), gradient.norm(dim=1))
    expected = captum.attr.InputXGradient(view.model).attribute(images, TARGETS).sum(1)
    assert close(exact("ixg", view, images, TARGETS), expected)


@oracle("ig")
@pytest.mark.parametrize("model", MODELS)
def test_ig_agrees_with_captum(model: str) -> None:
    view = double_view(model)
    images = pictures(2, view.size).double()
    expected = captum.attr.IntegratedGradients(view.model).attribute(images, target=TARGETS, n_steps=7).sum(1)
    assert off(exact("ig(steps=7)", view, images, TARGETS), expected) <= 1e-6  # Captum's shares are float32


def test_ig_adds_up_to_the_difference_of_the_scores() -> None:
    net = build("average pooling")
    images = pictures(2, (64, 64)).double()
    with torch.no_grad():
        logits = net(torch.cat([images, torch.zeros_like(images[:1])]))
    difference = logits[[0, 1], [3, 5]] - logits[2, [3, 5]]
    assert close(exact("ig(steps=64)", net, images, [3, 5]).sum((1, 2)), difference)


def test_ig_does_not_depend_on_how_many_copies_go_together() -> None:
    view = view_of("average_pooled")
    images = pictures(20, view.size)  # more than half the copies taken at once: one step at a time
    many = IntegratedGradients(steps=5).attribute(view, images[:20], 3)
    assert _close(many[:1], IntegratedGradients(steps=5).attribute(view, images[:1], 3))


@pytest.mark.parametrize("spec", ["ig(steps=7)", "t_attn(steps=8)", "ablationcam(channels=7)"])
def test_when_memory_runs_out_fewer_copies_go_together(spec: str) -> None:
    net = build("class token")
    view, images = vitrail.load(net), pictures(2, (64, 64)).double()
    expected = exact(spec, view, images, TARGETS_OF_SIX)
    asked: list[int] = []

    def crowded(_: nn.Module, args: tuple[Tensor]) -> None:
        asked.append(len(args[0]))
        if len(args[0]) > 4:
            raise torch.OutOfMemoryError("no room")

    handle = net.blocks[-1].register_forward_pre_hook(crowded)
    found = exact(spec, view, images, TARGETS_OF_SIX)
    handle.remove()
    assert [n for n in asked if n > 2] == [14, 6, *[n for n in asked if n == 4]], "seven copies, three, then one or two"
    assert asked.count(2) + 2 * asked.count(4) >= 7
    assert close(found, expected)


def test_ig_asks_for_no_clean_pass_when_the_target_is_given() -> None:
    view = view_of("average_pooled")
    images = pictures(2, view.size)
    for target, passes in (([3, 7], 2 * 3), (None, 2 * 3 + 2)):
        before = view.meter.forwards
        IntegratedGradients(steps=3).attribute(view, images, target)
        assert view.meter.forwards - before == passes


@pytest.mark.parametrize(
    ("where", "spec"),
    [
        *(("weight", spec) for spec in ("saliency", "ixg", "ig(steps=2)", "eigencam")),
        *(("bias", spec) for spec in ("saliency", "ixg", "eigencam")),  # the gradient is finite, the answer is not
    ],
)
def test_what_is_not_a_number_is_not_passed_on(where: str, spec: str) -> None:
    net = build("class token")
    with torch.no_grad():
        net.head.get_parameter(where)[3] = float("nan")
    with pytest.raises(vitrail.InputError, match=r"check (its|the model's) weights"):
        parse(spec).attribute(net, pictures(1, (64, 64)).double(), 3)


@oracle("smoothgrad")
def test_smoothgrad_is_the_mean_over_noisy_copies() -> None:
    net = build("average pooling")
    images = pictures(1, (64, 64)).double()
    method = SmoothGrad(InputXGradient(), samples=3, noise=0.1, seed=4)
    found = exact(method, net, images, 3)
    generator = Batch(images).generator(0, 4)
    spread = 0.1 * (images.max() - images.min())
    expected = torch.zeros_like(found)
    for _ in range(3):
        noisy = (images + spread * torch.randn(images.shape[1:], generator=generator)).requires_grad_()
        (gradient,) = torch.autograd.grad(net(noisy)[0, 3], noisy)
        expected += (noisy * gradient).sum(1).detach() / 3
    assert close(found, expected)
    other = SmoothGrad(InputXGradient(), samples=3, noise=0.1, seed=5)
    assert not torch.allclose(found, exact(other, net, images, 3))


def test_smoothgrad_without_noise_is_the_base_method() -> None:
    view = view_of("average_pooled")
    images = pictures(2, view.size)
    assert _close(SmoothGrad(samples=2, noise=0).attribute(view, images, 3), Saliency().attribute(view, images, 3))


def test_smoothgrad_is_as_fine_as_its_base() -> None:
    view = view_of("average_pooled")
    found = vitrail.explain(view, pictures(1, view.size), "smoothgrad(gradcam, samples=2)")
    assert found.maps.shape == (1, 14, 14)


@pytest.mark.parametrize("spec", ["ig(steps=0)", "smoothgrad(samples=0)", "smoothgrad(noise=-1)"])
def test_nonsense_parameters_are_refused(spec: str) -> None:
    with pytest.raises(vitrail.InputError, match=r"to be [01] to"):
        vitrail.method.parse(spec)
