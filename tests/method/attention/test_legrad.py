"""LeGrad against its definition on timm's own parts, in float64."""

import pytest
import torch

import oracles.legrad
import vitrail
from helpers.oracle import oracle
from helpers.small import MODELS, build, close, exact
from helpers.zoo import pictures
from vitrail.method import LeGrad
from vitrail.model import load


@oracle("legrad")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layers", [None, 2])
def test_agrees_with_the_definition(model: str, layers: int | None) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = exact(LeGrad(layers=layers), view, images, [0, 5])
    for image, target, found in zip(images, (0, 5), maps):
        assert close(found, oracles.legrad.legrad(module, image, target, layers or 4))


def test_no_layers_are_refused() -> None:
    with pytest.raises(vitrail.InputError, match="needs layers to be 1 to"):
        LeGrad(layers=0)


def test_more_layers_than_there_are_means_all() -> None:
    view = load(build("class token"))
    image = pictures(1, view.size).double()
    assert torch.equal(LeGrad(layers=40).attribute(view, image), LeGrad().attribute(view, image))
