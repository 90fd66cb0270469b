"""MDA: the order and the magnitudes of the paper, batched; whatever the responses are, a strict order comes out."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import vitrail
import zoo
from oracles import mda as oracle
from vitrail import scenes
from vitrail.method import MDA, Batch, parse
from vitrail.method.greedy import Search
from vitrail.method.magnitude import concave_steps, monotone, sparse_and_dense, strictly_falling
from vitrail.method.mda_authors import blurred_seed, shifted_labels
from vitrail.perturb import grid_labels

DEMO = "demo"


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    view = vitrail.load(DEMO)
    return view.preprocess.batch([scenes.make(seed).pil for seed in (3, 4)])


# ---------------------------------------------------------------------------------------------------- against the paper


@pytest.mark.parametrize("spec", ["mda(cells=3, baseline=rise_blur(31,31))", "mda(cells=2, tau=0.5, seed=None)"])
def test_equals_the_paper_done_slowly(inputs: Tensor, spec: str) -> None:
    view, method = vitrail.load(copy.deepcopy(vitrail.load(DEMO).model).double(), size=(144, 144)), parse(spec)
    assert isinstance(method, MDA)
    inputs = inputs.double()
    batch = Batch(inputs)
    with view.still():
        found = method.maps(view, batch)
        target = batch.settle(view)
        blurred = method.baseline.fill(view, inputs, target)
    n = method.cells**2
    for i in range(len(inputs)):
        if method.seed is None:
            seed = list(range(n))
        else:
            heat = method.seed.maps(view, Batch(inputs[i : i + 1], target.take(slice(i, i + 1))))
            pooled = torch.nn.functional.adaptive_avg_pool2d(heat[None], (method.cells, method.cells)).flatten()
            seed = sorted(range(n), key=lambda p: (-pooled[p].item(), p))
        window = n if method.seed is None else 2 * method.cells
        labels = grid_labels(view.size, (method.cells, method.cells))
        response = oracle.response_of(view, inputs[i], labels, int(target.classes[i]))
        blank = torch.zeros_like(inputs[i])
        order, inserted = oracle.best_order(response, blurred[i], blank, seed, window, method.tau)
        assert batch.extras["order"][i].tolist() == order
        insertion, deletion = oracle.curves(response, blurred[i], blank, order)
        np.testing.assert_allclose(batch.extras["insertion"][i], insertion, rtol=1e-9)
        np.testing.assert_allclose(batch.extras["deletion"][i], deletion, rtol=1e-9)
        density = oracle.density_curve(oracle.mean_curve(insertion, deletion))
        sparse, dense = oracle.magnitudes(density, method.kappa)
        np.testing.assert_allclose(found[i].flatten()[order], sparse, atol=2e-6)  # what is added against ties
        np.testing.assert_allclose(batch.extras["dense"][i].flatten()[order], dense, atol=2e-6)
        assert 0 <= inserted <= n


def test_many_images_in_lockstep_are_each_alone(inputs: Tensor) -> None:
    spec = "mda(cells=3)"
    together = vitrail.explain(DEMO, inputs, spec)
    for i in range(len(inputs)):
        alone = vitrail.explain(DEMO, inputs[i : i + 1], spec)
        assert torch.equal(alone.extras["order"][0], together.extras["order"][i])
        torch.testing.assert_close(alone.maps[0], together.maps[i], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("objective", ["insertion", "deletion"])
def test_one_metric_alone(inputs: Tensor, objective: str) -> None:
    """Each objective is at least as good at its own metric as the other one is."""
    view = vitrail.load(DEMO)
    scores = {}
    for name in ("insertion", "deletion"):
        found = vitrail.explain(view, inputs, f"mda(cells=3, seed=None, objective={name})")
        scores[name] = found.extras[objective].mean()
    if objective == "insertion":
        assert scores["insertion"] >= scores["deletion"]
    else:
        assert scores["deletion"] <= scores["insertion"]


def test_the_window_and_the_count_of_passes(inputs: Tensor) -> None:
    view = vitrail.load(DEMO)
    method = MDA(cells=4, baseline=parse("mda(baseline=zero_norm)").baseline)
    found = vitrail.explain(view, inputs[:1], method)
    # One clean pass, 20 of the seed's, the two empty pictures, the search in windows of 8 of 16 patches, and the gaps
    # of the curves: each point of both but the ends, less those that the search came by.
    search = 8 * 8 + 8 * 9 // 2
    gaps = 15 - 1
    assert found.forwards == 1 + 20 + 2 + search + gaps
    assert abs(method.passes(view, view.size) - found.forwards) < 10


def test_on_a_model_without_attention() -> None:
    view = zoo.view_of("resnet50")
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with pytest.raises(vitrail.InputError, match="needs attention between all patches"):
        vitrail.explain(view, images, "mda")
    found = vitrail.explain(view, images, "mda(seed=gradcam, cells=2)")
    assert sorted(found.extras["order"][0].tolist()) == [0, 1, 2, 3]


# ---------------------------------------------------------------------------------------------------- gamma


def test_gamma_needs_no_model(inputs: Tensor, tmp_path) -> None:
    found = vitrail.explain(DEMO, inputs, "mda(cells=3)")
    view = vitrail.load(DEMO)
    for gamma in (0.0, 0.3, 1.0):
        forwards = view.meter.forwards
        again = found.with_gamma(gamma)
        assert view.meter.forwards == forwards
        fresh = vitrail.explain(DEMO, inputs, f"mda(cells=3, gamma={gamma})")
        assert torch.equal(again.maps, fresh.maps)
        assert (again.method, again.config) == (fresh.method, fresh.config)
        ordered = again.maps.flatten(1).gather(1, found.extras["order"])
        assert (ordered.diff(dim=1) < 0).all()
    stored = vitrail.Explanation.load(found.save(tmp_path / "run"))
    assert torch.equal(stored.with_gamma(0.3).maps, found.with_gamma(0.3).maps)
    assert found.first(1).with_gamma(1).maps.shape == (1, 3, 3)
    with pytest.raises(vitrail.InputError, match="gamma must be between 0"):
        found.with_gamma(2)
    with pytest.raises(vitrail.InputError, match="this one is by saliency"):
        vitrail.explain(DEMO, inputs, "saliency").with_gamma(0.5)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mda(tau=0)", "tau must be above 0"),
        ("mda(gamma=1.5)", "gamma must be between"),
        ("mda(window=0)", "window must be 1 or more"),
        ("mda(cells=0)", "cells must be 1 or more"),
        ("mda(baseline=3)", "must be a baseline, but 3 was given"),
        ("mda(seed=rise_blur)", "no method called 'rise_blur'"),
    ],
)
def test_mistakes_get_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        parse(spec)


# ---------------------------------------------------------------------------------------------------- magnitudes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=24))
def test_the_quadratic_programme_is_solved(values: list[float]) -> None:
    curve = np.concatenate([[0], np.sort(values), [1]])
    steps = concave_steps(curve)
    assert (np.diff(steps) <= 0).all()
    assert (steps >= 0).all()
    assert steps.sum() == pytest.approx(1)
    ours, theirs = np.concatenate([[0], steps.cumsum()]), oracle.density_curve(curve)
    np.testing.assert_allclose(ours, theirs, atol=1e-7)


def test_a_curve_that_is_concave_already_stays() -> None:
    curve = np.sqrt(np.linspace(0, 1, 197))
    np.testing.assert_allclose(concave_steps(curve), np.diff(curve), atol=1e-9)


def test_strict_order_also_where_nothing_tells_patches_apart() -> None:
    flat = concave_steps(np.array([0.0, 1, 1, 1, 1, 1]))
    sparse, dense = sparse_and_dense(flat, 0.005)
    assert (np.diff(sparse) < 0).all()
    assert (np.diff(dense) < 0).all()
    assert (np.diff(strictly_falling(np.full(784, 0.25))) < 0).all()


# ---------------------------------------------------------------------------------------------------- any responses


class Answers:
    """Stands for a responder: a response for every set of shown patches, made up by hypothesis."""

    def __init__(self, patches: int, images: int, table: list[float], kind: str) -> None:
        self.patches, self.images, self.table, self.kind = patches, images, table, kind

    def __call__(self, which: Tensor, shown, fill=0) -> Tensor:
        rows = shown(slice(None)) if callable(shown) else shown
        fills = torch.as_tensor(fill).expand(len(which))
        return torch.tensor([self.one(int(i), row, int(f)) for i, row, f in zip(which, rows, fills)])

    def one(self, image: int, row: Tensor, fill: int) -> float:
        count, code = int(row.sum()), int((row * (torch.arange(self.patches) + 1)).sum())
        share = count / self.patches
        noise = self.table[(code * 7 + image * 3 + fill) % len(self.table)]
        return {
            "any": noise,
            "flat": self.table[image % len(self.table)],
            "ties": round(noise, 1),
            "rising": share,
            "falls_first": abs(2 * share - 1),
            "last": float(count == self.patches),
            "blur_above_clean": (1 - share) if fill == 0 else share,
            "steep": 1.0 if count else 0.0,
        }[self.kind]


KINDS = ["any", "flat", "ties", "rising", "falls_first", "last", "blur_above_clean", "steep"]


@settings(max_examples=1000, deadline=None)
@given(
    patches=st.integers(1, 7),
    images=st.integers(1, 3),
    window=st.integers(1, 9),
    tau=st.floats(0.01, 1),
    kind=st.sampled_from(KINDS),
    table=st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), min_size=1, max_size=17),
    objective=st.sampled_from(["joint", "insertion", "deletion"]),
    late=st.booleans(),
    seed=st.integers(0, 99),
)
def test_never_crashes_and_always_gives_a_strict_order(
    patches: int,
    images: int,
    window: int,
    tau: float,
    kind: str,
    table: list[float],
    objective: str,
    late: bool,
    seed: int,
) -> None:
    ask = Answers(patches, images, table, kind)
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.stack([torch.randperm(patches, generator=generator) for _ in range(images)])
    which = torch.arange(images)
    whole = ask(which, torch.ones(images, patches, dtype=torch.bool))
    method = MDA(tau=tau, objective=objective)
    blurred, blank = (ask(which, torch.zeros(images, patches, dtype=torch.bool), fill) for fill in (0, 1))
    until = method._until(blurred, whole)
    found = Search(ask, ranks, min(window, patches), (blurred, blank, whole), until, late).run()
    assert torch.equal(found.order.sort(dim=1).values, torch.arange(patches).expand(images, -1))
    for values in method._magnitudes(found):
        assert np.isfinite(values).all()
        assert (np.diff(values, axis=1) < 0).all()


def test_monotone_of_odd_curves() -> None:
    nan = float("nan")
    assert monotone(np.array([0.2, nan, 0.1, 0.6]), 0.2, 0.6, rising=True).tolist() == pytest.approx([0, 0, 0, 1])
    assert monotone(np.array([0.9, 0.9]), 0.9, 0.9, rising=True).tolist() == [0, 1]
    assert monotone(np.array([0.1, 0.7, 0.5]), 0.5, 0.1, rising=False).tolist() == [1, 0.5, 0]


# ---------------------------------------------------------------------------------------------------- the authors' way


def test_the_authors_segments_are_one_pixel_off() -> None:
    labels = shifted_labels((224, 224), (14, 14))
    widths = labels[0].bincount().tolist()
    assert widths == [17, *[16] * 12, 15]
    assert torch.equal(labels[:, 0] // 14, labels[0])


def test_the_authors_seed_is_blurred() -> None:
    heat = torch.zeros(1, 14, 14)
    heat[0, 5, 5] = 1
    small = blurred_seed(heat, (224, 224), (14, 14))
    assert small.argmax() == 5 * 14 + 5
    assert 0.2 < small.max() < 0.9
    assert small[0, 5, 6] > 0.01
