"""What is listed, and presets: names for the metrics of a paper, with the class that they explain."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from vitrail import InputError
from vitrail.metric import PRESETS, Preset, describe, expand, metrics, parse
from vitrail.metric.presets import wanted

STEP = 144 * 144 // 8
DELETION = f"deletion(step={STEP})"


def test_what_is_listed() -> None:
    assert len(metrics()) >= 38
    assert metrics("*aopc") == ["deletion_aopc", "insertion_aopc"]
    for name in metrics():
        facts = describe(name)
        assert facts.keys() >= {"id", "higher_is_better", "needs", "presets", "family", "paper", "params", "summary"}
        assert facts["summary"].endswith("."), name


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_specs_that_can_be_read(name: str) -> None:
    found = expand(name)
    assert len(found) == len(PRESETS[name].metrics)
    for metric in found:
        assert parse(metric.spec) == metric
        assert name in describe(metric.id)["presets"]


def test_every_metric_is_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in metrics() if f"`{name}`" not in page] == []
    assert f"{len(metrics())} metrics" in page
    assert [name for name in PRESETS if f"| `{name}` |" not in page] == []


# ------------------------------------------------------------------------------------------------------------- presets

ONE = Preset("nobody", (DELETION, "pointing_game", "positive_perturbation(shares=(0.5,))"), "label")


@pytest.fixture
def preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "one", ONE)
    monkeypatch.setitem(PRESETS, "other", dataclasses.replace(ONE, explains="predicted"))


@pytest.mark.usefixtures("preset")
def test_a_preset_says_which_class_is_explained(pictures: list[Any], labels: list[int]) -> None:
    pictures, labels = pictures[:2], labels[:2]
    wrong = [(label + 1) % 14 for label in labels]
    by_hand = vitrail.evaluate("demo", pictures, "ixg", DELETION, target=wrong)
    found = vitrail.evaluate("demo", pictures, "ixg", "one", labels=wrong)
    assert found.row("deletion").each.tolist() == by_hand.row("deletion").each.tolist()
    assert found.row("deletion").protocol["explained"] == "label"
    plain = vitrail.evaluate("demo", pictures, "ixg", DELETION)
    for name, target in (("other", None), ("one", "predicted"), ("one", labels)):
        again = vitrail.evaluate("demo", pictures, "ixg", name, labels=wrong, target=target)
        assert again.row("deletion").each.tolist() == plain.row("deletion").each.tolist()
    with pytest.raises(InputError, match="preset one explains the true class; give labels, or target='predicted'"):
        vitrail.evaluate("demo", pictures, "ixg", "one")
    with pytest.raises(InputError, match="one explains the true class and other explains the predicted class"):
        vitrail.evaluate("demo", pictures, "ixg", ["one", "other"], labels=wrong)
    assert wanted(["one", "other"], masks=True, labels=True, settled=True).presets == ("one", "other")


@pytest.mark.usefixtures("preset")
def test_what_a_preset_cannot_measure_is_left_out_and_said(pictures: list[Any], masks: list[Any]) -> None:
    found = vitrail.evaluate("demo", pictures[:2], "ixg", "other")
    assert found.metrics == [DELETION]
    assert "other without pointing_game: no masks or boxes were given" in found.table()
    assert "other without positive_perturbation(shares=(0.5,)): no true classes were given" in found.table()
    more = vitrail.evaluate("demo", pictures[:2], "ixg", "other", masks=masks[:2], labels=[1, 2])
    assert len(more.metrics) == 3
    assert more.notes == ()
    with pytest.raises(InputError, match="pointing_game needs to know where"):
        vitrail.evaluate("demo", pictures[:2], "ixg", ["other", "pointing_game"])


def test_the_presets_of_the_papers_without_masks() -> None:
    found = wanted("skipplus", masks=False, labels=True)
    assert [metric.id for metric in found.metrics] == [
        *("insertion_accuracy", "deletion_accuracy", "insertion_aopc", "deletion_aopc", "lodds")
    ]
    for name, preset in PRESETS.items():
        for masks, labels in ((False, False), (False, True), (True, True)):
            if name != "chefer" or labels:
                assert wanted(name, masks=masks, labels=labels).explains == preset.explains
    with pytest.raises(InputError, match="nothing of chefer can be measured: no true classes were given"):
        wanted("chefer", masks=False, labels=False)
    with pytest.raises(InputError, match="the preset skipplus explains the true class; give labels"):
        vitrail.evaluate("demo", torch.zeros(1, 3, 144, 144), "random", "skipplus")
