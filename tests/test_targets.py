"""Several targets at once: the same maps as one by one, for the passes of one where these do not depend on it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitrail
from helpers.small import quick, served_by, small_vit
from helpers.zoo import pictures
from vitrail.method import METHODS
from vitrail.method.base import SharedPasses
from vitrail.model import load

SHARED = sorted(name for name, cls in METHODS.items() if issubclass(cls, SharedPasses))


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"aha"}))
def test_several_are_each_alone(name: str) -> None:
    method = quick(name)
    view = served_by(method)
    images = pictures(2, view.size)
    targets = ["predicted", 1, [2, 3]]
    before = view.meter.forwards
    together = vitrail.explain(view, images, method, targets=targets)
    made = view.meter.forwards - before
    assert together.maps.shape == (2, 3, *method.shape(view, view.size))
    alone = [vitrail.explain(view, images, method, target) for target in targets]
    for place, one in enumerate(alone):
        found = together.one(place)
        scale = one.maps.abs().max().clamp_min(1e-30)
        assert (found.maps - one.maps).abs().max() <= 1e-5 * scale, targets[place]
        assert torch.equal(found.classes, one.classes)
        assert found.notes == one.notes
    if name in SHARED and name != "smoothgrad":
        assert made <= alone[0].forwards + len(images), "one set of passes, and the clean one"
    else:
        assert made <= sum(one.forwards for one in alone)


def test_every_perturbation_method_shares_its_passes() -> None:
    wanted = "tis rise vit_cx occlusion lime kernel_shap shapley hsic atman pami scorecam ablationcam ig smoothgrad"
    assert set(wanted.split()) == set(SHARED)


def test_var_over_masks_takes_one_set() -> None:
    view = load(small_vit())
    found = vitrail.explain(view, pictures(1, view.size), "var(tis(masks=8), classes=top5)")
    assert found.forwards == 8 + 2, "the masks, their source, and the clean pass that says who competes"


def test_gradient_methods_share_their_forward() -> None:
    view = load("demo")
    images = pictures(2, (144, 144))
    found = vitrail.explain(view, images, "skipplus(decompx)", targets=[0, 1, 2, 3])
    assert (found.forwards, found.backwards) == (2, 8)


def test_a_baseline_of_the_target_is_asked_for_each() -> None:
    images, spec = pictures(1, (144, 144)), "lime(samples=4, grid=2, baseline=adaptive_blur)"
    together = vitrail.explain("demo", images, spec, targets=[0, 5])
    for place, target in enumerate([0, 5]):
        one = vitrail.explain("demo", images, spec, target)
        assert torch.allclose(together.one(place).maps, one.maps, atol=1e-6)
        assert together.one(place).notes == one.notes


# --------------------------------------------------------------------------------------------------------- the value


@pytest.fixture(scope="module")
def found() -> vitrail.Explanation:
    return vitrail.explain("demo", pictures(3, (144, 144)), "genatt", targets=["predicted", "whale", lambda z: z[:, 3]])


def test_names_and_one(found: vitrail.Explanation) -> None:
    assert found.targets == ("predicted", "whale", "a function of the logits")
    assert found.one("whale").explained(0) == "whale"
    assert found.one(2).explained(0) == "a function of the logits"
    assert found.one(2).classes is None
    assert [len(one) for one in found.each()] == [3, 3, 3]
    assert found.first(2).maps.shape[:2] == (2, 3)
    assert found.upsample().shape == (3, 3, 144, 144)
    assert "for each of 3 targets" in repr(found)
    with pytest.raises(vitrail.InputError, match="has the targets predicted, whale, a function"):
        found.one("shark")
    with pytest.raises(vitrail.InputError, match=r"take one of them, such as one\('predicted'\)"):
        found.overlay(pictures(1, (144, 144))[0])


def test_saved_and_loaded(found: vitrail.Explanation, tmp_path: Path) -> None:
    again = vitrail.Explanation.load(found.save(tmp_path / "out"))
    assert again.targets == found.targets
    assert torch.equal(again.maps, found.maps)
    assert torch.equal(again.classes, found.classes)
    assert again.manifest() == found.manifest()


def test_drawn_with_a_column_each(found: vitrail.Explanation) -> None:
    from vitrail.explanation import sheet_of

    view = vitrail.load("demo")
    shown = [view.preprocess.restore(one) for one in pictures(3, (144, 144))]
    sheet = sheet_of([found], shown)
    assert sheet.tobytes() == sheet_of(found.each(), shown).tobytes()
    assert found.picture().width >= found.one(0).picture().width


def test_judged_target_by_target(found: vitrail.Explanation) -> None:
    classes = vitrail.explain("demo", pictures(3, (144, 144)), "genatt", targets=["predicted", "whale"])
    scores = vitrail.evaluate("demo", pictures(3, (144, 144)), classes, "sparseness")
    assert scores.methods == ("genatt: predicted", "genatt: whale") or list(scores.methods) == [
        "genatt: predicted",
        "genatt: whale",
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target": 1, "targets": [2]}, "target and targets were given"),
        ({"targets": []}, "no target was given"),
        ({"targets": [1, 99]}, "class 99 does not exist"),
        ({"targets": [[1, 2]]}, "2 targets were given for 3 images"),
        ({"targets": [vitrail.Likeness(torch.ones(1, 64)), 1]}, "a likeness has a model of its own"),
    ],
)
def test_mistakes_get_a_sentence(settings: dict[str, object], words: str) -> None:
    images: Tensor = pictures(3, (144, 144))
    with pytest.raises(vitrail.InputError, match=words):
        vitrail.explain("demo", images, "genatt", **settings)
