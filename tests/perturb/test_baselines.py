"""Each baseline is what its name says."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from helpers import zoo
from vitrail import InputError
from vitrail.model import Target
from vitrail.perturb import BASELINES, AdaptiveBlur, RiseBlur, baseline, order_of, ranks_of

VIEW = "vit_base_patch32_224"


def fill(spec: str, images: torch.Tensor, classes: tuple[int, ...] = (1, 2)) -> torch.Tensor:
    return baseline(spec).fill(zoo.view_of(VIEW), images, Target(torch.tensor(classes)))


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_shape_determinism_and_independence_of_the_batch(name: str, images: torch.Tensor) -> None:
    found = fill(name, images)
    assert found.shape == images.shape
    assert found.dtype == images.dtype
    torch.testing.assert_close(fill(name, images[1:], (2,)), found[1:], rtol=1e-5, atol=1e-6)
    assert torch.equal(fill(name, images), found)
    assert baseline(baseline(name).spec) == baseline(name)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_a_fill_does_not_lose_digits_in_bf16(name: str, images: torch.Tensor) -> None:
    view = zoo.view_of(VIEW)
    with view.using("bf16"), view.still():
        found = baseline(name).fill(view, images, Target(torch.tensor([1, 2])))
    assert found.dtype == images.dtype
    torch.testing.assert_close(found, fill(name, images))


def test_colours(images: torch.Tensor) -> None:
    preprocess = zoo.view_of(VIEW).preprocess
    for name, raw in (
        ("black_pixel", (0, 0, 0)),
        ("zero_norm", preprocess.mean),
        ("dataset_mean", (0.485, 0.456, 0.406)),
    ):
        picture = np.asarray(preprocess.restore(fill(name, images)[0]))
        assert np.abs(picture - np.array(raw) * 255).max() <= 0.51, name
    torch.testing.assert_close(fill("image_mean", images)[1, :, 3, 5], images[1].flatten(1).mean(1))
    noise = fill("uniform_noise", images)[0] * torch.tensor(preprocess.std).view(3, 1, 1)
    noise = noise + torch.tensor(preprocess.mean).view(3, 1, 1)
    assert 0 <= noise.min() < 0.001
    assert 0.999 < noise.max() <= 1.0001
    assert 0 <= fill("uniform_noise(normalised)", images).min() < fill("uniform_noise(normalised)", images).max() < 1


def test_the_rise_kernel_is_a_filtered_impulse_with_zeros_outside(images: torch.Tensor) -> None:
    impulse = np.zeros((11, 11))
    impulse[5, 5] = 1
    kernel = torch.tensor(gaussian_filter(impulse, 5))
    assert kernel.sum().item() == pytest.approx(1)
    padded = torch.nn.functional.pad(images.double(), (5, 5, 5, 5))
    found = RiseBlur(11, 5.0).fill(zoo.view_of(VIEW), images.double(), Target(torch.tensor([1, 2])))
    for y, x in ((0, 0), (100, 50), (223, 7)):
        expected = (padded[:, :, y : y + 11, x : x + 11] * kernel).sum((2, 3))
        torch.testing.assert_close(found[:, :, y, x], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ahead", [False, True])
def test_adaptive_blur_stops_at_the_first_width_that_is_low_enough(ahead: bool) -> None:
    view = zoo.view_of(VIEW)
    images = torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(2)) * torch.tensor(
        [0.1, 1.0, 3.0]
    ).view(3, 1, 1, 1)
    target = Target(torch.tensor([7, 8, 9]))
    widths = range(31, 42, 2)
    with torch.no_grad():
        levels = torch.stack(
            [target.probability(view.logits(RiseBlur(w, float(w)).fill(view, images, target))) for w in widths]
        )
    below = float(levels[2].mean())  # some images pass at once, some later, some never
    found, chosen = AdaptiveBlur(31, 41, below=below).search(view, images, target, ahead=ahead)
    for i in range(3):
        expected = next((w for w, p in zip(widths, levels[:, i]) if p < below), 0)
        assert chosen[i] == expected
        torch.testing.assert_close(
            found[i], RiseBlur(expected or 41, float(expected or 41)).fill(view, images, target)[i]
        )
    assert len(set(chosen.tolist())) > 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rise_blur(10, 5)", "kernel to be an odd number, 1 to 501, but kernel=10"),
        ("gaussian_blur(0, 5)", "kernel to be an odd number, 1 to 501, but kernel=0"),
        ("adaptive_blur(step=3)", "step to be an even number, 2 to 501, but step=3"),
        ("adaptive_blur(first=41, last=31)", "widens from first to last"),
        ("blak_pixel", "did you mean black_pixel"),
        ("zero_norm(1)", "at most 0 parameters"),
    ],
)
def test_mistakes_get_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        baseline(spec)


def test_a_blur_wider_than_the_picture(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match="too wide for images of 9 x 9 pixels"):
        fill("gaussian_blur(31, 5)", images[:, :, :9, :9])


def test_ties_are_broken_by_place() -> None:
    values = torch.tensor([[2.0, 1.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    assert order_of(values).tolist() == [[0, 2, 3, 1], [0, 1, 2, 3]]
    assert ranks_of(order_of(values)).tolist() == [[0, 3, 1, 2], [0, 1, 2, 3]]
