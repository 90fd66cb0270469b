"""What every method must do, run on the whole registry: a new method is tested by existing."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from helpers.small import exact, quick, served_by, serving, small_vit
from helpers.unchanged import Fuse, unchanged
from helpers.zoo import ZOO, fewest, pictures, view_of
from vitrail.method import METHODS
from vitrail.model import Need, View, load

# aha needs an explainer made for each model: tests/method/aha/test_aha.py asks the same of it.
NAMES = sorted(set(METHODS) - {"aha"})
every_method = pytest.mark.parametrize("name", NAMES)


def needs(name: str) -> frozenset[Need]:
    return quick(name).requirements()


def serves(model: str, name: str) -> bool:
    return needs(name) <= ZOO[model].offers


def cases(models: Callable[[str], Iterable[str]], few: Callable[[str], Iterable[str]]) -> list[Any]:
    """Every method on its models; `make test` asks the few, `make test-slow` all others."""
    return [
        pytest.param(name, model, marks=[pytest.mark.slow] * (model not in few(name)))
        for name in NAMES
        for model in models(name)
    ]


@pytest.mark.parametrize(("name", "model"), cases(lambda name: ZOO, lambda name: fewest(needs(name))))
def test_shape_and_finiteness_on_every_model(name: str, model: str) -> None:
    view, method, entry = view_of(model), quick(name, ZOO[model].size), ZOO[model]
    images = pictures(2, entry.size)
    if not serves(model, name):
        with pytest.raises(vitrail.InputError) as refusal:
            vitrail.explain(view, images, method)
        named = [word.strip(",") for word in str(refusal.value).rpartition(" use ")[2].split()]
        assert named
        assert all(METHODS[other]().requirements() <= view.offers for other in named), (
            "it names methods that would work"
        )
        return
    found = vitrail.explain(view, images, method)
    assert found.maps.shape == (2, *method.shape(view, entry.size))
    assert found.maps.dtype == torch.float32
    assert torch.isfinite(found.maps).all()
    assert found.maps[0].std() > 0, "a map that says nothing"
    own = getattr(method, "cells", getattr(method, "grid", None))  # some methods cut the picture into their own cells
    assert method.shape(view, entry.size) in (entry.grid, entry.size, (own, own))


def batched(name: str) -> list[str]:
    """Models that serve a method: a head of each kind, and a CNN."""
    return [model for model in ("dinov2_reg4", "average_pooled", "siglip", "resnet50") if serves(model, name)]


def one_of_each_kind(name: str) -> Iterable[str]:
    """The first with tokens, and the first without."""
    return {ZOO[model].prefix is None: model for model in reversed(batched(name))}.values()


@pytest.mark.parametrize(("name", "model"), cases(batched, one_of_each_kind))
def test_a_map_does_not_depend_on_what_else_is_in_the_batch(name: str, model: str) -> None:
    view, method = view_of(model), quick(name, ZOO[model].size)
    images = pictures(3, ZOO[model].size)
    together = vitrail.explain(view, images, method)
    alone = vitrail.explain(view, images[2:], method)
    scale = together.maps[2].abs().max()
    # The logits of random weights are small, and hidden patches may change them by little more than their rounding.
    rounding = 4 * torch.finfo(torch.float32).eps * together.logits[2].abs().max()
    apart = (together.maps[2] - alone.maps[0]).abs().max()
    assert apart <= max(2e-4 * scale, rounding), "place in the batch"
    again = vitrail.explain(view, images, method)
    assert torch.equal(together.maps, again.maps), "the same call twice"


@every_method
def test_a_map_does_not_depend_on_where_memory_runs_out(name: str) -> None:
    """Images and their copies go through by halves, down to two at a time, and give what they give together."""
    method = quick(name)
    view = served_by(method)
    model, images = view.model, pictures(3, view.size)
    expected = vitrail.explain(view, images, method, [1, 2, 3])
    refused: list[int] = []

    def crowded(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if len(args[0]) > 2:
            refused.append(len(args[0]))
            raise torch.OutOfMemoryError("no room")

    last = model.blocks[-1].norm1 if hasattr(model, "blocks") else model.layer4
    handle = last.register_forward_pre_hook(crowded)
    try:
        found = vitrail.explain(view, images, method, [1, 2, 3])
    finally:
        handle.remove()
    assert refused
    scale = expected.maps.abs().amax((1, 2), keepdim=True)
    rounding = 4 * torch.finfo(torch.float32).eps * expected.logits.abs().amax(1)[:, None, None]
    assert ((found.maps - expected.maps).abs() <= torch.maximum(2e-4 * scale, rounding)).all()
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)


@every_method
def test_no_grad_and_inference_mode_change_nothing(name: str) -> None:
    method = quick(name)
    view = served_by(method)
    images = pictures(2, view.size)
    expected = vitrail.explain(view, images, method).maps
    with torch.no_grad():
        assert torch.equal(vitrail.explain(view, images, method).maps, expected)
    with torch.inference_mode():
        assert torch.equal(vitrail.explain(view, images.clone(), method).maps, expected)


@every_method
def test_bf16_stays_close(name: str) -> None:
    method = quick(name)
    view = served_by(method)
    images = pictures(2, view.size)
    target = [1, 2]
    full = vitrail.explain(view, images, method, target).maps
    half = vitrail.explain(view, images, method, target, precision="bf16").maps
    assert half.dtype == torch.float32
    for a, b in zip(full, half):
        assert np.corrcoef(a.flatten(), b.flatten())[0, 1] > 0.9


@every_method
@pytest.mark.parametrize(
    ("weights", "digits"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)], ids=["double", "half"]
)
def test_maps_have_all_digits_of_the_model_and_float32_at_least(
    name: str, weights: torch.dtype, digits: torch.dtype
) -> None:
    method = quick(name)
    view = load(serving(method).to(weights))
    images = pictures(2, view.size)
    maps = exact(method, view, images.to(weights), [1, 2])
    # Random maps have no more digits; MDA's order is made strict in the type that is stored; probabilities are float64.
    assert maps.dtype in ((torch.float32,) if name in ("random", "mda") else (digits, torch.float64))
    assert torch.isfinite(maps).all()
    found = vitrail.explain(view, images, method, [1, 2])
    assert found.maps.dtype == found.logits.dtype == torch.float32
    for one, other, empty in zip(found.maps, maps.float(), found.empty):
        assert torch.equal(one, torch.zeros_like(one) if empty else other)
    # Patches of these pictures change the answers of random weights by less than half precision's rounding.
    assert not found.empty.any() or (name, weights) == ("atman", torch.bfloat16)


@every_method
def test_bad_targets_are_told(name: str) -> None:
    method = quick(name)
    view = served_by(method)
    bad: dict[str, Any] = {
        "1 targets were given for 2 images": [1],
        "class 5000 does not exist": 5000,
        "no class called 'cta'": "cta",
    }
    for words, target in bad.items():
        with pytest.raises(vitrail.InputError, match=words):
            vitrail.explain(view, pictures(2, view.size), method, target)


@every_method
def test_attribute_in_captums_manner(name: str) -> None:
    method = quick(name)
    model = serving(method)
    images = pictures(2, (64, 64) if isinstance(model, type(small_vit())) else (224, 224))
    maps = method.attribute(model, images, target=1)
    assert torch.equal(maps, vitrail.explain(model, images, method, 1).maps)


@every_method
@pytest.mark.parametrize("case", ["normal", "bad target", "module that raises"])
def test_the_model_comes_back_as_it_was(name: str, case: str) -> None:
    method = quick(name)
    model = serving(method)
    fuse = Fuse()
    last = "fc" if hasattr(model, "fc") else "head"
    setattr(model, last, nn.Sequential(fuse, getattr(model, last)))
    # A state nobody would guess: training mode with one part in evaluation, one frozen part, a gradient, a hook.
    model.train()
    children = [child for child in model.children() if list(child.parameters())]
    children[0].eval()
    children[-1].requires_grad_(False)
    for parameter in children[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    calls: list[int] = []
    children[0].register_forward_hook(lambda *_: calls.append(1))
    size = (64, 64) if hasattr(model, "patch_embed") else (224, 224)
    view: View = load(model, size=size)
    torch.manual_seed(5)
    images = pictures(2, size)
    with unchanged(model):
        if case == "normal":
            vitrail.explain(view, images, method)
        elif case == "bad target":
            with pytest.raises(vitrail.InputError):
                vitrail.explain(view, images, method, target=5000)
        else:
            fuse.holds = 0
            with pytest.raises(RuntimeError, match="the fuse blew"):
                vitrail.explain(view, images, method)
    assert calls, "the user's own hook still runs"
