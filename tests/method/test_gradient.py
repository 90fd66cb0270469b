"""Gradient methods against Captum, and against what integrated gradients promise."""

import captum.attr
import pytest
import torch

import vitrail
from vitrail.method import InputXGradient, IntegratedGradients, Saliency, SmoothGrad
from zoo import module, pictures, view_of

MODELS = ["average_pooled", "dinov2_reg4", "tf_efficientnet_lite0"]
TARGETS = [3, 7]


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(torch.linalg.norm(found - expected) <= 1e-5 * torch.linalg.norm(expected))


@pytest.mark.parametrize("model", MODELS)
def test_saliency_and_ixg_agree_with_captum(model: str) -> None:
    view, net = view_of(model), module(model)
    images = pictures(2, view.size)
    gradient = captum.attr.Saliency(net).attribute(images, TARGETS, abs=False)
    assert _close(Saliency().attribute(view, images, TARGETS), gradient.abs().sum(1))
    assert _close(Saliency(reduce="sum").attribute(view, images, TARGETS), gradient.sum(1))
    assert _close(Saliency(reduce="norm2").attribute(view, images, TARGETS), gradient.norm(dim=1))
    expected = captum.attr.InputXGradient(net).attribute(images, TARGETS).sum(1)
    assert _close(InputXGradient().attribute(view, images, TARGETS), expected.detach())


@pytest.mark.parametrize("model", MODELS)
def test_ig_agrees_with_captum(model: str) -> None:
    view, net = view_of(model), module(model)
    images = pictures(2, view.size)
    expected = captum.attr.IntegratedGradients(net).attribute(images, target=TARGETS, n_steps=7).float().sum(1)
    assert _close(IntegratedGradients(steps=7).attribute(view, images, TARGETS), expected.detach())


def test_ig_adds_up_to_the_difference_of_the_scores() -> None:
    view = view_of("average_pooled")
    images = pictures(2, view.size)
    with torch.no_grad():
        logits = view.logits(torch.cat([images, torch.zeros_like(images[:1])]))
    difference = logits[[0, 1], TARGETS] - logits[2, TARGETS]
    total = IntegratedGradients(steps=64).attribute(view, images, TARGETS).sum((1, 2))
    assert torch.allclose(total, difference, rtol=1e-3, atol=1e-4)


def test_ig_does_not_depend_on_how_many_copies_go_together() -> None:
    view = view_of("average_pooled")
    images = pictures(20, view.size)  # more than half the copies taken at once: one step at a time
    many = IntegratedGradients(steps=5).attribute(view, images[:20], 3)
    assert _close(many[:1], IntegratedGradients(steps=5).attribute(view, images[:1], 3))


def test_smoothgrad_is_the_mean_over_noisy_copies() -> None:
    view = view_of("average_pooled")
    images = pictures(1, view.size)
    method = SmoothGrad(InputXGradient(), samples=3, noise=0.1, seed=4)
    found = method.attribute(view, images, 3)
    from vitrail.method import Batch

    generator = Batch(images).generator(0, 4)
    spread = 0.1 * (images.max() - images.min())
    expected = torch.zeros_like(found)
    for _ in range(3):
        noisy = images + spread * torch.randn(images.shape[1:], generator=generator)
        expected += InputXGradient().attribute(view, noisy, 3) / 3
    assert _close(found, expected)
    other = SmoothGrad(InputXGradient(), samples=3, noise=0.1, seed=5).attribute(view, images, 3)
    assert not torch.allclose(found, other)


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
    with pytest.raises(vitrail.InputError, match="at least 1"):
        vitrail.method.parse(spec)
