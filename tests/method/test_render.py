"""Search and render: fields that cost no pass can be changed afterwards, and one search serves many maps."""

import dataclasses
from pathlib import Path

import pytest
import torch

import vitrail
from helpers.small import quick, served_by
from helpers.zoo import pictures
from vitrail.bench import Plan, run
from vitrail.front import explain_each
from vitrail.method import METHODS, Batch, Method, Searches, explain_batch, parse
from vitrail.model import Target, load
from vitrail.model.trace import Meter

OTHERS: dict[tuple[str, str], tuple[object, ...]] = {
    ("mda", "gamma"): (0.5, 1.0),
    ("mda", "kappa"): (0.2,),
    ("mda", "enlarged"): ("smooth",),
    ("var", "temperatures"): ((2.0,), (0.5, 7.0)),
    ("var", "normalise"): ("joint_absmax", "per_class_absmax"),
    ("skipplus", "start"): (2, -1, "last", "middle"),
    ("skipplus", "compat"): ("authors",),
    ("aha", "contrast"): (1.0, 3.0),
}
"""Other values of render fields; of switches the other one."""

BESIDE: dict[tuple[str, str], dict[str, object]] = {
    ("mda", "kappa"): {"gamma": 0.7},
    ("skipplus", "compat"): {},
}
"""What must be set beside, so that a field counts."""

CASES = [(name, field) for name in sorted(METHODS) for field in METHODS[name].render_fields()]


def others(method: Method, field: str) -> tuple[object, ...]:
    value = getattr(method, field)
    return (not value,) if isinstance(value, bool) else OTHERS[method.id, field]


@pytest.mark.parametrize(("name", "field"), CASES)
def test_rendering_again_is_a_fresh_run(name: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = dataclasses.replace(quick(name), **BESIDE.get((name, field), {}))
    if name == "skipplus":
        method = dataclasses.replace(method, start=0)  # the whole search, of which any start can be rendered
    view = load("demo") if name == "aha" else served_by(method)
    images = pictures(2, view.size)
    found = vitrail.explain(view, images, method)
    stored = vitrail.Explanation.load(found.save(tmp_path / "stored"))
    for value in others(method, field):
        fresh = vitrail.explain(view, images, dataclasses.replace(method, **{field: value}))
        with monkeypatch.context() as patch:
            patch.setattr(Meter, "begin", lambda *_: pytest.fail("the model is asked"))
            for one in (found, stored):
                again = one.with_(**{field: value})
                scale = fresh.maps.abs().max()
                assert (again.maps - fresh.maps).abs().max() <= 1e-6 * scale
                assert (again.method, again.config, again.notes) == (fresh.method, fresh.config, fresh.notes)
                assert (again.signed, again.enlargement) == (fresh.signed, fresh.enlargement)
                assert (again.upsample() - fresh.upsample()).abs().max() <= 1e-6 * scale


def test_every_render_field_has_its_case() -> None:
    assert {("mda", "gamma"), ("var", "temperatures"), ("skipplus", "start"), ("tis", "normalise")} <= set(CASES)


def test_several_targets_are_rendered_again() -> None:
    images = pictures(2, (144, 144))
    found = vitrail.explain("demo", images, "gradcam", targets=["whale", 3])
    fresh = vitrail.explain("demo", images, "gradcam(relu=False)", targets=["whale", 3])
    assert torch.equal(found.with_(relu=False).maps, fresh.maps)


def test_what_cannot_be_rendered_gets_a_sentence() -> None:
    images = pictures(1, (144, 144))
    found = vitrail.explain("demo", images, "skipplus(ixg)")
    with pytest.raises(vitrail.InputError, match="begins at block 0, but this search began at block 3"):
        found.with_(start=0)
    with pytest.raises(
        vitrail.InputError, match="base cannot be changed without asking the model again; only start and"
    ):
        found.with_(base="decompx")
    with pytest.raises(vitrail.InputError, match="none of its parameters can be"):
        vitrail.explain("demo", images, "genatt").with_(start=1)


# ------------------------------------------------------------------------------------------------------- one search


def test_methods_that_render_the_same_search_share_it() -> None:
    view, images = load("demo"), pictures(2, (144, 144))
    specs = ["mda(cells=2, seed=None)", "mda(cells=2, seed=None, gamma=0.5)", "mda(cells=2, seed=None, gamma=1)"]
    alone = [vitrail.explain(view, images, spec) for spec in specs]
    before = view.meter.forwards
    together = explain_each(view, images, specs)
    assert view.meter.forwards - before == alone[0].forwards
    for one, other in zip(together, alone):
        assert torch.equal(one.maps, other.maps)
        assert (one.forwards, one.notes) == (other.forwards, other.notes)


def test_the_benchmark_shares_it_too(tmp_path: Path) -> None:
    specs = ("mda(cells=2, seed=None)", "mda(cells=2, seed=None, gamma=1)")

    def made(methods: tuple[str, ...]) -> float:
        plan, heard = Plan("demo", "scenes:2", methods, ("sparseness",), chunk=2), []
        run(plan, str(tmp_path / str(len(methods))), observers=[heard.append])
        return heard[-1].passes.forwards

    assert made(specs[:1]) == made(specs)


def test_searches_are_bounded_and_know_what_they_hold() -> None:
    view, images = load("demo"), pictures(3, (144, 144))
    method, searches = parse("rise(masks=4)"), Searches(most=2 * 144 * 144 * 4)
    target = Target(torch.tensor([1, 2, 3]))

    def forwards(images: torch.Tensor, target: Target, method: Method = method, precision: str = "fp32") -> int:
        before = view.meter.forwards
        with view.using(precision):
            explain_batch(view, method, [Batch(images, target, logits=torch.zeros(len(images), 12))], searches)
        return view.meter.forwards - before

    assert forwards(images, target) == 12
    assert len(searches) == 2, "those used last"
    assert forwards(images[1:], target.take(slice(1, 3))) == 0
    assert forwards(images, target) == 4, "of the first image alone"
    assert forwards(images[:1], Target(torch.tensor([2]))) == 4, "another class"
    assert forwards(images[:1], Target(torch.tensor([2])), parse("rise(masks=4, seed=1)")) == 4, "another search"
    assert forwards(images[:1], Target(torch.tensor([2])), precision="bf16") == 4, "another precision"
    function = Target(None, lambda logits: logits[:, 0])
    assert [forwards(images[:1], function) for _ in range(2)] == [4, 4], "functions cannot be told apart"
