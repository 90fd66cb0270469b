"""No idle parameter: every field of every metric and baseline makes a difference, or another value of it is refused."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import vitrail
from helpers.fields import cases, told_apart, unseen
from vitrail import scenes
from vitrail.method import MDA
from vitrail.metric import METRICS, Case, Metric, parse
from vitrail.model import Target, View, load
from vitrail.perturb import Baseline, baseline
from vitrail.perturb.baselines import BASELINES
from vitrail.spec import Configured

STEP = 144 * 144 // 12

QUICK = {
    "comprehensiveness": "comprehensiveness(shares=(0.3, 0.8))",
    "sufficiency": "sufficiency(shares=(0.3, 0.8))",
    "aic": "aic(thresholds=(0.02, 0.2, 0.8))",
    "sic": "sic(thresholds=(0.02, 0.2, 0.8))",
    "avg_sensitivity": "avg_sensitivity(samples=2)",
    "max_sensitivity": "max_sensitivity(samples=2)",
    "noise_floor": "noise_floor(samples=2)",
    "infidelity": "infidelity(samples=8)",
    "faithfulness_correlation": "faithfulness_correlation(samples=16)",
    "irof": "irof(segments=9, iterations=1)",
    "cascading_randomisation": "cascading_randomisation(steps=2)",
    "mprt_smooth": "mprt_smooth(steps=1, samples=2)",
    "road": "road(shares=(0.1, 0.3, 0.6, 0.8))",
    "road_morf": "road_morf(shares=(0.1, 0.3, 0.6, 0.8))",
    "road_lerf": "road_lerf(shares=(0.1, 0.3, 0.6, 0.8))",
}

EVERYWHERE = ("enlarge", "sign", "target", "area", "aggregate", "brief", "similarity", "init", "monotone")
"""Choices that mean the same to every metric: the others are not tried once more beside each of them."""

COARSE = {"increase_in_confidence": ("sign", "enlarge"), "aic": ("sign", "aggregate")}
"""Fields that four pictures, each right or wrong, may not show; average_gain and sic read the same answers by them."""

DEAR = frozenset(
    {"aic", "sic", "irof", "infidelity", "faithfulness_correlation", "cascading_randomisation", "mprt_smooth"}
    | {"avg_sensitivity", "max_sensitivity", "insertion"}
)
"""Asked in `make test-slow`."""

OTHER: dict[tuple[str, str], tuple[Any, ...]] = {
    ("aic", "thresholds"): ((0.05, 0.2),),
    ("sic", "thresholds"): ((0.05, 0.2),),
    ("aic", "least"): (0.2, 0.999),
    ("sic", "least"): (0.2, 0.999),
    ("aic", "share"): (0.05, 0.1),
    ("sic", "share"): (0.05, 0.1),
    ("irof", "compactness"): (0.1, 100.0),
    **{(name, "step"): (STEP // 2,) for name in METRICS},
    **{(name, "shares"): ((0.1, 0.45), (0.3,)) for name in METRICS},
    **{(name, "tolerance"): (30.0, 90.0) for name in METRICS},
    **{(name, "below"): (0.01, 0.3) for name in METRICS},
    **{(name, "threshold"): (0.0, 0.2) for name in METRICS},
    **{(name, "kernel"): (5, 21) for name in (*METRICS, *BASELINES)},
    **{(name, "confidence"): (0.999999,) for name in METRICS},
}


@functools.cache
def known() -> tuple[View, dict[str, Any], Tensor]:
    """The embedded model; scenes of two objects, where what is predicted, explained and true is not always the same."""
    view = load("demo")
    made = [scenes.make(seed, objects=2) for seed in (7, 8, 9, 10)]
    images = view.preprocess.batch([scene.pil for scene in made])
    masks = torch.stack([torch.as_tensor(scene.objects[0].mask) for scene in made]).int()
    masks[1, :40] = -1
    with torch.no_grad():
        ranked = view.logits(images).argsort(1, descending=True)
    facts = {
        "target": Target(torch.stack([ranked[0, 0], ranked[1, 1], ranked[2, 0], ranked[3, 1]])),
        "labels": torch.stack([ranked[0, 0], ranked[1, 0], ranked[2, 1], ranked[3, 1]]),
        "masks": masks,
    }
    return view, facts, images


@functools.cache
def case(spec: str) -> Case:
    """The pictures with a method's maps; what one metric has asked of the model is there for the others."""
    view, facts, images = known()
    method = vitrail.method.parse(spec)
    if isinstance(method, MDA):  # its cells stay whole; chance has as much below zero as above
        maps = torch.randn(len(images), 9, 9, generator=torch.Generator().manual_seed(0))
    else:
        maps = vitrail.explain(view, images, method, facts["target"]).maps
    return Case(view, images, maps, method=method, **facts)


@functools.cache
def measured(metric: Configured, spec: str) -> Tensor | None:
    """What a metric gives for each of the pictures, and for all together; None where it is refused."""
    assert isinstance(metric, Metric)
    try:
        with known()[0].still():
            found = metric.measure(case(spec)).double()
        return torch.cat([metric.of_each(found).flatten(), metric.of_all(found).view(1)]).cpu()
    except vitrail.InputError:
        return None


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in DEAR)) for name in sorted(METRICS)]
)
def test_every_field_of_every_metric_counts(name: str) -> None:
    steps = "step" in METRICS[name].__dataclass_fields__
    first = parse(QUICK.get(name, f"{name}(baseline=zero_norm, step={STEP})" if steps else name))
    # Of methods that draw random numbers, metrics may tell old draws from new ones.
    specs = ("smoothgrad(ixg, samples=2)",) if "method" in first.needs else ("decompx", "mda")

    def results(metric: Configured) -> Iterator[Tensor | None]:
        return (measured(metric, spec) for spec in specs)

    idle = []
    for changed in cases(first, OTHER):
        if any(getattr(changed.before, key, None) != getattr(first, key, None) for key in EVERYWHERE):
            continue
        if changed.before != first and measured(changed.before, specs[0]) is None:
            continue  # a choice that this model refuses
        if name.startswith("road") and getattr(changed.before, "score", "") == "accuracy":
            continue  # a few rights and wrongs, which little changes
        if changed.field in COARSE.get(name, ()):
            continue  # likewise
        if told_apart(changed, results):
            continue
        reason = unseen(changed)
        print(f"{changed.name}: {reason}")
        idle += [] if reason else [changed.name]
    assert not idle, f"changes nothing, and is not refused: {'; '.join(idle)}"


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_field_of_every_baseline_counts(name: str) -> None:
    view, facts, images = known()

    def results(made: Configured) -> Iterator[Tensor | None]:
        assert isinstance(made, Baseline)
        try:
            yield made.fill(view, images, facts["target"])
        except vitrail.InputError:
            yield None

    special = OTHER | {
        ("adaptive_blur", "last"): (41, 61),
        ("adaptive_blur", "below"): (0.9, 0.5),
        ("adaptive_blur", "step"): (4, 20),
        ("adaptive_blur", "first"): (1, 51),
    }
    idle = [changed.name for changed in cases(baseline(name), special) if not told_apart(changed, results)]
    assert not idle, f"changes nothing, and is not refused: {'; '.join(idle)}"
