"""MDA: the order and the magnitudes of the paper, batched; whatever the responses are, a strict order comes out."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import vitrail
from helpers import zoo
from helpers.oracle import oracle
from oracles import mda as slow
from vitrail import scenes
from vitrail.method import MDA, Batch, parse
from vitrail.method.mda.authors import blurred_seed, shifted_labels
from vitrail.method.mda.magnitude import (
    concave_steps,
    monotone,
    sparse_of,
)
from vitrail.method.mda.search import Search
from vitrail.perturb import grid_labels

DEMO = "demo"


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    view = vitrail.load(DEMO)
    return view.preprocess.batch([scenes.make(seed).pil for seed in (3, 4)])


# ---------------------------------------------------------------------------------------------------- against the paper


@oracle("mda")
@pytest.mark.parametrize(
    "spec",
    [
        "mda(cells=2, tau=0.5, seed=None)",
        pytest.param("mda(cells=3, baseline=rise_blur(31,31))", marks=pytest.mark.slow),
    ],
)
def test_equals_the_paper_done_slowly(inputs: Tensor, spec: str) -> None:
    view, method = vitrail.load(copy.deepcopy(vitrail.load(DEMO).model).double(), size=(144, 144)), parse(spec)
    assert isinstance(method, MDA)
    inputs = inputs.double()
    batch = Batch(inputs)
    with view.still():
        state = method.search(view, batch)
        found, dense_maps = method.render(state), method.dense(state)
        target = batch.settle(view)
        blurred = method.baseline.fill(view, inputs, target)
    n = method.cells**2
    for i in range(len(inputs)):
        first = method.seeding(view)
        if first is None:
            seed = list(range(n))
        else:
            heat = first.maps(view, Batch(inputs[i : i + 1], target.take(slice(i, i + 1))))
            pooled = torch.nn.functional.adaptive_avg_pool2d(heat[None], (method.cells, method.cells)).flatten()
            seed = sorted(range(n), key=lambda p: (-pooled[p].item(), p))
        window = n if first is None else 2 * method.cells
        labels = grid_labels(view.size, (method.cells, method.cells))
        response = slow.response_of(view, inputs[i], labels, int(target.classes[i]))
        blank = torch.zeros_like(inputs[i])
        order, inserted = slow.best_order(response, blurred[i], blank, seed, window, method.tau)
        assert state["order"][i].tolist() == order
        insertion, deletion = slow.curves(response, blurred[i], blank, order)
        np.testing.assert_allclose(state["insertion"][i], insertion, rtol=1e-9)
        np.testing.assert_allclose(state["deletion"][i], deletion, rtol=1e-9)
        density = slow.density_curve(slow.mean_curve(insertion, deletion))
        sparse, dense = slow.magnitudes(density, method.kappa)
        np.testing.assert_allclose(found[i].flatten()[order], sparse, atol=2e-6)  # what is added against ties
        np.testing.assert_allclose(dense_maps[i].flatten()[order], dense, atol=2e-6)
        assert 0 <= inserted <= n


def test_many_images_in_lockstep_are_each_alone(inputs: Tensor) -> None:
    spec = "mda(cells=3)"
    together = vitrail.explain(DEMO, inputs, spec)
    for i in range(len(inputs)):
        alone = vitrail.explain(DEMO, inputs[i : i + 1], spec)
        assert torch.equal(alone.extras["order"][0], together.extras["order"][i])
        torch.testing.assert_close(alone.maps[0], together.maps[i], rtol=1e-3, atol=1e-5)


def test_tau_goes_from_deletion_alone_to_insertion_alone(inputs: Tensor) -> None:
    """As the paper has it (A.4): at each end order and magnitudes are for one metric, and better at it."""
    view = vitrail.load(DEMO)
    deletion, insertion = (vitrail.explain(view, inputs, f"mda(cells=3, seed=None, tau={tau})") for tau in (0, 1))
    assert insertion.extras["insertion"].mean() >= deletion.extras["insertion"].mean()
    assert deletion.extras["deletion"].mean() <= insertion.extras["deletion"].mean()
    for found, curve, rising in ((insertion, "insertion", True), (deletion, "deletion", False)):
        for i in range(len(found)):
            values = found.extras[curve][i].double().numpy()
            ends = (values[0], values[-1]) if rising else (values[-1], values[0])
            curve_of = monotone(values, *ends, rising=rising)
            steps = concave_steps(curve_of if rising else 1 - curve_of)
            order = found.extras["order"][i]
            np.testing.assert_array_equal(found.extras["sparse"][i].flatten()[order], sparse_of(steps))


def test_the_window_and_the_count_of_passes(inputs: Tensor) -> None:
    view = vitrail.load(DEMO)
    method = MDA(cells=4, baseline=parse("mda(baseline=zero_norm)").baseline)
    found = vitrail.explain(view, inputs[:1], method)
    # One clean pass, 20 of the seed's, the two empty pictures, the search in windows of 8 of 16 patches, and the gaps
    # of the curves: each point of both but the ends, less those that the search came by.
    search = 8 * 8 + 8 * 9 // 2
    gaps = 15 - 1
    assert found.forwards == 1 + 20 + 2 + search + gaps
    assert abs(method.passes(view, view.size).forwards - found.forwards) < 10


def test_on_a_model_without_attention() -> None:
    view = zoo.view_of("resnet50")
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    words = r"not its seed: bt_h needs attention between all patches.*such as mda\(seed=gradcam\), or leave it out"
    with pytest.raises(vitrail.InputError, match=words):
        vitrail.explain(view, images, "mda(seed=bt_h)")
    found = [vitrail.explain(view, images, f"mda({seed}cells=2)") for seed in ("", "seed=gradcam, ")]
    assert sorted(found[0].extras["order"][0].tolist()) == [0, 1, 2, 3]
    assert torch.equal(found[0].maps, found[1].maps)


def test_the_seed_chosen_by_itself(inputs: Tensor) -> None:
    transformer, bare = (
        vitrail.load(DEMO),
        vitrail.load(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)), size=(4, 4)),
    )
    assert MDA().seeding(transformer) == parse("bt_h")
    assert MDA().seeding(bare) is None
    with pytest.raises(vitrail.InputError, match="nothing to make a seed of; leave window out"):
        parse("mda(window=2, cells=2)").check(bare)
    assert parse("mda(seed=auto)") == MDA()
    alone, named = (vitrail.explain(transformer, inputs[:1], f"mda(cells=2, seed={seed})") for seed in ("auto", "bt_h"))
    assert torch.equal(alone.maps, named.maps)


# ---------------------------------------------------------------------------------------------------- gamma


def test_gamma_needs_no_model(inputs: Tensor, tmp_path) -> None:
    found = vitrail.explain(DEMO, inputs, "mda(cells=3)")
    view = vitrail.load(DEMO)
    for gamma in (0.0, 0.3, 1.0):
        forwards = view.meter.forwards
        again = found.with_(gamma=gamma)
        assert view.meter.forwards == forwards
        fresh = vitrail.explain(DEMO, inputs, f"mda(cells=3, gamma={gamma})")
        assert torch.equal(again.maps, fresh.maps)
        assert (again.method, again.config) == (fresh.method, fresh.config)
        ordered = again.maps.flatten(1).gather(1, found.extras["order"])
        assert (ordered.diff(dim=1) < 0).all()
    stored = vitrail.Explanation.load(found.save(tmp_path / "run"))
    assert torch.equal(stored.with_(gamma=0.3).maps, found.with_(gamma=0.3).maps)
    assert found.first(1).with_(gamma=1).maps.shape == (1, 3, 3)
    with pytest.raises(vitrail.InputError, match="gamma to be 0 to 1"):
        found.with_(gamma=2)
    with pytest.raises(vitrail.InputError, match="saliency's gamma cannot be changed"):
        vitrail.explain(DEMO, inputs, "saliency").with_(gamma=0.5)


def test_gamma_0_forgets_kappa(inputs: Tensor) -> None:
    """The sparse map knows no kappa: going there and back gives the dense map of the default."""
    found = vitrail.explain(DEMO, inputs[:1], "mda(cells=3, kappa=0.3, gamma=1)")
    there = found.with_(gamma=0)
    assert there.method == "mda(cells=3)"
    back = there.with_(gamma=1)
    fresh = vitrail.explain(DEMO, inputs[:1], "mda(cells=3, gamma=1)")
    assert torch.equal(back.maps, fresh.maps)
    assert torch.equal(back.extras["dense"], fresh.extras["dense"])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mda(tau=-0.1)", "tau to be 0 to 1"),
        ("mda(tau=1.1)", "tau to be 0 to 1"),
        ("mda(kappa=-1)", "kappa to be 0 to 1"),
        ("mda(gamma=1.5)", "gamma to be 0 to 1"),
        ("mda(window=0)", "window to be 1 to 4,096"),
        ("mda(cells=0)", "cells to be 1 to 64"),
        ("mda(baseline=3)", "must be a baseline, but 3 was given"),
        ("mda(seed=rise_blur)", "no method called 'rise_blur'"),
    ],
)
def test_mistakes_get_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        parse(spec)


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
    tau=st.one_of(st.floats(0, 1), st.sampled_from([0, 1])),
    kind=st.sampled_from(KINDS),
    table=st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), min_size=1, max_size=17),
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
    late: bool,
    seed: int,
) -> None:
    ask = Answers(patches, images, table, kind)
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.stack([torch.randperm(patches, generator=generator) for _ in range(images)])
    which = torch.arange(images)
    whole = ask(which, torch.ones(images, patches, dtype=torch.bool))
    method = MDA(tau=tau)
    blurred, blank = (ask(which, torch.zeros(images, patches, dtype=torch.bool), fill) for fill in (0, 1))
    until = method._until(blurred, whole)
    found = Search(ask, ranks, min(window, patches), (blurred, blank, whole), until, late).run()
    assert torch.equal(found.order.sort(dim=1).values, torch.arange(patches).expand(images, -1))
    values = method._magnitudes(found)
    assert np.isfinite(values).all()
    assert (np.diff(values, axis=1) < 0).all()


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


# ---------------------------------------------------------------------------------------------------- enlarged


def test_cells_stay_whole_or_are_smooth() -> None:
    maps = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0))
    whole, smooth = (MDA(enlarged=form).enlarge(maps, (9, 9)) for form in ("whole", "smooth"))
    assert torch.equal(whole, maps.repeat_interleave(3, 1).repeat_interleave(3, 2))
    expected = torch.nn.functional.interpolate(maps[:, None], (9, 9), mode="bilinear")[:, 0]
    assert torch.equal(smooth, expected)


def test_the_authors_smooth_map_is_lower_and_leans_right_and_down() -> None:
    """As measured of their code: one patch of height 1 becomes 0.557, 0.118 to the right and 0.071 to the left."""
    maps = torch.zeros(1, 14, 14)
    maps[0, 6, 6] = 1
    smooth = MDA(compat="authors", enlarged="smooth").enlarge(maps, (224, 224))
    small = torch.nn.functional.interpolate(smooth[:, None], (14, 14), mode="area")[0, 0]
    assert smooth.max() < 0.6
    assert small[6, 7] > small[6, 5] > 0
    assert small[7, 6] > small[5, 6] > 0


# ---------------------------------------------------------------------------------------------------- notes


def test_where_no_blur_hides_the_target_a_note_says_so(inputs: Tensor) -> None:
    words = "no blur of up to 31 pixels brings the probability below 1e-06"
    found = vitrail.explain(DEMO, inputs, "mda(cells=2, baseline=adaptive_blur(last=31, below=1e-6))")
    assert all(any(words in note for note in notes) for notes in found.notes)
    quiet = vitrail.explain(DEMO, inputs, "mda(cells=2, baseline=adaptive_blur(last=31, below=1))")
    assert not any("blur" in note for notes in quiet.notes for note in notes)
    for method in ("occlusion(baseline=adaptive_blur(last=31, below=1e-6), window=72, stride=72)",):
        assert all(words in notes[0] for notes in vitrail.explain(DEMO, inputs, method).notes)


def test_where_there_is_nothing_to_insert_a_note_says_so(inputs: Tensor) -> None:
    whole = "mda(cells=2, seed=None, baseline=rise_blur(1, 1))"  # a blur that is none: nothing is hidden
    found = vitrail.explain(DEMO, inputs, whole)
    assert all(any("nothing to insert" in note for note in notes) for notes in found.notes)


def test_metrics_say_where_no_blur_hides_the_target(inputs: Tensor) -> None:
    maps = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0))
    for below, notes in ((1e-6, 2), (1, 0)):
        metric = f"insertion(baseline=adaptive_blur(last=31, below={below}), step=5184)"
        scores = vitrail.evaluate(DEMO, inputs, maps, metric)
        told = [f"{notes} of 2 images: no blur of up to 31 pixels brings the probability below 1e-06"] if notes else []
        found = scores.row("insertion").protocol.get("notes", [])
        assert len(found) == len(told)
        assert all(one.startswith(words) for one, words in zip(found, told))
        assert all(words in scores.table() for words in told)
