"""Runs that go on where they stopped: the same table, nothing twice, everything that failed on record."""

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from helpers.small import quick, serving
from helpers.tables import same
from helpers.zoo import pictures
from vitrail import InputError, Scores, scenes
from vitrail.bench import Plan, Store, run
from vitrail.bench.runner import Bench
from vitrail.bench.stored import CHOSEN, columns_of, errors, parts_of
from vitrail.bench.unit import kept, map_of
from vitrail.data import dataset
from vitrail.method import METHODS, Batch, Explainer, Method
from vitrail.model import View

PLAN = Plan(
    "demo",
    "scenes:6",
    ("gradcam++", "random"),
    ("deletion(step=5184)", "pointing_game", "segmentation", "positive_perturbation"),
    chunk=2,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    return run(PLAN, str(tmp_path_factory.mktemp("runs") / "whole"))


def test_the_table_is_that_of_evaluate(whole: Scores) -> None:
    """But for the rounding of other batches."""
    items = dataset("scenes:6")
    expected = vitrail.evaluate(
        "demo",
        [item.picture() for item in items],
        list(PLAN.methods),
        list(PLAN.metrics),
        masks=[item.mask() for item in items],
        labels=[item.label for item in items],
    )
    for row in expected.rows:
        found = whole.row(row.metric, row.method)
        np.testing.assert_allclose(found.each, row.each, atol=1e-3, err_msg=row.metric)
        assert found.value == pytest.approx(row.value, abs=1e-3)


def test_a_second_run_does_nothing(tmp_path: Path, whole: Scores) -> None:
    place = str(tmp_path / "run")
    assert same(run(PLAN, place), whole)
    view = vitrail.load("demo")
    before = view.meter.forwards
    assert same(run(PLAN, place), whole)
    assert view.meter.forwards == before
    bench, store = Bench(PLAN), Store(place)
    known = parts_of(store)
    bench.choose(store)
    assert not any(bench.work(store, unit, known[unit.name]) for unit in bench.units())


def test_new_metrics_and_methods_use_what_is_there(tmp_path: Path, whole: Scores) -> None:
    place = str(tmp_path / "run")
    run(replace(PLAN, methods=("random",), metrics=PLAN.metrics[:1]), place)
    first = {name: Store(place).read(name) for name in Store(place).units()}
    assert same(run(PLAN, place), whole)
    store = Store(place)
    assert all(store.read(name).equals(table) for name, table in first.items()), "nothing is written twice"
    added = [name for name in store.units() if "+" in name.rpartition("/")[2]]
    assert len(added) == 3, "one part a chunk of the first method"
    assert "map" not in store.read(added[0]).column_names


def test_memory_is_a_place_too(whole: Scores) -> None:
    assert same(run(PLAN, "memory://runs/one"), whole)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "run")
    run(replace(PLAN, metrics=("sparseness",)), place)
    for other, words in (
        (replace(PLAN, chunk=3), "chunk is 2 there, but 3 was asked for"),
        (replace(PLAN, data="scenes:8"), "data is 'scenes:6' there, but 'scenes:8'"),
        (replace(PLAN, model="demo/shortcut"), "weights is"),
        (replace(PLAN, explains="label"), "explains is 'predicted' there, but 'label'"),
    ):
        with pytest.raises(InputError, match=words):
            run(other, place)


def test_another_explainer_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """A row's name holds the explainer's folder, and not what lies in it."""
    view = vitrail.load("demo")
    torch.manual_seed(0)
    Explainer.for_view(view, channels=8, embedding=4).save_pretrained(tmp_path / "it")
    plan = Plan("demo", "scenes:2", (f"aha(explainer='{tmp_path / 'it'}')", "random"), ("pointing_game",), chunk=2)
    run(plan, str(tmp_path / "run"))
    run(plan, str(tmp_path / "run"))
    Explainer.for_view(view, channels=8, embedding=4).save_pretrained(tmp_path / "it")
    with pytest.raises(InputError, match=r"holds rows of aha\(.*\) made with another explainer"):
        run(plan, str(tmp_path / "run"))
    run(replace(plan, methods=("random",)), str(tmp_path / "run"))


class Hard(Method):
    """Maps that are hard to keep: neighbours in float32, next to nothing, enormous, both zeros."""

    id = "hard"
    needs = frozenset()

    def maps(self, view: View, batch: Batch) -> Tensor:
        batch.settle(view)
        rows, columns = view.grid_at(batch.size)
        places = torch.arange(rows * columns, dtype=torch.float64).view(rows, columns)
        kinds = [1 + places * 2**-23, places * 1e-45, 1e38 * (1 + places * 2**-23), 0.0 * (places % 2 - 0.5)]
        return torch.stack([kinds[i % len(kinds)].float() for i in range(len(batch))])


def same_bits(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_a_run_keeps_maps_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "hard", Hard)
    place = str(tmp_path / "run")
    run(replace(PLAN, data="scenes:4", methods=("hard",), metrics=("sparseness",), chunk=4), place)
    store = Store(place)
    records = [record for name in parts_of(store) if "hard" in name for record in store.read(name).to_pylist()]
    exact = vitrail.explain("demo", [item.picture() for item in dataset("scenes:4")], Hard()).maps
    assert len(records) == len(exact) == 4
    assert all(same_bits(map_of(record), expected) for record, expected in zip(records, exact))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "aha"])
def test_keeping_a_map_changes_nothing(name: str) -> None:
    """Of no method: no rank, and no number, depends on whether a map was kept."""
    method = quick(name)
    view = vitrail.load(serving(method))
    for expected in vitrail.explain(view, pictures(2, view.size), method, 1).maps:
        assert same_bits(map_of(kept(expected)), expected)


def test_maps_of_earlier_versions_are_read_and_their_runs_not_mixed(tmp_path: Path) -> None:
    half = torch.tensor([[0.5, -1.0]]).half().numpy()
    record = {"rows": 1, "columns": 2, "scale": 3.0, "map": half.tobytes()}
    assert map_of(record).tolist() == [[1.5, -3.0]]
    place = tmp_path / "run"
    run(replace(PLAN, methods=("random",), metrics=("sparseness",)), str(place))
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest.pop("maps") == "float32"
    (place / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"another folder.* maps is 'float16' there, but 'float32' was asked for"):
        run(replace(PLAN, methods=("random",), metrics=("sparseness",)), str(place))


class Fussy(Method):
    """Refuses pictures that begin with a bright pixel."""

    id = "fussy"
    needs = frozenset()

    def maps(self, view: View, batch: Batch) -> Tensor:
        batch.settle(view)
        if (batch.images[:, 0, 0, 0] > 0.9).any():
            raise RuntimeError("too bright")
        return torch.ones(len(batch), *view.grid_at(batch.size))


def test_what_fails_is_on_record_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "fussy", Fussy)
    for i in range(4):
        picture = np.array(scenes.make(i).pil)
        picture[:4, :4] = 255 if i == 1 else 0
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    (tmp_path / "3.png").write_bytes((tmp_path / "3.png").read_bytes()[:200])
    plan = Plan("demo", f"folder:{tmp_path}", ("fussy", "random"), ("sparseness", "deletion(step=10368)"), chunk=4)
    found = run(plan, str(tmp_path / "run"))
    assert found.row("sparseness", "fussy").counted == 2
    assert found.row("sparseness", "random").counted == 3
    reasons = {
        (record["unit"].split("-")[0], record["image"]): record["error"]
        for record in errors(Store(str(tmp_path / "run")))
    }
    assert set(reasons) == {("fussy", "1.png"), ("fussy", "3.png"), ("random", "3.png")}
    assert reasons["fussy", "1.png"] == "fussy failed: too bright"
    assert "cannot be read" in reasons["random", "3.png"]


def test_what_the_images_lack_is_said_first(tmp_path: Path) -> None:
    scenes.make(0).pil.save(tmp_path / "0.png")
    plan = Plan("demo", f"folder:{tmp_path}", ("random",), ("sparseness",))
    for other, words in (
        (replace(plan, explains="label"), "true classes were to be explained, but folder:.* has none"),
        (replace(plan, metrics=("pointing_game",)), "needs masks or boxes"),
        (replace(plan, metrics=("positive_perturbation",)), "needs the true classes"),
    ):
        with pytest.raises(InputError, match=words):
            run(other, str(tmp_path / "run"))


def test_images_without_a_mask_or_class_are_left_out_alone(tmp_path: Path) -> None:
    lines = ["file,class,boxes"]
    for seed in range(3):
        scene = scenes.make(seed)
        scene.pil.save(tmp_path / f"{seed}.png")
        box = " ".join(map(str, scene.objects[0].box)) if seed else ""
        lines.append(f"{seed}.png,{scene.label},{box}")
    (tmp_path / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    plan = Plan(
        "demo", f"csv:{tmp_path / 'labels.csv'}", ("genatt",), ("pointing_game", "sparseness"), explains="label"
    )
    found = run(plan, str(tmp_path / "run"))
    assert (found.row("pointing_game").counted, found.row("pointing_game").skipped) == (2, 1)
    assert found.row("sparseness").counted == 3


def test_plans_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="methods that differ"):
        replace(PLAN, methods=("ig(steps=50)", "ig"))
    with pytest.raises(InputError, match="chunk must be 1 or more"):
        run(replace(PLAN, chunk=0), "memory://nothing")


def _run(place: str) -> None:
    torch.set_num_threads(1)
    run(PLAN, place)


@pytest.mark.slow
def test_a_run_that_is_killed_ends_in_the_same_table(tmp_path: Path, whole: Scores) -> None:
    """Killed again and again at odd moments; what it had done stays as it was."""
    place = str(tmp_path / "run")
    seen: dict[str, bytes] = {}
    for round_ in range(20):
        process = multiprocessing.get_context("spawn").Process(target=_run, args=(place,))
        process.start()
        count, deadline = len(seen), time.monotonic() + 60
        while process.is_alive() and len(list(Store(place).units())) <= count and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.05 * round_)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        parts = {
            path.name + path.parent.name: path.read_bytes()
            for path in Path(place).glob("parts/*/*.parquet")
            if path.name[0] != "."
        }
        assert all(parts[name] == data for name, data in seen.items()), "no part is made twice"
        seen = parts
    assert same(run(PLAN, place), whole)
    for unit, parts in parts_of(Store(place)).items():
        assert unit == CHOSEN or set(PLAN.metrics) <= columns_of(Store(place), parts).keys()


def test_a_chunk_without_any_mask_does_not_count(tmp_path: Path) -> None:
    """Only some scenes have a circle, and here not one of every chunk."""
    plan = Plan("demo", "scenes:14,shortcut=class,mask=circle", ("random",), ("pointing_game",), chunk=4)
    row = run(plan, str(tmp_path / "run")).row("pointing_game")
    assert (row.counted, row.skipped) == (1, 13)
