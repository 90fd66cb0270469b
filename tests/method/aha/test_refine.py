"""Refinement: every picture by itself, and the explainer as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail import explain, scenes
from vitrail.errors import InputError
from vitrail.method.aha import refine as refine_module
from vitrail.method.aha.explainer import Explainer
from vitrail.method.aha.objective import Grid, Objective
from vitrail.method.aha.refine import CELLS, REFERENCES, asking, refine
from vitrail.model import Target, View, load
from vitrail.perturb import baseline


@pytest.fixture(scope="module")
def view() -> View:
    return load("demo", device="cpu")


@pytest.fixture(scope="module")
def images(view: View) -> Tensor:
    return view.preprocess.batch([scene.pil for _, scene in scenes.samples()[:2]])


@pytest.fixture(scope="module")
def classes(view: View, images: Tensor) -> Tensor:
    with torch.no_grad():
        return view.logits(images).argmax(1)


@pytest.fixture(scope="module")
def explainer(view: View) -> Explainer:
    torch.manual_seed(0)
    return Explainer.for_view(view, channels=16, embedding=8).eval()


FEW = Objective(steps=3)


def test_a_picture_is_refined_by_itself_and_nothing_is_kept(
    view: View, images: Tensor, classes: Tensor, explainer: Explainer
) -> None:
    weights = {name: weight.clone() for name, weight in explainer.state_dict().items()}
    target = {name: weight.clone() for name, weight in view.model.state_dict().items()}
    together = refine(explainer, view, images, classes, 3, objective=FEW)
    assert together.shape == (2, 144, 144)
    assert not together.requires_grad
    moved = (together - explainer.explain(view, images, classes)).abs().amax((1, 2))
    assert (moved > 1e-2).all(), "every picture was refined"
    for i in range(len(images)):
        alone = refine(explainer, view, images[i : i + 1], classes[i : i + 1], 3, objective=FEW)
        assert torch.allclose(together[i], alone[0], atol=1e-5)
    assert all(torch.equal(weight, weights[name]) for name, weight in explainer.state_dict().items())
    assert all(weight.grad is None for weight in explainer.parameters())
    assert all(torch.equal(weight, target[name]) for name, weight in view.model.state_dict().items())
    again = refine(explainer, view, images, classes, 3, objective=FEW)
    assert torch.equal(again, together), "nothing is left to chance"


def test_it_is_adamw_on_the_loss(view: View, images: Tensor, classes: Tensor) -> None:
    """The obvious way: one picture, the explainer's own weights, PyTorch's own graph and optimiser."""
    torch.manual_seed(0)
    own = Explainer.for_view(view, channels=16, embedding=8)
    found = refine(own, view, images[:1], classes[:1], 2, rate=1e-4, objective=FEW)
    optimiser = torch.optim.AdamW(own.parameters(), lr=1e-4, weight_decay=1e-3, eps=1e-5)
    image, index = images[:1], classes[:1]
    features = own.encode(view, image).features(index)

    def ask(pictures: Tensor, which: Tensor) -> Tensor:
        return view.logits(pictures).softmax(1)[:, index[0]]

    for spec in REFERENCES[:2]:
        fill = baseline(spec).fill(view, image, Target(index))
        maps = own(features, image, index)
        grid = Grid.regular((144, 144), CELLS)
        optimiser.zero_grad()
        FEW.loss(ask, image, fill, maps, grid, own.config["temperature"]).total.sum().backward()
        optimiser.step()
    assert torch.allclose(found, own.explain(view, image, index), atol=1e-5)


def test_steps_reduce_the_loss(view: View, images: Tensor, classes: Tensor, explainer: Explainer) -> None:
    grid = Grid.regular((144, 144), CELLS)
    fills = [baseline(spec).fill(view, images, Target(classes)) for spec in REFERENCES]

    def lost(maps: Tensor) -> Tensor:
        with torch.no_grad():
            ask = asking(view, classes)
            losses = [FEW.loss(ask, images, fill, maps, grid, explainer.config["temperature"]) for fill in fills]
        return torch.stack([one.total for one in losses]).mean(0)

    losses = [lost(refine(explainer, view, images, classes, steps, rate=1e-3, objective=FEW)) for steps in (0, 3, 6)]
    assert losses[0].mean() > losses[1].mean() > losses[2].mean()
    assert (losses[0] > losses[2]).all(), "of every picture"


def test_no_step_is_the_explainer(view: View, images: Tensor, classes: Tensor, explainer: Explainer) -> None:
    assert torch.allclose(
        refine(explainer, view, images, classes, 0), explainer.explain(view, images, classes), atol=1e-5
    )


def test_the_answers_are_probabilities_of_each_images_class(view: View, images: Tensor, classes: Tensor) -> None:
    which = torch.tensor([1, 0, 1])
    before = view.meter.forwards, view.meter.backwards
    found = asking(view, classes)(images[which].clone().requires_grad_(), which)
    assert (view.meter.forwards - before[0], view.meter.backwards - before[1]) == (3, 3)
    expected = view.logits(images).softmax(1)
    assert torch.allclose(found, torch.stack([expected[i, classes[i]] for i in which]), atol=1e-6)


def test_bad_settings(view: View, images: Tensor, classes: Tensor, explainer: Explainer) -> None:
    for steps, rate in ((-1, 1e-4), (1, 0.0)):
        with pytest.raises(InputError, match="refining takes 0 steps or more at a rate above 0"):
            refine(explainer, view, images, classes, steps, rate=rate)


def test_the_trained_explainer_refines_alike_in_any_company(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained to a low temperature, ranks in float32 would amplify rounding to 1e-3 between batches."""
    monkeypatch.setattr("vitrail.method.aha.method.CURVE", 4)  # so that pictures share a pass of 32 copies
    pictures = [scenes.make(100 + i).pil for i in range(5)]
    alone = explain(view, pictures, "aha(refine=1)", batch=1).maps
    assert torch.allclose(explain(view, pictures, "aha(refine=1)", batch=5).maps, alone, rtol=0, atol=1e-5)
    plain, asked = refine_module.refine, []

    def full(explainer: Explainer, view: View, images: Tensor, *rest: Any, **more: Any) -> Tensor:
        asked.append(len(images))
        if len(images) > 2:
            raise torch.OutOfMemoryError("no memory left")
        return plain(explainer, view, images, *rest, **more)

    monkeypatch.setattr(refine_module, "refine", full)
    halved = explain(view, pictures, "aha(refine=1)", batch=5)
    assert asked == [5, 2, 2, 1]
    assert torch.allclose(halved.maps, alone, rtol=0, atol=1e-5)


def test_answers_come_in_halves_where_memory_runs_out(
    view: View, images: Tensor, classes: Tensor, explainer: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = refine(explainer, view, images, classes, 1, objective=FEW)
    plain = Target.probability

    def full(self: Target, logits: Tensor) -> Tensor:
        if len(logits) > 5:
            raise torch.OutOfMemoryError("no memory left")
        return plain(self, logits)

    monkeypatch.setattr(Target, "probability", full)
    assert torch.allclose(refine(explainer, view, images, classes, 1, objective=FEW), whole, rtol=0, atol=1e-5)
