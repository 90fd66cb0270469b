"""No idle parameter: every field of every method makes a difference, or another value of it is refused."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

import vitrail
from helpers.fields import Case, cases, told_apart, unseen
from helpers.small import SIZES
from vitrail import scenes
from vitrail.method import METHODS, Batch, Layered, Method, Mixing, explain_batch, parse
from vitrail.method.base import Method as _Method
from vitrail.model import Target, View, load
from vitrail.spec import Configured

QUICK = {
    "ig": "ig(steps=3)",
    "smoothgrad": "smoothgrad(samples=2)",
    "scorecam": "scorecam(channels=4)",
    "ablationcam": "ablationcam(channels=4)",
    "bt_h": "bt_h(steps=3)",
    "bt_t": "bt_t(steps=3)",
    "t_attn": "t_attn(steps=3)",
    "rise": "rise(masks=6, grid=3, keep=0.5)",
    "occlusion": "occlusion(window=32, stride=32)",
    "pami": "pami(window=32, stride=32)",
    "lime": "lime(samples=12)",
    "kernel_shap": "kernel_shap(samples=12)",
    "shapley": "shapley(samples=2, grid=2)",
    "hsic": "hsic(designs=8, grid=2)",
    "tis": "tis(masks=200)",
    "vit_cx": "vit_cx(masks=6)",
    "less_is_more": "less_is_more(regions=(2, 2))",
}

DEAR = ("tis",)
"""Asked in `make test-slow`."""

OTHER: dict[tuple[str, str], tuple[Any, ...]] = {
    ("less_is_more", "regions"): ((2, 4), (1, 2)),
    ("tis", "keep"): ((0.25, 0.75),),
    ("less_is_more", "weights"): ((1.0, 0.0, 0.0, 0.0),),
    ("plus", "base"): (parse("ixg"),),
    ("skipplus", "base"): (parse("ixg"),),
    ("rollout", "base"): (parse("genatt"),),
    ("smoothgrad", "base"): (parse("ixg"),),
    ("var", "base"): (parse("ixg"),),
    ("var", "classes"): ("top2", "best_worst", (1, 2)),
    ("var", "temperatures"): ((0.01,),),
    ("tis", "layers"): ((0,), (1,)),
    ("scorecam", "channels"): (2, 3),
    ("atman", "grid"): (2,),
    ("lrp", "epsilon"): (0.5,),
    ("vit_cx", "threshold"): (1.9,),
}


@functools.cache
def views() -> tuple[View, ...]:
    """A class token, average pooling and a CNN, all small; and the embedded model."""

    def made(name: str, **options: Any) -> View:
        torch.manual_seed(1)
        model = timm.create_model(name, pretrained=False, **options).eval()
        for key, weight in model.named_parameters():
            if key.endswith("bias"):  # fresh models have biases of zero: nothing would be seen of them
                torch.nn.init.normal_(weight, std=0.2)
        return load(model, size=(64, 64))

    return (
        made("vit_tiny_patch16_224", **SIZES),
        made("vit_tiny_patch16_224", **SIZES | {"depth": 5, "global_pool": "avg"}),
        made("resnet18", num_classes=6),
        load("demo"),
    )


@functools.cache
def images(size: tuple[int, int]) -> Tensor:
    made = load("demo").preprocess.batch([scenes.make(seed).pil for seed in (7, 8, 9)])
    return torch.nn.functional.interpolate(made, size, mode="bilinear")


@functools.cache
def maps(method: Method, number: int) -> Tensor | None:
    """What a method gives on one of the models, or None where it is refused with a sentence."""
    view = views()[number]
    try:
        method.check(view)
        with view.still():
            batch = Batch(images(view.size), Target(torch.tensor([1, 2, 0])))
            return explain_batch(view, method, [batch])[0].maps.cpu()
    except vitrail.InputError:
        return None


def results(method: Configured) -> Iterator[Tensor | None]:
    assert isinstance(method, _Method)
    # Only many trained channels leave k-means with clusters that lose all of theirs.
    return (maps(method, number) for number in range(4 if method.id == "tis" else 3))


def lying(case: Case, seen: Case) -> str | None:
    """What lies idle though nothing is said about it; what is said to is printed.

    Args:
        case: The method.
        seen: What is run: the method, or a composition over it.
    """
    if told_apart(seen, results):
        return None
    reason = unseen(case)
    if reason:
        print(f"{seen.name}: {reason}")
        return None
    return seen.name


# tests/method/mda/test_mda.py and tests/method/aha/test_aha.py ask the same of theirs, on models made for them.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in DEAR)) for name in sorted({*METHODS} - {"aha", "mda"})],
)
def test_every_field_of_every_method_counts(name: str) -> None:
    idle = [found for case in cases(parse(QUICK.get(name, name)), OTHER) if (found := lying(case, case))]
    assert not idle, f"changes nothing, and is not refused: {'; '.join(idle)}"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (outer, inner)
        for outer, kind in (("plus", Layered), ("skipplus", Layered), ("rollout", Mixing))
        for inner, cls in sorted(METHODS.items())
        if issubclass(cls, kind)
    ],
)
def test_every_field_of_a_base_counts_in_a_composition(outer: str, inner: str) -> None:
    idle = []
    for case in cases(parse(inner), OTHER):
        try:
            before = parse(f"{outer}({case.before.spec})")
        except vitrail.InputError:
            continue
        if all(found is None for found in results(before)):
            continue  # refused by every model: zero by construction
        after = []
        for changed in case.after:
            try:
                after.append(parse(f"{outer}({changed.spec})"))
            except vitrail.InputError:
                continue
        found = lying(case, Case(before, tuple(after), "base")) if after else None
        idle += [found] if found else []
    assert not idle, f"changes nothing, and is not refused: {'; '.join(idle)}"
