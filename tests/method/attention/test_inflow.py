"""InFlow against whole matrices, in float64."""

import pytest
import torch
from torch import nn

import oracles.inflow
import vitrail
from helpers.oracle import oracle
from helpers.small import MODELS, build, close, exact
from helpers.zoo import pictures
from vitrail.method import InFlow
from vitrail.model import load


@oracle("inflow")
@pytest.mark.parametrize("model", MODELS)
def test_agrees_with_the_matrix_form(model: str) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = exact(InFlow(), view, images, [0, 5])
    for image, target, found in zip(images, (0, 5), maps):
        assert close(found, oracles.inflow.inflow(module, image, target))


def test_blocks_without_two_norms_are_refused() -> None:
    module = build("class token").float()
    for block in module.blocks:
        block.norm2 = nn.Identity()
    view = load(module)
    with pytest.raises(vitrail.InputError, match="inflow needs blocks with one norm before attention"):
        vitrail.explain(view, pictures(1, view.size), "inflow")
    assert not any(m._forward_pre_hooks for m in module.modules()), "the hooks are gone, also after the refusal"


def test_it_can_be_compared_between_classes() -> None:
    view = load(build("class token").float())
    assert torch.isfinite(vitrail.explain(view, pictures(2, view.size), "var(inflow, classes=top2)").maps).all()
