"""Every pair of MDA's parameters means something, and where memory runs out changes nothing."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import vitrail
from helpers import zoo
from helpers.small import build
from vitrail.method import MDA, parse
from vitrail.model import View

OTHERS = {
    "seed": ["random", "None"],
    "tau": ["0.05", "0", "1"],
    "window": ["1"],
    "kappa": ["0.2"],
    "gamma": ["0.5"],
    "baseline": ["zero_norm", "uniform_noise"],
    "blank": ["uniform_noise", "image_mean"],
    "cells": ["2"],
    "enlarged": ["smooth"],
    "compat": ["authors"],
}
"""Another legal value or two of each parameter."""

SETTINGS = [{"tau": "0"}, {"tau": "1"}, {"seed": "None"}, {"gamma": "1"}, {"enlarged": "smooth"}]


def refusal(base: dict[str, str], name: str) -> str | None:
    """Why a parameter says nothing beside the others."""
    if name == "gamma" and base.get("tau") == "1" and "compat" in base:
        return "has the sparse map alone, as their code does, so gamma says nothing there; leave it out, or give a tau"
    if name == "window" and base.get("seed") == "None":
        return "tries all patches that are left, so window says nothing there; leave it out, or give a seed"
    if name == "kappa" and "gamma" not in base:
        return "shows the sparse map alone, so kappa says nothing there; leave it out, or give a gamma above 0"
    if name == "blank" and base.get("tau") == "1":
        return "never deletes, so blank says nothing there; leave it out, or give a tau below 1"
    if name == "baseline" and base.get("tau") == "0" and "compat" not in base:
        return "never inserts, so baseline says nothing there; leave it out, or give a tau above 0"
    return None


def test_every_parameter_has_another_value() -> None:
    assert set(OTHERS) == {field.name for field in dataclasses.fields(MDA)}


@pytest.fixture(scope="module")
def decided() -> View:
    """A small ViT whose answers differ from patch to patch: the head's weights are large."""
    model = build("class token").float()
    with torch.no_grad():
        model.head.weight.mul_(40)
    return vitrail.load(model)


@pytest.mark.parametrize("compat", ["none", "authors"])
@pytest.mark.parametrize("setting", [{}, *(pytest.param(one, marks=pytest.mark.slow) for one in SETTINGS)], ids=str)
def test_every_pair_of_parameters_means_something(decided: View, setting: dict[str, str], compat: str) -> None:
    """Whatever one parameter is set to, another value of each other one changes the result, or is refused."""
    view, images = decided, zoo.pictures(3, (64, 64))
    base = setting | ({"compat": compat} if compat == "authors" else {})
    if refusal(base, "baseline") is None:
        base |= {"baseline": "rise_blur(31, 31)"}

    def drawn(given: dict[str, str]) -> Tensor:
        spec = f"mda({', '.join(f'{name}={value}' for name, value in given.items())})"
        found = vitrail.explain(view, images, spec)
        return parse(spec).enlarge(found.maps, found.size)

    first, idle = drawn(base), []
    for name, values in OTHERS.items():
        others = [base | {name: value} for value in values if name not in setting and base.get(name) != value]
        if words := refusal(base, name):
            for one in others:
                with pytest.raises(vitrail.InputError, match=words):
                    drawn(one)
        elif others and not any(differs(drawn, one, first) for one in others):
            idle.append(name)
    assert not idle, f"with {base} these change nothing, and are not refused: {idle}"


def differs(drawn: Callable[[dict[str, str]], Tensor], given: dict[str, str], first: Tensor) -> bool:
    try:
        return not torch.equal(drawn(given), first)
    except vitrail.InputError:  # refused beside another parameter, which has its own turn
        return False


@pytest.mark.parametrize("compat", ["none", "authors"])
def test_running_out_of_memory_changes_nothing(decided: View, compat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are halved in the search, in the second pass and between images: the order stays, and the map."""
    images, spec = zoo.pictures(3, (64, 64)), f"mda(baseline=rise_blur(31, 31), compat={compat})"
    whole = vitrail.explain(decided, images, spec)
    sizes: list[int] = []

    for name in ("answer", "logits"):
        asked = getattr(View, name)

        def tight(self: View, given: Tensor, *rest: object, asked: Callable[..., Tensor] = asked) -> Tensor:
            sizes.append(len(given))
            if len(given) > 5:
                raise torch.OutOfMemoryError("no room")
            return asked(self, given, *rest)

        monkeypatch.setattr(View, name, tight)
    halved = vitrail.explain(decided, images, spec)
    assert max(sizes) > 5 >= min(sizes)
    assert torch.equal(halved.extras["order"], whole.extras["order"])
    torch.testing.assert_close(halved.maps, whole.maps, rtol=1e-3, atol=1e-5)
