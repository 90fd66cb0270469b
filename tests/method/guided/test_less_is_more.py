"""Less is more against a search that computes every set from scratch."""

import pytest
import torch

import oracles.less_is_more
import vitrail
from helpers.oracle import oracle
from helpers.small import build, exact
from helpers.zoo import pictures, view_of
from vitrail.method import LessIsMore
from vitrail.method.guided.less_is_more import differences
from vitrail.model import Target, load
from vitrail.perturb import ZeroNorm, baseline, grid_labels

TARGETS = [0, 5]


@oracle("less_is_more")
@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("class token", LessIsMore(regions=(2, 4))),
        ("class token", LessIsMore(regions=(2, 2), weights=(1.0, 1.0, 1.0, 10.0), baseline=ZeroNorm())),
        ("class token", LessIsMore(regions=(2, 4), weights=(1.0, 0.0, 0.0, 0.0))),
        ("class token", LessIsMore(regions=(2, 4), weights=(0.0, 1.0, 0.0, 0.0))),
        ("registers", LessIsMore(regions=(4, 2), weights=(0.0, 0.05, 0.0, 1.0))),
        ("average pooling", LessIsMore(regions=(2, 3))),
    ],
)
def test_agrees_with_the_definition(model: str, method: LessIsMore) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = exact(method, view, images, TARGETS)
    fill = baseline(method.baseline).fill(view, images, Target(torch.tensor(TARGETS)))
    regions = method.grid(view, view.size)
    coarse = grid_labels(view.grid, regions)
    labels = coarse.flatten()[grid_labels(view.size, view.grid)]
    with torch.no_grad():
        for i, target in enumerate(TARGETS):
            order = oracles.less_is_more.order(module, images[i], fill[i], target, labels, method.weights)
            for place, region in enumerate(order):
                found = maps[i][coarse == region]
                assert torch.allclose(found, torch.tensor(1 - place / len(order)).to(found), atol=1e-6)


def test_the_difference_of_a_set_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    angles = torch.rand(2, 5, 5, generator=generator)
    angles = angles + angles.transpose(1, 2)
    chosen = torch.tensor([[True, False, True, False, True], [False] * 5])
    tried = torch.tensor([[1, 3], [2, 4]])
    found = differences(angles, chosen, tried)
    for k, new in enumerate((1, 3)):
        regions = [0, 2, 4, new]
        expected = sum(min(float(angles[0, i, j]) for j in regions if j != i) for i in regions)
        assert float(found[0, k]) == pytest.approx(expected, rel=1e-6)
    assert found[1].tolist() == [0, 0], "one region alone"


def test_regions_are_never_finer_than_the_grid_and_passes_are_counted() -> None:
    view = load(build("class token"))
    method = LessIsMore(regions=(3, 9))
    assert method.grid(view, (64, 64)) == (3, 4)
    forwards = view.meter.forwards
    found = vitrail.explain(view, pictures(1, (64, 64)), method)
    assert view.meter.forwards - forwards == found.forwards == method.passes(view, (64, 64)).forwards
    assert found.maps.unique().numel() == 12


def test_works_on_a_cnn() -> None:
    view = view_of("tf_efficientnet_lite0")
    found = vitrail.explain(view, pictures(1, view.size), LessIsMore(regions=(1, 2))).maps
    assert sorted(found.unique().tolist()) == [0.5, 1.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"regions": (1, 1)}, "at least 2 regions"),
        ({"regions": (0, 3)}, "regions to be 1 to"),
        ({"weights": (0.0, 1.0)}, "weights must be 4 numbers"),
        ({"weights": (0.0, 0.0, 0.0, 0.0)}, "a weight above 0"),
        ({"weights": (-1.0, 0.0, 1.0, 0.0)}, "weights to be 0 to 1,000,000"),
    ],
)
def test_mistakes_get_a_sentence(options: dict[str, tuple[float, ...]], words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        LessIsMore(**options)
