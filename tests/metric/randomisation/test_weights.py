"""Cascading randomisation: the order, the new weights, what is compared, and the model that must not be touched."""

import copy
import gc
import math
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from helpers import small, zoo
from helpers.homemade import HandMade
from helpers.oracle import oracle
from vitrail import InputError
from vitrail.method import AHA, Batch, Method, SmoothGrad
from vitrail.method import parse as method_of
from vitrail.method.aha.explainer import Explainer
from vitrail.metric import Case, Metric, parse
from vitrail.metric.randomisation import weights as randomisation
from vitrail.metric.randomisation.weights import (
    TOKENS,
    CascadingRandomisation,
    Forgetful,
    SmoothRandomisation,
    cascade,
    chosen,
    stages,
    weights,
)
from vitrail.model import Target, View, load

SIMILARITIES = ("spearman", "pearson", "cosine", "ssim", "hog")
IMAGES = zoo.pictures(3, (64, 64))


@dataclass(frozen=True)
class Edges(Method):
    """Sobel's edges: a map that knows nothing of the model."""

    id, needs, pixels = "edges", frozenset(), True

    def maps(self, view: View, batch: Batch) -> Tensor:
        kernel = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]])
        kernels = torch.stack([kernel, kernel.T])[:, None].to(batch.images)
        return F.conv2d(batch.images.mean(1, keepdim=True), kernels, padding=1).norm(dim=1)


@pytest.fixture(scope="module")
def view() -> View:
    """Four small blocks with a class token, in float32, and not random in its readout alone."""
    return load(small.build("class token").float(), size=(64, 64))


def case_of(view: View, method: Method | str, images: Tensor = IMAGES, target: Target | None = None) -> Case:
    method = method_of(method)
    case = Case(view, images, torch.zeros(len(images), 2, 2), target, method=method)
    return Case(view, images, case.explain(images), case.target, method=method)


# ------------------------------------------------------------------------------------------------------------- order


def test_the_order_of_a_transformer(view: View) -> None:
    found = stages(view)
    assert [s.name for s in found] == ["head", "norm", *(f"blocks.{i}" for i in (3, 2, 1, 0)), TOKENS, "patch_embed"]
    assert set(found[6].tensors) == {"cls_token", "pos_embed"}
    assert set(found[0].tensors) == {"head.weight", "head.bias"}
    assert len(found[2].tensors) == 12, "a block is lost whole"
    hand = stages(load(HandMade(), size=(32, 40)))
    assert [s.name for s in hand] == ["head", "norm", *(f"layers.{i}" for i in (3, 2, 1, 0)), TOKENS, "patches"]
    pooled = stages(load(small.build("attention pool"), size=(64, 64)))
    assert [s.name for s in pooled][:3] == ["head", "attn_pool", "norm"]


LAST = {"hf_vit": "vit.embeddings", "torchvision_vit_b_32": "conv_proj", "dinov2_reg4": "patch_embed"}


@pytest.mark.parametrize("name", [*LAST, "resnet50"])
def test_everything_is_lost_once(name: str) -> None:
    view = zoo.view_of(name)
    found = stages(view)
    tensors = [tensor for stage in found for tensor in stage.tensors]
    assert len(tensors) == len(set(tensors))
    assert set(tensors) == set(weights(view.model)) >= {key for key, _ in view.model.named_parameters()}
    if name in LAST:
        assert [stage.name for stage in found[-2:]] == [TOKENS, LAST[name]]
        assert len(found) == view.depth + 4


def test_the_order_of_other_models() -> None:
    expected = ["fc", "layer4.0", "layer3.1", "layer3.0", "layer2.0", "layer1.0", "bn1", "conv1"]
    assert [stage.name for stage in stages(zoo.view_of("resnet50"))] == expected
    wrapped = nn.Sequential(nn.Identity(), zoo.module("resnet50"))
    assert [stage.name for stage in stages(load(wrapped, size=(224, 224)))] == [f"1.{name}" for name in expected]


def test_steps_are_evenly_spaced() -> None:
    assert chosen(8, None) == chosen(8, 8) == chosen(8, 99) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert chosen(8, 4) == [2, 4, 6, 8]
    assert chosen(16, 5)[-1] == 16
    assert chosen(7, 1) == [7]


# ----------------------------------------------------------------------------------------------------------- weights


def test_new_weights_are_those_of_an_untrained_model() -> None:
    model = small.build("registers").float()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    *_, lost = cascade(load(model, size=(56, 56)))
    for name, weight in lost.named_parameters():
        kind = name.rpartition(".")[2]
        if kind == "bias":
            assert (weight == 0).all(), name
        elif weight.ndim == 1:
            assert (weight == 1).all(), name
        elif name == "patch_embed.proj.weight":
            assert float(weight.std()) == pytest.approx(math.sqrt(2 / weight[0].numel()), rel=0.1)
            assert abs(float(weight.mean())) < 0.01
        else:
            assert float(weight.std()) == pytest.approx(0.02, rel=0.25), name
            assert abs(float(weight.mean())) < 0.01, name


def test_running_statistics_are_lost() -> None:
    view = zoo.view_of("resnet50")
    with torch.no_grad():
        model = copy.deepcopy(view.model)
        model.bn1.running_mean += 3
        model.bn1.running_var *= 5
    *_, lost = cascade(load(model, size=(224, 224)), steps=1)
    assert (lost.bn1.running_mean == 0).all()
    assert (lost.bn1.running_var == 1).all()
    assert (lost.bn1.weight == 1).all()


def test_permuting_keeps_the_numbers_of_each_tensor(view: View) -> None:
    *_, lost = cascade(view, "permute")
    before, after = weights(view.model), weights(lost)
    for name, weight in after.items():
        assert torch.equal(weight.flatten().sort().values, before[name].flatten().sort().values), name
        if weight.ndim > 1:
            assert not torch.equal(weight, before[name]), name


def test_losses_add_up_from_the_top(view: View) -> None:
    """After each stage its own weights differ, with those above, and the rest are the model's."""
    parts, before = stages(view), weights(view.model)
    for number, model in enumerate(cascade(view), 1):
        after = weights(model)
        for k, stage in enumerate(parts):
            changed = any(not torch.equal(after[name], before[name]) for name in stage.tensors)
            assert changed == (k < number) or stage.name == "norm", stage.name  # an untrained norm stays as it is
    one, same, other = ([m.head.weight.clone() for m in cascade(view, seed=s, steps=1)] for s in (0, 0, 1))
    assert torch.equal(one[0], same[0])
    assert not torch.equal(one[0], other[0])


@pytest.mark.parametrize("init", ["model", "permute"])
def test_weights_come_back(view: View, init: str) -> None:
    """In any order, a number of stages lost gives the very weights that losing them one by one gives."""
    before = {name: weight.clone() for name, weight in weights(view.model).items()}
    expected = [{name: weight.clone() for name, weight in weights(m).items()} for m in cascade(view, init, 3)]
    copied = Forgetful(view, init, 3)
    for number in (8, 1, 5, 0, 2, 8, 0):
        wanted = expected[number - 1] if number else before
        after = weights(copied.after(number))
        assert all(torch.equal(after[name], wanted[name]) for name in before), number
        assert all(weight.stride() == before[name].stride() for name, weight in after.items())


# ------------------------------------------------------------------------------------------------------------- values


@oracle("cascading_randomisation")
def test_agrees_with_the_definition(view: View) -> None:
    """Every stage by hand: lost, a view of its own, explained for the intact model's class, Spearman's correlation."""
    case = case_of(view, "ixg")
    with torch.no_grad():
        predicted = view.logits(IMAGES).argmax(1)
    model, generator = copy.deepcopy(view.model), torch.Generator().manual_seed(0)
    expected = []
    for stage in stages(view):
        with torch.no_grad():
            for name in stage.tensors:
                weight = weights(model)[name]
                if name == "patch_embed.proj.weight":
                    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
                elif weight.ndim > 1:
                    nn.init.trunc_normal_(weight, std=0.02, generator=generator)
                else:
                    weight.fill_(0 if name.endswith("bias") else 1)
        maps = method_of("ixg").attribute(load(copy.deepcopy(model), size=(64, 64)), IMAGES, predicted)
        pairs = [(a.abs().flatten().numpy(), b.abs().flatten().numpy()) for a, b in zip(case.maps, maps)]
        expected.append([spearmanr(a, b).statistic for a, b in pairs])
    metric = CascadingRandomisation()
    found = metric.measure(case)
    np.testing.assert_allclose(found, np.array(expected).T, atol=1e-4)
    np.testing.assert_allclose(metric.of_each(found), np.mean(expected, 0), atol=1e-4)
    assert float(metric.of_all(found)) == pytest.approx(np.mean(expected), abs=1e-4)
    few = replace(metric, steps=4).measure(case)
    torch.testing.assert_close(few, found[:, 1::2])


@pytest.mark.parametrize("method", [Edges(), "random"])
def test_a_map_that_knows_nothing_of_the_model_does_not_change(view: View, method: Method | str) -> None:
    case = case_of(view, method)
    for similarity in SIMILARITIES:
        metric = CascadingRandomisation(similarity=similarity, steps=3)
        assert (metric.measure(case) == 1).all(), similarity
    smooth = SmoothRandomisation(samples=2).measure(case)
    assert (smooth == 1).all(), "the noise is the same too"


def test_a_map_of_the_trained_model_changes() -> None:
    view = vitrail.load("demo")
    images = view.preprocess.batch([vitrail.scenes.make(seed).pil for seed in (3, 4)])
    case = case_of(view, "decompx", images)
    before = view.meter.forwards
    for similarity in SIMILARITIES:
        for sign in ("absolute", "signed"):
            metric = CascadingRandomisation(similarity=similarity, sign=sign, steps=2)
            found = metric.measure(case)
            assert found.shape == (2, 2)
            assert (found[:, -1].abs() < 0.75).all(), f"{similarity} {sign}"
    assert view.meter.forwards == before + 2 * 2, "all ten share the maps, and the passes are counted"
    shuffled = CascadingRandomisation(init="permute", steps=1).measure(case)
    assert (shuffled.abs() < 0.75).all()


def test_neither_the_batch_nor_the_maps_grid_matters(view: View) -> None:
    metric = CascadingRandomisation(steps=2)
    whole = metric.measure(case_of(view, "gradcam"))
    torch.testing.assert_close(metric.measure(case_of(view, "gradcam", IMAGES[1:])), whole[1:], rtol=1e-3, atol=1e-3)
    case = case_of(view, "gradcam")
    large = Case(view, IMAGES, method_of("gradcam").enlarge(case.maps, (64, 64)), case.target, method=case.method)
    assert metric.measure(large).isfinite().all(), "given at the size of the picture, they are compared there"
    pictures = replace(metric, similarity="ssim")
    torch.testing.assert_close(pictures.measure(large), pictures.measure(case))


@pytest.mark.parametrize("metric", [CascadingRandomisation(steps=2), SmoothRandomisation(steps=2, samples=2)])
def test_an_explainer_is_asked_about_the_model_that_forgot(view: View, tmp_path: Path, metric: Metric) -> None:
    """Elsewhere it refuses other weights than those it was trained for."""
    Explainer.for_view(view).save_pretrained(tmp_path)
    method = AHA(str(tmp_path))
    found = metric.measure(case_of(view, method))
    assert found.shape == (3, 2)
    assert found.isfinite().all()
    allowed = replace(method, other_model=True)
    torch.testing.assert_close(found, metric.measure(case_of(view, allowed)))
    *_, lost = cascade(view)
    with pytest.raises(InputError, match="other_model=True"):
        method.check(load(lost, size=(64, 64)))


@oracle("mprt_smooth")
def test_smooth_maps(view: View) -> None:
    case = case_of(view, "saliency")
    metric = SmoothRandomisation(steps=2, samples=3, noise=0.2, seed=5)
    before = view.meter.forwards
    found = metric.measure(case)
    assert view.meter.forwards == before + 3 * 3 * 3, "three images, three copies, the model and two that forgot"
    method = SmoothGrad(method_of("saliency"), 3, 0.2, 5)
    smooth = Case(view, IMAGES, case_of(view, method).maps, case.target, method=method)
    torch.testing.assert_close(found, CascadingRandomisation(steps=2, seed=5).measure(smooth))
    assert metric.of_each(found).shape == (3,)


# ----------------------------------------------------------------------------------------------------- one copy for all


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The copies and the views that are made, in order."""
    found: list[str] = []

    def counting(place: object, attribute: str, name: str) -> None:
        original = getattr(place, attribute)

        def make(*args: object, **kwargs: object) -> object:
            found.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(place, attribute, make)

    counting(View, "of", "View")
    counting(randomisation, "Forgetful", "Forgetful")
    return found


def test_methods_metrics_and_batches_share_a_copy(made: list[str]) -> None:
    view = load(small.build("class token").float(), size=(64, 64))
    first = {name: CascadingRandomisation().measure(case_of(view, name)) for name in ("ixg", "decompx")}
    assert made == ["Forgetful", *["View"] * 8]
    again = CascadingRandomisation(similarity="cosine", steps=3).measure(case_of(view, "gradcam", IMAGES[:1]))
    assert made[9:] == []
    CascadingRandomisation(seed=1, steps=2).measure(case_of(view, "ixg"))
    assert made[9:] == ["Forgetful", "View", "View"], "other weights"
    for name, expected in first.items():
        other = load(view.model, size=(64, 64))
        assert torch.equal(CascadingRandomisation().measure(case_of(other, name)), expected), "as from its own copy"
    other = load(view.model, size=(64, 64))
    metric = CascadingRandomisation(similarity="cosine", steps=3)
    assert torch.equal(metric.measure(case_of(other, "gradcam", IMAGES[:1])), again)


def test_a_copy_is_made_anew_when_the_model_changes(made: list[str]) -> None:
    model = small.build("class token").float()
    view, metric = load(model, size=(64, 64)), CascadingRandomisation(steps=2)
    metric.measure(case_of(view, "ixg"))
    with torch.no_grad():
        model.patch_embed.proj.weight.mul_(-1)
    found = metric.measure(case_of(view, "ixg"))
    assert made.count("Forgetful") == 2
    assert torch.equal(found, metric.measure(case_of(load(model, size=(64, 64)), "ixg")))


def test_a_large_copy_is_not_kept(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    view, metric = load(small.build("class token").float(), size=(64, 64)), CascadingRandomisation(steps=2)
    kept = metric.measure(case_of(view, "ixg"))
    monkeypatch.setattr(randomisation, "MOST_KEPT", 0)
    other = load(view.model, size=(64, 64))
    assert torch.equal(metric.measure(case_of(other, "ixg")), kept)
    assert torch.equal(metric.measure(case_of(other, "ixg")), kept)
    assert made.count("Forgetful") == 3


def test_a_copy_goes_with_its_view(made: list[str]) -> None:
    view = load(small.build("class token").float(), size=(64, 64))
    CascadingRandomisation(steps=1).measure(case_of(view, "ixg"))
    copied = weakref.ref(randomisation.forgetful(view, "model", 0))
    assert made.count("Forgetful") == 1
    del view
    gc.collect()
    assert copied() is None


# -------------------------------------------------------------------------------------------------- nothing is touched


@dataclass(frozen=True)
class Fragile(Method):
    """Fails on a model that has forgotten, for the pictures whose first value is positive."""

    id, needs, pixels = "fragile", frozenset(), True
    intact: ClassVar[str] = ""
    seen: ClassVar[list[list[int]]] = []
    how: str = "raises"

    def maps(self, view: View, batch: Batch) -> Tensor:
        self.seen.append(batch.settle(view).classes.tolist())
        found = batch.images.mean(1)
        bad = batch.images[:, 0, 0, 0] > 0
        if view.fingerprint() == self.intact or not bad.any():
            return found
        if self.how == "nan":
            return torch.where(bad[:, None, None], torch.nan, found)
        raise {"raises": RuntimeError, "input": InputError, "mistake": TypeError}[self.how]("no map")


@pytest.mark.parametrize("how", ["raises", "input", "nan"])
def test_maps_that_cannot_be_made_do_not_count(view: View, how: str) -> None:
    Fragile.intact = view.fingerprint()
    images = IMAGES.clone()
    images[:, 0, 0, 0] = torch.tensor([-1.0, 1.0, -1.0])
    for metric in (CascadingRandomisation(steps=2), CascadingRandomisation(similarity="cosine", steps=1)):
        found = metric.measure(case_of(view, Fragile(how), images))
        assert found.isnan().all(1).tolist() == [False, True, False]
        assert metric.of_each(found).isnan().tolist() == [False, True, False]
        assert float(metric.of_all(found)) == pytest.approx(1)


def state_of(view: View) -> tuple[object, ...]:
    model = view.model
    flags = [module.training for module in model.modules()], [weight.requires_grad for weight in model.parameters()]
    return view.fingerprint(), *flags, torch.get_rng_state().tolist(), [len(m._forward_hooks) for m in model.modules()]


@pytest.mark.parametrize("init", ["model", "permute"])
def test_the_model_stays_as_it_is_and_the_target_too(init: str) -> None:
    model = small.build("class token").float().train()
    view = load(model, size=(64, 64))
    before, tensors = state_of(view), copy.deepcopy(model.state_dict())
    Fragile.intact = view.fingerprint()
    images = IMAGES.clone()
    images[:, 0, 0, 0] = -1
    case = case_of(view, Fragile(), images, Target(torch.tensor([4, 0, 2])))
    Fragile.seen.clear()
    CascadingRandomisation(init=init).measure(case)
    assert Fragile.seen == [[4, 0, 2]] * 8, "the class explained is never chosen anew"
    images[0, 0, 0, 0] = 1
    with pytest.raises(TypeError, match="no map"):  # a mistake in a method is not hidden
        CascadingRandomisation(init=init).measure(case_of(view, Fragile("mistake"), images))
    assert state_of(view) == before
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    assert model.training


def test_precision_and_inference_mode(view: View) -> None:
    case, again = case_of(view, "gradcam"), case_of(view, "gradcam")
    metric = CascadingRandomisation(similarity="pearson", steps=2)
    exact = metric.measure(case)
    with torch.inference_mode():
        torch.testing.assert_close(metric.measure(again), exact)
    with view.using("bf16"), view.still():
        rough = metric.measure(case_of(view, "gradcam"))
    assert rough.isfinite().all()
    assert not torch.equal(rough, exact)


def test_mistakes_get_a_sentence(view: View) -> None:
    with pytest.raises(InputError, match="needs steps to be 1 to"):
        parse("cascading_randomisation(steps=0)")
    with pytest.raises(InputError, match="needs samples to be 1 to"):
        parse("mprt_smooth(samples=0)")
    with pytest.raises(InputError, match="the method that made the maps"):
        CascadingRandomisation().measure(Case(view, IMAGES, torch.zeros(3, 2, 2)))
    metric = parse("mprt_smooth(similarity=ssim, samples=4)")
    assert parse(metric.spec) == metric
