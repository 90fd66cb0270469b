"""ViT-CX against its definition at the pixels, in float64, and against the authors' code."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import oracles.vit_cx as by_hand
import vitrail
from helpers.goldens import FOLDER, agreement, deit_tiny, inputs
from helpers.oracle import oracle
from helpers.small import MODELS, build, close, exact
from helpers.zoo import pictures
from oracles.tis import blocks, embedded
from vitrail.method import Batch, ViTCX
from vitrail.method.cam.scores import clean_features
from vitrail.method.guided.vit_cx import grouped, unit
from vitrail.model import load

TARGETS = [0, 5]


def seeds_of(images: torch.Tensor, i: int, count: int, seed: int) -> list[int]:
    return torch.randint(2**62, (count,), generator=Batch(images).generator(i, seed)).tolist()


@oracle("vit_cx")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", [ViTCX(), ViTCX(threshold=0.2, noise=0.5, seed=2)])
def test_agrees_with_the_definition(model: str, method: ViTCX) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = exact(method, view, images, TARGETS)
    with torch.no_grad():
        for i, (image, target) in enumerate(zip(images, TARGETS)):
            tokens = module.blocks[-1].norm1(blocks(module, embedded(module, image))[-2])
            features = tokens[module.num_prefix_tokens :].T.unflatten(1, (4, 4))
            masks = by_hand.masks_of(features, view.size, method.threshold)
            assert 1 < len(masks) < 48
            seeds = seeds_of(images, i, len(masks), method.seed)
            assert close(maps[i], by_hand.vit_cx(module, image, target, masks, seeds, method.noise))


def test_works_on_a_cnn_and_without_noise() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Conv2d(16, 40, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    view = load(nn.Sequential(*layers, nn.Flatten(), nn.Linear(40, 9)).double(), size=(64, 64))
    assert view.features is not None
    images = pictures(1, view.size).double()
    forwards = view.meter.forwards
    (found,) = exact(ViTCX(threshold=0.1, noise=0.0), view, images, [7])
    forwards = view.meter.forwards - forwards
    with torch.no_grad():
        (features,) = clean_features(view, Batch(images))
        masks = by_hand.masks_of(features, view.size, 0.1)
        expected = by_hand.vit_cx(view.logits, images[0], 7, masks, [0] * len(masks), 0.0)
    assert forwards == len(masks) + 1
    assert close(found, expected)


def test_channels_that_say_nothing_are_left_out() -> None:
    maps = torch.rand(6, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    both = torch.cat([torch.full((1, 4, 4), 3.0, dtype=torch.float64), maps, torch.zeros(1, 4, 4)])
    torch.testing.assert_close(grouped(both, (32, 32), 0.05), grouped(maps, (32, 32), 0.05))
    assert grouped(both[:1], (32, 32), 0.1).shape == (0, 4, 4)
    assert grouped(both[:2], (32, 32), 0.1).shape == (1, 4, 4)
    large = F.interpolate(unit(both, (30, 20))[None], (30, 20), mode="bilinear")[0].flatten(1)
    torch.testing.assert_close(large.amin(1), torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(large.amax(1), torch.ones(6, dtype=torch.float64))


def test_pixels_that_no_mask_shows_and_images_without_masks_get_zero() -> None:
    view = load(build("class token"))
    images = pictures(2, view.size).double()
    mask = torch.zeros(1, 4, 4, dtype=torch.float64)
    mask[0, 0, 0] = 1
    with view.still():
        seeds = [torch.tensor([1]), torch.tensor([]).long()]
        (maps,) = ViTCX().explain(view, [Batch(images)], [mask, mask[:0]], seeds)
    assert torch.isfinite(maps).all()
    assert maps[0, 0, 0] != 0
    assert (maps[0, 40:] == 0).all()
    assert (maps[1] == 0).all()


def test_at_most_so_many_masks() -> None:
    maps = torch.rand(20, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = grouped(maps, (32, 32), 0.01, 3)
    whole = next(t for t in np.linspace(0.01, 1, 500) if len(by_hand.masks_of(maps, (32, 32), t)) == 3)
    torch.testing.assert_close(found, grouped(maps, (32, 32), whole))
    assert len(grouped(maps, (32, 32), 0.01, 30)) == 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": -0.1}, "threshold to be 0 to 2, but threshold=-0.1"),
        ({"noise": -1.0}, "noise to be 0 to 1,000, but noise=-1.0"),
        ({"masks": 0}, "masks to be 1 to 100,000, but masks=0"),
    ],
)
def test_mistakes_get_a_sentence(options: dict[str, float], words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        ViTCX(**options)


@pytest.mark.slow
def test_agrees_with_the_authors_code_on_the_same_noise(assets: Path) -> None:
    with np.load(FOLDER / "injected" / "vit_cx.npz") as stored:
        counts, maps = stored["counts"].tolist(), stored["maps"]
    view, images = deit_tiny(assets), inputs(assets)
    batch = Batch(images)
    with view.still(), torch.no_grad():
        masks = [grouped(features, batch.size, 0.1) for features in clean_features(view, batch)]
        assert [len(own) for own in masks] == counts
        (found,) = ViTCX().explain(view, [batch], masks, [torch.arange(count) for count in counts])
    close = agreement(F.avg_pool2d(found, 16).numpy(), maps)
    assert close.pearson > 0.999999
    assert close.error <= 1e-5


def test_maps_can_be_stretched() -> None:
    plain, stretched = (
        vitrail.explain("demo", pictures(1, (144, 144)), ViTCX(normalise=wanted)).maps for wanted in (False, True)
    )
    assert (float(stretched.min()), float(stretched.max())) == (0.0, 1.0)
    torch.testing.assert_close(stretched, (plain - plain.min()) / (plain.max() - plain.min()))
