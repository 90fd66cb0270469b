"""What every metric must do, run on the whole registry: a new metric is tested by existing."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from helpers.judged import SIZES, Judged, judged, quick
from helpers.unchanged import Fuse, unchanged
from vitrail import InputError, scenes
from vitrail.method import Batch, Method
from vitrail.method import parse as method_of
from vitrail.metric import METRICS, Case, Metric, metrics, parse
from vitrail.model import Precision, View, load

every_metric = pytest.mark.parametrize("name", metrics())
every_model = pytest.mark.parametrize("model", SIZES)

METHOD = method_of("gradcam")

RANKED = ("monotonicity",)
PERCENT = ("average_drop", "average_gain", "increase_in_confidence")


def near(name: str, found: Any, expected: Any, apart: float = 1e-5) -> None:
    scale = 100 if name in PERCENT else 1
    if name in RANKED:
        apart = max(apart, 0.05)  # of two answers that lie within rounding either may be the larger one
    np.testing.assert_allclose(found, expected, rtol=apart, atol=scale * apart)


@cache
def known(model: str) -> Judged:
    """Made once; for metrics that explain again, with the maps that their method gives."""
    return judged(model)


@cache
def explained(model: str) -> Tensor:
    return vitrail.explain(known(model).view, known(model).images, METHOD).maps


def metric_of(name: str, it: Judged) -> Metric:
    return parse(quick(name, it.view.size, tokens=it.tokens))


def case_of(name: str, it: Judged, maps: Tensor, rows: slice = slice(None)) -> Case:
    method = METHOD if "method" in METRICS[name].needs else None
    labels = torch.tensor(it.labels)[rows]
    return Case(
        it.view, it.images[rows], maps[rows], masks=it.masks[rows], labels=labels, method=method, others=it.images
    )


def measured(name: str, it: Judged, maps: Tensor, rows: slice = slice(None)) -> np.ndarray:
    """(N,) the number of each picture."""
    metric, case = metric_of(name, it), case_of(name, it, maps, rows)
    with it.view.still():
        found = metric.measure(case)
    assert len(found) == len(case)
    return metric.of_each(found).double().cpu().numpy()


def ordinary(name: str, model: str) -> tuple[Judged, Tensor]:
    return known(model), explained(model) if "method" in METRICS[name].needs else known(model).maps


def counts(name: str, each: np.ndarray) -> bool:
    """Whether there are numbers: of every picture, unless the metric says why some may have none."""
    says_why = type(metric_of(name, known("token"))).uncounted is not Metric.uncounted
    return not np.isinf(each).any() and (not np.isnan(each).all() if says_why else np.isfinite(each).all())


# ----------------------------------------------------------------------------------------------------- what comes out


@every_model
@every_metric
def test_ordinary_maps_have_finite_numbers(name: str, model: str) -> None:
    it, maps = ordinary(name, model)
    each = measured(name, it, maps)
    assert each.shape == (len(it.images),)
    assert counts(name, each), each
    metric, case = metric_of(name, it), case_of(name, it, maps)
    with it.view.still():
        assert torch.isfinite(metric.of_all(metric.measure(case))), "of all together"


@every_model
@every_metric
def test_a_number_does_not_depend_on_what_else_is_in_the_batch(name: str, model: str) -> None:
    it, maps = ordinary(name, model)
    together = measured(name, it, maps)
    for i in (1, 3):
        alone = measured(name, it, maps, slice(i, i + 1))
        near(name, alone[0], together[i])
    assert np.array_equal(measured(name, it, maps), together, equal_nan=True), "the same call twice"


@every_metric
def test_no_grad_and_inference_mode_change_nothing(name: str) -> None:
    it, maps = ordinary(name, "token")
    expected = measured(name, it, maps)
    with torch.no_grad():
        assert np.array_equal(measured(name, it, maps), expected, equal_nan=True)
    with torch.inference_mode():
        assert np.array_equal(measured(name, it, maps.clone()), expected, equal_nan=True)


LITTLE = {
    "all zero": lambda maps: torch.zeros_like(maps),
    "all one": lambda maps: torch.ones_like(maps),
    "all below zero": lambda maps: torch.full_like(maps, -2.0),
    "ties": lambda maps: maps.sign(),
    "one cell": lambda maps: (maps == maps.amax((1, 2), keepdim=True)).float(),
    "next to nothing": lambda maps: maps * 1e-30,
    "huge": lambda maps: maps * 1e30,
}


@pytest.mark.parametrize("kind", LITTLE)
@every_metric
def test_maps_that_say_little_have_finite_numbers(name: str, kind: str) -> None:
    it, maps = ordinary(name, "token")
    little = LITTLE[kind](maps)
    each = measured(name, it, little)
    assert counts(name, each), each
    near(name, measured(name, it, little, slice(2, 3))[0], each[2])


@dataclass(frozen=True)
class Broken(Method):
    """Gives a map with a hole."""

    id = "broken"
    needs = frozenset()

    def maps(self, view: View, batch: Batch) -> Tensor:
        batch.settle(view)
        found = torch.ones(len(batch), *view.grid)
        found[-1, 0, 0] = torch.nan
        return found


@pytest.mark.parametrize("hole", [torch.nan, torch.inf, -torch.inf])
@every_metric
def test_maps_that_are_not_finite_are_refused(name: str, hole: float) -> None:
    it, maps = ordinary(name, "token")
    given: Any = Broken()
    if "method" not in METRICS[name].needs:
        given = maps.clone()
        given[1, 2, 0] = hole
    with pytest.raises(InputError, match="finite"):
        vitrail.evaluate(it.view, it.images, given, metric_of(name, it), **it.known)


@pytest.mark.parametrize(("name", "need"), [(name, need) for name in metrics() for need in sorted(METRICS[name].needs)])
def test_what_a_metric_needs_is_asked_for(name: str, need: str) -> None:
    it, maps = ordinary(name, "token")
    before = it.view.meter.forwards
    given = {key: value for key, value in it.known.items() if key != need}
    words = {"masks": "give masks or boxes", "labels": "give labels", "method": "needs the method"}
    with pytest.raises(InputError, match=words[need]):
        vitrail.evaluate(it.view, it.images, maps if need == "method" else METHOD, metric_of(name, it), **given)
    assert it.view.meter.forwards == before, "before any work is done"


# ----------------------------------------------------------------------------------------------------- what stays


@pytest.mark.parametrize("raises", [False, True], ids=["normal", "module that raises"])
@every_metric
def test_model_and_inputs_come_back_as_they_were(name: str, raises: bool) -> None:
    it = judged("token")
    fuse, module = Fuse(), it.view.model
    module.head = nn.Sequential(fuse, module.head)
    # A state nobody would guess: training mode with one part in evaluation, one frozen part, a gradient, a hook.
    module.train()
    module.blocks[0].eval()
    module.blocks[1].requires_grad_(False)
    for parameter in module.patch_embed.parameters():
        parameter.grad = torch.ones_like(parameter)
    calls: list[int] = []
    module.patch_embed.register_forward_hook(lambda *_: calls.append(1))
    it = replace(it, view=load(module, size=it.view.size))
    given = METHOD if "method" in METRICS[name].needs else it.maps
    inputs = it.images, it.maps, it.masks
    copies = [x.clone() for x in inputs]
    torch.manual_seed(5)

    def evaluate() -> None:
        vitrail.evaluate(it.view, it.images, given, metric_of(name, it), **it.known)

    with unchanged(module):
        evaluate()
    if raises:
        fuse.passed = 0
        evaluate()
        fuse.holds = fuse.passed + fuse.passed // 2
        with unchanged(module), pytest.raises(RuntimeError, match="the fuse blew") if fuse.passed else nullcontext():
            evaluate()
    assert all(torch.equal(one, other) for one, other in zip(inputs, copies))
    assert calls, "the user's own hook still runs"


@contextmanager
def crowded(module: nn.Module, most: int) -> Iterator[list[int]]:
    """Memory runs out where more pictures than this go through at once."""
    refused: list[int] = []

    def check(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if len(args[0]) > most:
            refused.append(len(args[0]))
            raise torch.OutOfMemoryError("no room")

    handle = module.register_forward_pre_hook(check)
    try:
        yield refused
    finally:
        handle.remove()


@pytest.mark.parametrize("model", ["token", "cnn"])
@every_metric
def test_a_number_does_not_depend_on_where_memory_runs_out(name: str, model: str) -> None:
    it, maps = ordinary(name, model)
    expected = measured(name, it, maps)
    # A part of the last block: the block itself is bypassed where pictures are only embedded.
    module = it.view.model.layer4 if model == "cnn" else it.view.model.blocks[-1].norm1
    with crowded(module, 2) as refused:
        found = measured(name, it, maps)
    assert refused or not asks(name, it, maps)
    near(name, found, expected)


def asks(name: str, it: Judged, maps: Tensor) -> bool:
    """Whether a metric asks the model anything."""
    before = it.view.meter.forwards
    measured(name, it, maps)
    return it.view.meter.forwards > before


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@every_metric
def test_half_precision_is_near(name: str, precision: Precision) -> None:
    """And where the method calculates in float32 all the same, so do its maps of other pictures and models."""
    it, maps = ordinary(name, "token")
    again = "method" in METRICS[name].needs
    full, half = (
        vitrail.evaluate(it.view, it.images, METHOD if again else maps, metric_of(name, it), precision=p, **it.known)
        for p in ("fp32", precision)
    )
    near(name, half.rows[0].each, full.rows[0].each, 1e-5 if again and name != "grid_pointing_game" else 0.03)


# ------------------------------------------------------------------------------------------------ which way is better

STEP = 144 * 144 // 8

ASKED = {
    # The embedded model knows most scenes through a blur, and without a tenth of their patches.
    "insertion": f"insertion(baseline=zero_norm, step={STEP})",
    "mas_insertion": f"mas_insertion(baseline=zero_norm, step={STEP})",
    "faithfulness_correlation": "faithfulness_correlation(samples=40, share=0.8)",
    "infidelity": "infidelity(samples=32)",
    "sic": "sic(thresholds=(0.05, 0.1, 0.2, 0.5), least=0.5)",
    "aic": "aic(thresholds=(0.05, 0.1, 0.2, 0.5))",
    "irof": "irof(segments=16)",
}

NO_ORDER = ("monotonicity",)
"""A curve may rise as steadily along a bad map as along a good one: docs/results/mask_truth.md."""

ELSEWHERE = ("aic", "sic", "average_gain", "increase_in_confidence", "infidelity", "complexity", "sparseness")
"""Metrics that may put a random map before the mask, or behind its negative: the same page says why. The last two look
at no picture, and random cells are fewer than pixels."""


def asked(name: str) -> str:
    return parse(ASKED.get(name, quick(name, (144, 144)))).spec


@cache
def truth(again: bool) -> vitrail.Scores:
    """What metrics say of maps known to be good and bad: the object's own mask, random cells, all but the mask.

    A mask has no method, so metrics that explain again are asked about a method that looks, and one that does not.
    """
    # Mosaics want many classes, and cost little.
    view, seeds = vitrail.load("demo"), range(6) if again else (1, 2, 4)
    world = [scenes.make(seed, objects=1) for seed in seeds]
    images = view.preprocess.batch([scene.pil for scene in world])
    masks = torch.stack([torch.from_numpy(scene.objects[0].mask) for scene in world]).float()
    noise = torch.rand(len(world), 12, 12, generator=torch.Generator().manual_seed(0))
    given: Any = {"good": masks, "random": noise, "bad": 1 - masks}
    if again:
        given = {"good": "decompx", "bad": "random"}
    wanted = [asked(name) for name in metrics() if ("method" in METRICS[name].needs) == again and name not in NO_ORDER]
    labels = [scene.label for scene in world]
    return vitrail.evaluate(view, images, given, wanted, masks=masks.bool(), labels=labels)


@pytest.mark.parametrize("name", [name for name in metrics() if name not in NO_ORDER])
def test_a_good_map_is_better_than_a_bad_one(name: str) -> None:
    scores = truth("method" in METRICS[name].needs)
    values = {map_: scores.row(asked(name), map_).value for map_ in scores.methods}
    good, bad = values["good"], values["bad"]
    assert good > bad if METRICS[name].higher_is_better else good < bad, values
    if "random" in values and name not in ELSEWHERE:
        assert min(good, bad) <= values["random"] <= max(good, bad), values
