"""Bi-Attn by heads and by tokens against the paper's matrix form, in float64."""

import pytest
import torch

import oracles.biattn
import vitrail
from helpers.oracle import oracle
from helpers.small import MODELS, build, close, exact
from helpers.zoo import pictures
from vitrail.method import BiAttnHeads, BiAttnTokens
from vitrail.model import load


@oracle("bt_h", "bt_t")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", [BiAttnHeads(steps=3, start=1), BiAttnTokens(steps=3, start=2)], ids=lambda m: m.id)
def test_agrees_with_the_matrix_form(model: str, method: BiAttnHeads | BiAttnTokens) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = exact(method, view, images, [0, 5])
    for image, target, found in zip(images, (0, 5), maps):
        expected = getattr(oracles.biattn, method.id)(module, image, target, method.steps, method.start)
        assert close(found, expected)


@pytest.mark.parametrize(("name", "start"), [("bt_h", 1), ("bt_t", 2)])
def test_default_start_is_the_published_share_of_the_depth(name: str, start: int) -> None:
    view = load(build("class token"))
    image = pictures(1, view.size).double()
    default = vitrail.explain(view, image, f"{name}(steps=2)").maps
    assert torch.equal(default, vitrail.explain(view, image, f"{name}(steps=2, start={start})").maps)
    assert not torch.allclose(default, vitrail.explain(view, image, f"{name}(steps=2, start=0)").maps)


@pytest.mark.parametrize("name", ["bt_h", "bt_t"])
def test_one_block_is_enough(name: str) -> None:
    view = load(build("class token", depth=1))
    assert torch.isfinite(vitrail.explain(view, pictures(1, view.size).double(), f"{name}(steps=2)").maps).all()


def test_a_model_that_hides_its_values_is_refused() -> None:
    module = build("class token").float()
    for block in module.blocks:
        block.attn.fused_attn = False  # softmax written by hand: attention shows, values do not
    view = load(module)
    image = pictures(1, view.size)
    with pytest.raises(vitrail.InputError, match="use bt_h"):
        vitrail.explain(view, image, "bt_t(steps=2)")
    assert torch.isfinite(vitrail.explain(view, image, "bt_h(steps=2)").maps).all()


def test_it_can_be_compared_between_classes() -> None:
    view = load(build("class token").float())
    assert torch.isfinite(vitrail.explain(view, pictures(2, view.size), "var(bt_h(steps=3), classes=top2)").maps).all()
