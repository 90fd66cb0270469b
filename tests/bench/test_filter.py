"""Which pictures take part: every condition, its reason, and runs that keep to it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from vitrail import InputError, load, scenes
from vitrail.bench import Bench, Filter, Plan, Store, errors, run
from vitrail.bench.chunk import Chunk
from vitrail.data import dataset
from vitrail.model import Target
from vitrail.perturb import AdaptiveBlur

PLAN = Plan("demo/shortcut", "scenes:28,shortcut=always", ("random",), ("sparseness",), chunk=8)


def reasons(wanted: Filter, data: str = PLAN.data, model: str = PLAN.model) -> list[str | None]:
    view = load(model)
    return wanted.table(view, Chunk(view, dataset(data).items, "predicted"))["error"].to_pylist()


def test_only_what_the_model_gets_right() -> None:
    """The shortcut's model calls nearly everything with a circle a sailboat."""
    found = reasons(Filter(correct=True))
    labels = [item.label for item in dataset(PLAN.data)]
    right = [why is None for why in found]
    assert all(right[i] for i, label in enumerate(labels) if label == scenes.SHORTCUT_CLASS)
    assert sum(right) < 8
    assert {why for why in found if why} == {"left out: the model gets it wrong"}


def test_only_what_the_model_is_sure_of() -> None:
    view = load("demo")
    chunk = Chunk(view, dataset("scenes:12,objects=2").items, "predicted")
    sure = [row.confidence for row in chunk.rows]
    middle = sorted(sure)[6]
    found = Filter(confidence=middle).table(view, chunk)["error"].to_pylist()
    assert [why is None for why in found] == [one >= middle for one in sure]
    assert any(why and "is asked for" in why for why in found)


def test_only_where_the_true_class_has_some_probability() -> None:
    found = reasons(Filter(recognised=0.5))
    wrong = reasons(Filter(correct=True))
    assert [why is None for why in found] == [why is None for why in wrong], "half the probability makes a winner"
    assert any(why and "the true class has" in why for why in found)


def test_only_large_objects() -> None:
    items = dataset("scenes:10")
    areas = [float((item.mask() == 1).mean()) for item in items]
    middle = sorted(areas)[5]
    found = reasons(Filter(area=middle), "scenes:10", "demo")
    assert sum(why is None for why in found) == 5
    assert any(why and "the object covers" in why for why in found)


def test_only_what_a_blur_hides() -> None:
    view = load("demo")
    chunk = Chunk(view, dataset("scenes:8").items, "predicted")
    found = Filter(blurs=True).table(view, chunk)["error"].to_pylist()
    target = Target(chunk.logits.argmax(1))
    with torch.no_grad():
        left = target.probability(view.logits(AdaptiveBlur().fill(view, chunk.inputs, target)))
    assert [why is None for why in found] == (left <= 0.01).tolist()
    assert {why is None for why in found} == {True, False}
    assert all("when it is blurred" in why for why in found if why)


def test_a_run_keeps_to_it_and_says_who_was_left_out(tmp_path: Path) -> None:
    plan = replace(PLAN, data="scenes:28", model="demo", filter=Filter(correct=True, per_class=1))
    store = Store(str(tmp_path / "run"))
    found = run(plan, store)
    assert len(found.images) == 14, "one of each class"
    left = list(errors(store))
    assert len(left) == 14
    assert {one["error"] for one in left} == {"left out: 1 of its class are there already"}
    assert run(plan, store).images == found.images
    with pytest.raises(InputError, match="filter"):
        run(replace(plan, filter=Filter(correct=True)), store)


def test_a_limit_counts_what_passes(tmp_path: Path) -> None:
    plan = replace(PLAN, data="scenes:56", model="demo", filter=Filter(correct=True), limit=5)
    bench = Bench(plan)
    assert len(bench.every) == 20
    assert len(run(plan, str(tmp_path / "run")).images) == 5


def test_what_cannot_be(tmp_path: Path) -> None:
    for wrong, words in (
        ({"confidence": 2}, "confidence must lie between 0 and 1, but 2"),
        ({"per_class": 0}, "per_class must be 1 or more, but 0"),
    ):
        with pytest.raises(InputError, match=words):
            Filter(**wrong)
    Image.new("RGB", (144, 144)).save(tmp_path / "a.png")
    plan = replace(PLAN, data=f"folder:{tmp_path}")
    for wanted, words in (
        (Filter(correct=True), "asks for the true classes"),
        (Filter(area=0.1), "no masks or boxes"),
    ):
        with pytest.raises(InputError, match=words):
            Bench(replace(plan, filter=wanted))
    with pytest.raises(InputError, match=r"no picture of .* passes the filter"):
        run(replace(plan, filter=Filter(confidence=1.0)), str(tmp_path / "run"))
