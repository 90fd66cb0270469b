"""Nothing from nothing: no method draws evidence where there is none, and what is zero by construction is refused."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import vitrail
from helpers.small import quick, served_by
from vitrail import scenes
from vitrail.method import MDA, METHODS, Batch, Method, parse
from vitrail.model import View, load
from vitrail.perturb import BlackPixel

SAYING_NOTHING = ("random", "aha", "var")
"""Without a look at the answer; and two that explain classes alone."""

ASKING = (
    *(
        "rise(masks=32)",
        "occlusion",
        "pami",
        "lime(samples=64)",
        "kernel_shap(samples=64)",
        "shapley(samples=1, grid=3)",
    ),
    *("hsic(designs=32, grid=3)", "less_is_more(regions=(2, 2))", "mda(seed=None, cells=3)"),
)
"""Methods whose baseline can be the picture itself."""


def scene() -> Tensor:
    return load("demo").preprocess.batch([scenes.make(7).pil])


def constant(logits: Tensor) -> Tensor:
    return 0 * logits[:, 0] + 1


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(SAYING_NOTHING)))
def test_an_answer_that_never_changes_has_no_map(name: str) -> None:
    method = quick(name)
    if not method.tells_classes():
        pytest.skip("its map does not depend on what is explained")
    view = served_by(method)
    images = torch.nn.functional.interpolate(scene(), view.size)
    found = vitrail.explain(view, images, method, constant)
    assert found.empty.all()
    assert any("the map is empty" in note for note in found.notes[0])


@pytest.mark.parametrize("spec", ASKING)
def test_a_picture_that_is_its_own_baseline_has_no_map(spec: str) -> None:
    method = replace(parse(spec), baseline=BlackPixel())
    if isinstance(method, MDA):
        method = replace(method, blank=BlackPixel())
    view = load("demo")
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (view.preprocess.mean, view.preprocess.std))
    black = (-mean / std).expand(1, 3, *view.size)
    both = torch.cat([black, scene()])
    found = vitrail.explain(view, both, method)
    assert found.empty.tolist() == [True, False]
    assert any("the map is empty" in note for note in found.notes[0])
    assert not any("the map is empty" in note for note in found.notes[1])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("plus(saliency(reduce=sum))", "whatever the picture.*ignore shifts.*use reduce=abs"),
        ("skipplus(saliency(reduce=sum))", "whatever the picture.*ignore shifts.*use reduce=abs"),
        ("skipplus(ixg, start=last)", "whatever the picture.*begin earlier, or use"),
        ("skipplus(hirescam, start=last)", "whatever the picture.*begin earlier, or use"),
        ("att_ixg(layer=-1)", "reads none; take an earlier block"),
        ("skipplus(att_ixg, start=last)", "reads none; take an earlier block"),
    ],
)
def test_what_is_zero_by_construction_is_refused(spec: str, words: str) -> None:
    """On a model whose head reads the class token alone; its blocks see patches through a norm."""
    with pytest.raises(vitrail.InputError, match=words):
        vitrail.explain(served_by(parse("ixg")), torch.zeros(1, 3, 64, 64), spec)


def test_terms_that_cancel_are_no_map() -> None:
    """Sums no larger than the rounding of their terms become zero, and only those."""

    @dataclass(frozen=True)
    class Cancelling(Method):
        id = "cancelling"
        needs = frozenset()

        def maps(self, view: View, batch: Batch) -> Tensor:
            terms = torch.rand(len(batch), *view.grid, 64, generator=torch.Generator().manual_seed(0))
            terms = torch.cat([terms, -terms.flip(-1)], -1)
            terms[1, ..., 0] += 1e-3
            batch.rounded(terms)
            return terms.sum(-1)

    view = load("demo")
    found = vitrail.explain(view, scene().expand(2, -1, -1, -1), Cancelling())
    assert found.empty.tolist() == [True, False]
    assert "rounding of its own computation" in found.notes[0][0]
    assert found.notes[1] == ()
