"""TIS against its definition on timm's own parts, in float64; its k-means spelled out; the authors' code."""

from pathlib import Path

import numpy as np
import pytest
import torch

import oracles.tis as by_hand
import vitrail
from helpers.goldens import FOLDER, agreement, deit_tiny, inputs
from helpers.oracle import oracle
from helpers.small import MODELS, build, close, exact
from helpers.zoo import pictures, view_of
from vitrail.method import TIS, Batch
from vitrail.method.guided.tis import kmeans, mean_score
from vitrail.model import Target, load
from vitrail.perturb import grid_labels

TARGETS = [0, 5]


def start_of(images: torch.Tensor, i: int, points: int, masks: int, seed: int = 0) -> list[int]:
    return torch.randperm(points, generator=Batch(images).generator(i, seed))[:masks].tolist()


@oracle("tis")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "method", [TIS(masks=12), TIS(masks=9, keep=(0.3, 1.0), layers=(0, -1), seed=3, compat="authors")]
)
def test_agrees_with_the_definition(model: str, method: TIS) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = exact(method, view, images, TARGETS)
    empty = "zero" if method.compat == "authors" else "stay"
    with torch.no_grad():
        for i, (image, target) in enumerate(zip(images, TARGETS)):
            points = by_hand.channels(module, image, method.layers)
            start = start_of(images, i, len(points), method.masks, method.seed)
            centroids = by_hand.kmeans(points, start, empty)
            assert close(maps[i], by_hand.tis(module, image, target, centroids, method.shares))


def test_the_ablation_puts_noise_in_the_place_of_patches() -> None:
    module = build("class token")
    view = load(module)
    images = pictures(2, view.size).double()
    generator = torch.Generator().manual_seed(0)
    centroids = torch.randn(2, 20, 16, generator=generator, dtype=torch.float64)
    batch = Batch(images, Target(torch.tensor(TARGETS)))
    with view.still():
        (maps,) = TIS(keep=0.25, ablation=True).sample(view, [batch], centroids)
    labels = grid_labels((64, 64), (4, 4))
    for i, target in enumerate(TARGETS):
        noise = torch.rand(16, 3, 64, 64, generator=batch.generator(i, 1)).double()
        shown = torch.zeros(20, 16, dtype=torch.float64).scatter_(1, centroids[i].topk(4).indices, 1)
        copies = [torch.where(shown[j].bool()[labels], images[i], noise[j % 16]) for j in range(20)]
        with torch.no_grad():
            scores = module(torch.stack(copies)).softmax(1)[:, target]
        assert close(maps[i].flatten(), (scores @ shown) / shown.sum(0))


@pytest.mark.parametrize("empty", ["stay", "zero"])
def test_kmeans_is_lloyds_algorithm_image_by_image(empty: str) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(3, 80, 5, generator=generator, dtype=torch.float64)
    points[1] *= 1e-3  # at rest after one round, when the others still move
    points[2] += 10  # far from zero
    points[2, 40:] = points[2, :40]  # twins: started from both, one cluster has no point
    start = torch.stack([torch.arange(10), torch.arange(10), torch.tensor([0, 1, 2, 3, 4, 40, 41, 5, 6, 7])])
    found = kmeans(points, start, empty)
    for i in range(3):
        expected = by_hand.kmeans(points[i].numpy(), start[i].tolist(), empty)
        torch.testing.assert_close(found[i], torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
        assert torch.equal(kmeans(points[i : i + 1], start[i : i + 1], empty)[0], found[i])
    assert (found[2] == 0).all(1).any() == (empty == "zero")


def test_images_cluster_the_same_together() -> None:
    from vitrail.method.guided import tis

    points = torch.randn(3, 60, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    points[1] *= 1e-3
    start = torch.arange(8).expand(3, -1)
    together = tis._lloyd(points, start, "stay")
    torch.testing.assert_close(together, kmeans(points, start), rtol=1e-12, atol=1e-12)


def test_a_token_that_no_mask_keeps_gets_the_smallest_value() -> None:
    found = mean_score(torch.tensor([[3.0, 0.0, 1.0]]), torch.tensor([[4.0, 0.0, 2.0]]))
    assert found.tolist() == [[0.75, 0.5, 0.5]]
    view = load(build("class token"))
    images = pictures(1, view.size).double()
    centroids = torch.arange(16, dtype=torch.float64).expand(1, 3, 16)
    with view.still():
        (maps,) = TIS().sample(view, [Batch(images, Target(torch.tensor([1])))], centroids)
    assert torch.isfinite(maps).all()
    assert maps.std() < 1e-12


def test_more_masks_than_channels_means_as_many_as_there_are() -> None:
    view = load(build("class token"))
    images = pictures(1, view.size)
    forwards = view.meter.forwards
    vitrail.explain(view, images, TIS(masks=10**5, layers=(1,)))
    assert view.meter.forwards - forwards == 48 + 1


def test_every_count_of_tokens_can_be_kept() -> None:
    """As a share and as a number; what is computed is the share that is asked for, not the rounding of a product."""
    view = view_of("vit_base_patch32_224")
    for patches in (49, 144, 196, 256, 576, 784):
        for count in range(1, patches + 1):
            assert TIS(keep=count / patches).counts(view, patches) == [count]
            assert count == 1 or TIS(keep=count).counts(view, patches) == [count]
    assert TIS(keep=(0.1, 30, 1.0)).counts(view, 196) == [19, 30, 196], "in between it is rounded down, as ever"
    patches = view.grid[0] * view.grid[1]
    images = pictures(1, view.size)
    share, number = (vitrail.explain(view, images, TIS(masks=4, keep=k), 0).maps for k in (5 / patches, 5))
    assert torch.equal(share, number)
    with pytest.raises(vitrail.InputError, match=rf"has {patches} patches, but tis\(keep=5000\) was to keep 5000"):
        vitrail.explain(view, images, TIS(keep=5000))


def test_patches_that_no_mask_keeps_are_told_of() -> None:
    view = view_of("vit_base_patch32_224")
    images = pictures(2, view.size)
    few = vitrail.explain(view, images, TIS(masks=2, keep=3), 0)
    for notes, flat in zip(few.notes, few.maps.flatten(1)):
        tied = int((flat == flat.min()).sum())
        told = int(notes[0].partition(": ")[2].partition(" of ")[0])
        assert flat.numel() - 6 <= told <= tied <= told + 3, "the mask of the least score is tied with them"
        assert f"{told} of {flat.numel()} patches are in none of its masks" in notes[0]
        assert "more masks" in notes[0]
    every = vitrail.explain(view, images, TIS(masks=2, keep=1.0), 0)
    assert all("masks" not in note.partition(" gave ")[2] for notes in every.notes for note in notes)


def test_stretched_to_one() -> None:
    view = view_of("vit_base_patch32_224")
    images = pictures(2, view.size)
    raw, found = (vitrail.explain(view, images, TIS(masks=8, normalise=n), 3).maps for n in (False, True))
    for a, b in zip(raw, found):
        torch.testing.assert_close(b, (a - a.min()) / (a.max() - a.min()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"masks": 0}, "masks to be 1 to 100,000, but masks=0"),
        ({"keep": 0.0}, r"above 0, up to 1, or whole.*but keep=0.0"),
        ({"keep": 1}, r"or whole, 2 to 100,000 .*, but keep=1 was"),
        ({"keep": 1.5}, r"or whole, 2 to 100,000 .*, but keep=1.5"),
        ({"keep": (0.5, 1.5)}, r"but keep=\(0.5, 1.5\)"),
        ({"keep": ()}, "keep to be one number or more"),
        ({"layers": ()}, "layers to be one number or more"),
    ],
)
def test_mistakes_get_a_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        TIS(**options)


def test_a_layer_that_does_not_exist() -> None:
    view = view_of("vit_base_patch32_224")
    with pytest.raises(vitrail.InputError, match=r"has 3 blocks, but tis was given layers=\(3,\)"):
        vitrail.explain(view, pictures(1, view.size), TIS(layers=(3,)))


def test_agrees_with_the_authors_code_on_the_same_centroids(assets: Path) -> None:
    with np.load(FOLDER / "injected" / "tis.npz") as stored:
        maps, spec = stored["maps"], str(stored["spec"])
    centroids = torch.randn(3, 32, 196, generator=torch.Generator().manual_seed(0))
    view, images = deit_tiny(assets), inputs(assets)
    method = vitrail.method.parse(spec)
    assert isinstance(method, TIS)
    with view.still():
        found = method.render({"map": method.sample(view, [Batch(images)], centroids)[0]})
    close = agreement(found.numpy(), maps)
    assert close.pearson > 0.999999
    assert close.error <= 1e-5
