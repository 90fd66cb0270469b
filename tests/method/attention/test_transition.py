"""Transition attention maps against the paper's matrix form, in float64."""

import pytest
import torch

import oracles.transition
import vitrail
from helpers.oracle import oracle
from helpers.small import MODELS, build, close, exact
from helpers.zoo import pictures
from vitrail.method import TransitionAttention
from vitrail.model import load


@oracle("t_attn")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("start", "last_twice"), [(2, False), (0, True)])
def test_agrees_with_the_matrix_form(model: str, start: int, last_twice: bool) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    method = TransitionAttention(steps=4, start=start, last_twice=last_twice)
    maps = exact(method, view, images, [0, 5])
    for image, target, found in zip(images, (0, 5), maps):
        assert close(found, oracles.transition.t_attn(module, image, target, 4, start, last_twice))


def test_the_way_in_parts_is_the_way_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    view = load(build("class token"))
    images = pictures(3, view.size).double()
    expected = TransitionAttention(steps=6).attribute(view, images, target=1)
    monkeypatch.setattr("vitrail.method.batch.COPIES_ON_CPU", 6)
    assert torch.allclose(TransitionAttention(steps=6).attribute(view, images, target=1), expected, rtol=1e-5)


def test_default_start_is_a_third_of_the_depth() -> None:
    view = load(build("class token", depth=6))
    image = pictures(1, view.size).double()
    maps = [TransitionAttention(steps=2, start=start).attribute(view, image) for start in (None, 2, 3)]
    assert torch.equal(maps[0], maps[1])
    assert not torch.allclose(maps[0], maps[2])


def test_it_costs_as_many_forwards_as_steps() -> None:
    found = vitrail.explain(build("class token"), pictures(2, (64, 64)), "t_attn(steps=5)", 1)
    assert found.forwards == 2 * 5


def test_wrong_settings_are_told() -> None:
    with pytest.raises(vitrail.InputError, match=r"steps to be 2 to 10,000 \(both ends of the way\)"):
        TransitionAttention(steps=1)
    view = load(build("class token"))
    with pytest.raises(vitrail.InputError, match="start must be 0 to 3"):
        TransitionAttention(start=4).attribute(view, pictures(1, view.size).double())


def test_w_alone_is_what_the_attention_is_multiplied_with() -> None:
    """Where the attention carried down is taken out of the map, the integrated attention gradient is left."""
    model = build("class token")
    images = pictures(2, (64, 64)).double()
    alone = exact("t_attn(steps=3, carried=False)", model, images, [1, 4])
    last = exact("t_attn(steps=3, start=last)", model, images, [1, 4])
    attention = exact("raw_attention(layer=last)", model, images, [1, 4])
    assert close(last, alone * attention)
    for given in ("start=0", "last_twice=True"):
        with pytest.raises(vitrail.InputError, match="reads the last block alone; leave start and last_twice out"):
            vitrail.explain(model, images, f"t_attn(carried=False, {given})")
