"""Infidelity against Captum on the same changes, correlation done slowly; and a linear model, where both are known."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import captum.metrics
import numpy as np
import pytest
import torch
from captum.metrics import infidelity_perturb_func_decorator
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from helpers.oracle import oracle
from helpers.small import build, exact
from helpers.zoo import pictures
from vitrail import InputError, scenes
from vitrail.method import Batch
from vitrail.metric.base import parse
from vitrail.metric.case import Case
from vitrail.metric.faithfulness.subsets import FaithfulnessCorrelation, Infidelity, draw_subsets
from vitrail.model import Target, View

SAMPLES = 24


@pytest.fixture(scope="module")
def view() -> View:
    return vitrail.load(build("class token"), size=(64, 64))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return pictures(2, (64, 64)).double()


@pytest.fixture(scope="module")
def maps(view: View, images: Tensor) -> Tensor:
    return exact("decompx", view, images, [1, 2])


@contextmanager
def seen_by(model: nn.Module) -> Iterator[list[Tensor]]:
    """The pictures a model is given."""
    seen: list[Tensor] = []
    handle = model.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    yield seen
    handle.remove()


@oracle("infidelity")
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("perturbation", ["square", "gaussian"])
def test_infidelity_agrees_with_captum(
    view: View, images: Tensor, maps: Tensor, perturbation: str, normalise: bool
) -> None:
    target = torch.tensor([1, 2])
    case = Case(view, images, maps, Target(target))
    assert case.clean.winner.shape == (2, 1)  # asked for now, so that only changed pictures are seen below
    metric = parse(f"infidelity(samples={SAMPLES}, perturbation={perturbation}, normalise={normalise})")
    with seen_by(view.model) as seen:
        found = metric.measure(case)
    changed = torch.cat(seen)
    assert len(changed) == 2 * SAMPLES
    clean = images.repeat_interleave(SAMPLES, 0)
    if perturbation == "gaussian":
        noise = clean - changed
        torch.testing.assert_close(noise[:, 0], noise[:, 2], rtol=0, atol=1e-12)
        assert float(noise.std()) == pytest.approx(0.2, rel=0.01)
    else:
        gone = (changed != clean).any(1)
        assert (gone.flatten(1).sum(1) == 16 * 16).all()
        assert all(torch.equal(changed[k, :, gone[k]], torch.zeros(3, 16 * 16).double()) for k in range(len(gone)))

    # Captum's own reading: one third of the map on each channel, and for squares the map already times the input.
    change: Callable[..., tuple[Tensor, Tensor]] = lambda x: (x - changed, changed)  # noqa: E731
    if perturbation == "square":
        change = infidelity_perturb_func_decorator(multiply_by_inputs=True)(lambda x, b: changed)
    heat = F.interpolate(maps[:, None].double(), (64, 64), mode="bilinear")
    expected = captum.metrics.infidelity(
        view.model,
        change,
        images,
        heat.expand(-1, 3, -1, -1) / 256 / 3,  # 16 x 16 pixels a cell
        baselines=torch.zeros_like(images) if perturbation == "square" else None,
        target=target,
        n_perturb_samples=SAMPLES,
        normalize=normalise,
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


class Linear(nn.Module):
    """A weight for every value of the picture, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 3, 16, 16, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bchw,nchw->bn", x, self.weight) + 0.5


@pytest.fixture(scope="module")
def linear() -> Case:
    """The linear model, and maps that say exactly what every pixel contributes."""
    view = vitrail.load(Linear(), size=(16, 16))
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    classes = torch.tensor([0, 3, 1])
    weights = view.model.weight.detach()[classes]
    return Case(view, images, (weights * images).sum(1), Target(classes))


def remade(case: Case, maps: Tensor) -> Case:
    return Case(case.view, case.images, maps, case.target)


def test_a_linear_model_is_foretold_by_its_contributions_and_its_gradient(linear: Case) -> None:
    gradient = remade(linear, linear.view.model.weight.detach()[linear.target.classes].sum(1))
    for case, metric in ((linear, "infidelity(perturbation=square)"), (gradient, "infidelity(perturbation=gaussian)")):
        raw = parse(metric.replace(")", ", normalise=False)"))
        assert (raw.measure(case) < 1e-20).all()
        assert (raw.measure(remade(case, 2 * case.maps)) > 0.1).all(), "twice the map foretells twice the change"
        assert (parse(metric).measure(remade(case, -7 * case.maps)) < 1e-20).all(), "only up to its scale"
        half = raw.measure(remade(case, 0.5 * case.maps))
        none = raw.measure(remade(case, 0 * case.maps))
        torch.testing.assert_close(half, none / 4)


def test_a_linear_model_correlates_with_its_contributions(linear: Case) -> None:
    metric = FaithfulnessCorrelation(samples=50)
    torch.testing.assert_close(metric.measure(linear), torch.ones(3).double())
    torch.testing.assert_close(metric.measure(remade(linear, -3 * linear.maps + 5)), -torch.ones(3).double())


@oracle("faithfulness_correlation")
@pytest.mark.parametrize("score", ["logit", "probability"])
def test_correlation_agrees_with_the_definition(view: View, images: Tensor, maps: Tensor, score: str) -> None:
    classes = [1, 2]
    metric = FaithfulnessCorrelation(samples=12, share=0.2, score=score, seed=5)
    found = metric.measure(Case(view, images, maps, Target(torch.tensor(classes))))

    def answer(picture: Tensor, i: int) -> float:
        with torch.no_grad():
            logits = view.model(picture[None])[0]
        return float(logits[classes[i]] if score == "logit" else logits.softmax(0)[classes[i]])

    for i in range(2):
        hidden = draw_subsets(16, 3, 12, Batch(images).generator(i, 5))
        assert (hidden.sum(1) == 3).all()
        sums, drops = [], []
        for row in hidden:
            picture = images[i].clone()
            for cell in row.nonzero().flatten().tolist():
                y, x = cell // 4 * 16, cell % 4 * 16
                picture[:, y : y + 16, x : x + 16] = 0
            sums.append(float(maps[i].flatten()[row].double().sum()))
            drops.append(answer(images[i], i) - answer(picture, i))
        assert float(found[i]) == pytest.approx(np.corrcoef(sums, drops)[0, 1], abs=1e-9)


@pytest.mark.parametrize("spec", ["infidelity(samples=8)", "infidelity(samples=8, perturbation=gaussian)"])
def test_empty_and_constant_maps(view: View, images: Tensor, spec: str) -> None:
    empty = parse(spec).measure(Case(view, images, torch.zeros(2, 4, 4)))
    constant = parse(spec).measure(Case(view, images, torch.full((2, 4, 4), 0.1)))
    assert (empty > 0).all()
    assert (constant <= empty).all()


def test_every_patch_is_hidden_equally_often() -> None:
    hidden = draw_subsets(10, 3, 5000, torch.Generator().manual_seed(0))
    assert (hidden.sum(1) == 3).all()
    torch.testing.assert_close(hidden.double().mean(0), torch.full((10,), 0.3).double(), rtol=0, atol=0.03)


def test_a_constant_map_correlates_with_nothing(view: View, images: Tensor) -> None:
    for value in (0.0, 0.1, -1 / 3):
        found = FaithfulnessCorrelation(samples=8).measure(Case(view, images, torch.full((2, 4, 4), value)))
        assert found.tolist() == [0, 0]


@pytest.mark.parametrize(
    "spec",
    ["infidelity(samples=4)", "infidelity(samples=4, perturbation=gaussian)", "faithfulness_correlation(samples=6)"],
)
def test_does_not_depend_on_the_batch(view: View, images: Tensor, maps: Tensor, spec: str) -> None:
    metric = parse(spec)
    together = metric.measure(Case(view, images.flip(0), maps.flip(0))).flip(0)
    alone = torch.cat([metric.measure(Case(view, images[i : i + 1], maps[i : i + 1])) for i in range(2)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
    with torch.inference_mode():
        again = metric.measure(Case(view, images, maps))
    torch.testing.assert_close(again.clone(), alone, rtol=1e-9, atol=1e-12)
    other = parse(spec.replace("samples", "seed=1, samples")).measure(Case(view, images, maps))
    assert (other != alone).all()
    assert parse(metric.spec) == metric


def test_a_good_map_beats_a_random_one() -> None:
    view = vitrail.load("demo")
    images = view.preprocess.batch([scenes.make(seed).pil for seed in (4, 8)])
    # The demo model was trained with patches missing: only when most of them are gone does it answer otherwise.
    metric = FaithfulnessCorrelation(samples=40, share=0.8)
    found, random = (
        metric.measure(Case(view, images, vitrail.explain(view, images, m).maps)) for m in ("decompx", "random")
    )
    assert (found > random + 0.2).all()


def test_mistakes_get_a_sentence(view: View, images: Tensor, maps: Tensor) -> None:
    with pytest.raises(InputError, match="infidelity needs side to be above 0, up to 1"):
        Infidelity(side=0)
    with pytest.raises(InputError, match="needs share to be above 0, below 1"):
        FaithfulnessCorrelation(share=1)
    with pytest.raises(InputError, match="true classes are needed"):
        Infidelity(target="label").measure(Case(view, images, maps))
