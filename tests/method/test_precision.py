"""User precision is what is tested: maps in float32, bf16 and fp16 beside the same in float64, on trained weights."""

import copy
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

import vitrail
from helpers.specs import asks_much, cheaper, compositions, defaults, printed
from vitrail import scenes
from vitrail.method import parse
from vitrail.model import Precision, View, load

LEAST = 0.99
"""The rank correlation of a map with its float64 form."""

OFFERED: tuple[Precision, ...] = ("fp32", "bf16", "fp16")


def precisions(spec: str) -> tuple[Precision, ...]:
    """What may be asked for; most methods calculate in float32 whatever is, which a test below holds.

    MDA's search takes another way where two patches are nearly as good: its maps are judged by their scores instead,
    see docs/methods/mda.md.
    """
    return OFFERED if parse(spec).keeps_half() and "mda" not in spec else ("fp32",)


PICTURES = ("ILSVRC2012_val_00000293.jpg", "ILSVRC2012_val_00002138.jpg")


def wide(view: View) -> View:
    """The same model in float64."""
    made = load(copy.deepcopy(view.model).double(), size=view.size)
    made.preprocess, made.classes = view.preprocess, view.classes
    return made


def told(view: View, images: Tensor, spec: str, **options: Any) -> vitrail.Explanation | str:
    """The explanation, or the sentence that refuses it."""
    try:
        return vitrail.explain(view, images.to(view.dtype), cheaper(parse(spec)), batch=1, **options)
    except vitrail.InputError as refusal:
        return str(refusal).replace(view.name, "the model")


def apart(view: View, exact: View, images: Tensor, spec: str, asked: Iterable[Precision]) -> Iterator[str]:
    """In words, where a map has another order, or is empty, in one of the precisions and not in float64."""
    expected = told(exact, images, spec)
    for precision in asked:
        target = None if isinstance(expected, str) else expected.classes
        found = told(view, images, spec, target=target, precision=precision)
        if isinstance(found, str) or isinstance(expected, str):
            if found != expected:
                yield f"{spec}, {precision}: {found if isinstance(found, str) else 'a map'}, in float64 {expected}"
            continue
        for i, (one, other) in enumerate(zip(found.maps, expected.maps)):
            if bool(found.empty[i]) != bool(expected.empty[i]):
                yield f"{spec}, {precision}, picture {i}: empty in one of the two alone"
            elif not found.empty[i] and (rank := spearmanr(one.flatten(), other.flatten()).statistic) < LEAST:
                yield f"{spec}, {precision}, picture {i}: rank correlation {rank:.4f}"


@cache
def demo() -> tuple[View, View, Tensor]:
    view = load("demo")
    return view, wide(view), view.preprocess.batch([scenes.make(seed).pil for seed in (7, 8)])


LONG = (*(spec for spec in defaults() if asks_much(parse(spec))), *compositions())
"""Asked in `make test-slow`: a composition calculates what its parts do."""


@pytest.mark.parametrize(
    "spec", [*sorted({*defaults()} - {*LONG}), *(pytest.param(spec, marks=pytest.mark.slow) for spec in LONG)]
)
def test_maps_of_the_embedded_model_keep_their_order(spec: str) -> None:
    view, exact, images = demo()
    assert not list(apart(view, exact, images, spec, ("fp32",)))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [spec for spec in (*defaults(), *compositions()) if parse(spec).keeps_half()])
def test_maps_of_the_embedded_model_keep_their_order_in_half_precision(spec: str) -> None:
    view, exact, images = demo()
    assert not list(apart(view, exact, images, spec, precisions(spec)))


def test_most_methods_calculate_in_float32_whatever_is_asked_for() -> None:
    view, _, images = demo()
    for spec in (
        "ixg",
        "occlusion(window=48, stride=48)",
        "plus(gradcam++)",
        "var(decompx)",
        "shapley(samples=1, grid=3)",
    ):
        found = [vitrail.explain(view, images, spec, precision=precision) for precision in OFFERED]
        assert {one.precision for one in found} == {"fp32"}
        assert all(torch.equal(one.maps, found[0].maps) for one in found)
    assert vitrail.explain(view, images, "rise(masks=8)", precision="bf16").precision == "bf16"


def test_what_half_precision_loses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: small differences between answers in half precision have another order."""
    view, exact, images = demo()
    spec = "occlusion(window=48, stride=48)"
    assert not list(apart(view, exact, images, spec, ("bf16",)))
    monkeypatch.setattr(type(parse(spec)), "half", True)
    assert list(apart(view, exact, images, spec, ("bf16",)))


# ------------------------------------------------------------------------------------------------------ real pictures

MODELS = {
    "deit_tiny_patch16_224": "timm/deit_tiny_patch16_224",
    "vit_tiny_patch16_224": "timm/vit_tiny_patch16_224",
    "tf_efficientnet_lite0": "timm/tf_efficientnet_lite0",
}


@cache
def real(assets: Path, name: str) -> tuple[View, View, Tensor]:
    view = load(MODELS[name], assets / f"weights/{name}.safetensors", device="cpu")
    pictures = [assets / "data/imagenet_val/images" / picture for picture in PICTURES]
    return view, wide(view), view.preprocess.batch(pictures)


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted({*defaults(), *compositions(), *printed()}))
@pytest.mark.parametrize("model", MODELS)
def test_maps_of_real_weights_keep_their_order(assets: Path, model: str, spec: str) -> None:
    view, exact, images = real(assets, model)
    assert not list(apart(view, exact, images, spec, precisions(spec)))
