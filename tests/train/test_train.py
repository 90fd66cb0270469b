"""Training: it learns, stops and goes on, gives the same on one process and on two, and says what is wrong."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.train_setup import ITEMS, SMALL
from vitrail import InputError, load, scenes
from vitrail.cli import main
from vitrail.data import dataset
from vitrail.method import Explainer
from vitrail.method.aha import POWERS
from vitrail.train import CHECKPOINT, CURVE, EXPLAINER, LOG, REPORT, Learner, joined, launched, loop, train
from vitrail.train.pictures import Draw, Pictures, centre, cut, draws


def weights(explainer: Explainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in explainer.state_dict().items()}


def losses(out: Path) -> list[float]:
    with (out / LOG).open() as file:
        return [float(row["total"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module", autouse=True)
def few_points() -> Iterator[None]:
    """Looks at held-out pictures take most of the time; two points of a curve are enough here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "STEPS", 2)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    out = tmp_path_factory.mktemp("training") / "whole"
    return out, weights(train(load("demo", device="cpu"), ITEMS, out, SMALL))


def test_a_folder_with_all_that_is_needed(whole: tuple[Path, dict[str, torch.Tensor]]) -> None:
    out, learned = whole
    assert len(losses(out)) == SMALL.steps
    assert Image.open(out / CURVE).size[0] > 400
    assert Image.open(out / "sheets" / "000006.png").size[0] > 200
    explainer = Explainer.from_pretrained(out / EXPLAINER)
    assert (explainer.config["steps"], explainer.config["temperature"]) == (6, 0.01)
    assert explainer.config["contrast"] in POWERS
    assert all(torch.equal(learned[name], value) for name, value in explainer.state_dict().items())
    assert not list(out.rglob(".*")), "nothing half written"


def test_the_same_again_and_another_with_another_seed(
    tmp_path: Path, whole: tuple[Path, dict[str, torch.Tensor]]
) -> None:
    again = weights(train(load("demo", device="cpu"), ITEMS, tmp_path / "again", SMALL))
    assert all(torch.equal(whole[1][name], value) for name, value in again.items())
    other = weights(train(load("demo", device="cpu"), ITEMS, tmp_path / "other", replace(SMALL, seed=1, steps=1)))
    assert not all(torch.equal(whole[1][name], value) for name, value in other.items())


def test_stopped_in_the_middle_it_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, dict[str, torch.Tensor]]
) -> None:
    plain = Learner.step

    def dies(self: Learner, number: int) -> torch.Tensor:
        if number == 4:
            raise KeyboardInterrupt
        return plain(self, number)

    monkeypatch.setattr(Learner, "step", dies)
    with pytest.raises(KeyboardInterrupt):
        train(load("demo", device="cpu"), ITEMS, tmp_path / "run", SMALL)
    monkeypatch.setattr(Learner, "step", plain)
    assert Explainer.from_pretrained(tmp_path / "run" / EXPLAINER).config["steps"] == 3, "as of the last look"
    found = weights(train(load("demo", device="cpu"), ITEMS, tmp_path / "run", SMALL))
    assert all(torch.equal(whole[1][name], value) for name, value in found.items())
    assert losses(tmp_path / "run") == losses(whole[0])


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from pathlib import Path
from helpers.train_setup import ITEMS, SMALL
from vitrail import load
from vitrail.train import launched, loop, train
loop.STEPS = 2
fabric = launched("cpu", 2)
train(load("demo", device="cpu"), ITEMS, Path({out!r}), SMALL, fabric=fabric)
"""


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path, whole: tuple[Path, dict[str, torch.Tensor]]) -> None:
    out = tmp_path / "two"
    script = tmp_path / "two.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1]), out=str(out)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert losses(out) == pytest.approx(losses(whole[0]), abs=1e-4)


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    """More evidence first: the soft objective falls, on pictures it has seen."""
    training = replace(SMALL, steps=40, batch=8, rate=3e-3, noises=(0.0, 0.0), look=40, channels=16, others=0.0)
    train(load("demo", device="cpu"), ITEMS, tmp_path / "run", training)
    found = losses(tmp_path / "run")
    assert np.mean(found[-8:]) < np.mean(found[:8]) - 0.02


def test_what_is_wrong_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, dict[str, torch.Tensor]]
) -> None:
    view = load("demo", device="cpu")
    with pytest.raises(InputError, match="8 pictures or more, but --data has 1"):
        train(view, ITEMS[:1], tmp_path / "one", SMALL)
    with pytest.raises(InputError, match=r"is of another training \(--rate 0.0003 there, 0.1 now\)"):
        train(view, ITEMS, whole[0], replace(SMALL, rate=0.1))
    with pytest.raises(InputError, match=r"is of another training \(another model\)"):
        train(load("demo/shortcut", device="cpu"), ITEMS, whole[0], SMALL)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / CHECKPOINT).write_bytes((whole[0] / CHECKPOINT).read_bytes()[:500])
    with pytest.raises(InputError, match=r"cannot be read .* delete it to begin anew"):
        train(view, ITEMS, damaged, SMALL)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device"):
        train(view, ITEMS, tmp_path / "full", replace(SMALL, steps=1, look=1))


def test_a_picture_that_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(9):
        scenes.make(i).pil.save(folder / f"{i}.png")
    (folder / "4.png").write_bytes(b"no picture")
    train(
        load("demo", device="cpu"), dataset(f"folder:{folder}").items, tmp_path / "run", replace(SMALL, steps=3, look=3)
    )
    assert "1 pictures could not be read and were left out; the first, 4.png" in (tmp_path / "run" / REPORT).read_text()
    shelf = Pictures(dataset(f"folder:{folder}").items, (144, 144))
    shelf.load(torch.device("cpu"))
    assert torch.equal(shelf.fetch([4]), shelf.fetch([5]))


@pytest.mark.parametrize("seed", range(4))
def test_what_learns_nothing_is_stopped_whatever_its_first_weights(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrained decoder may be better than chance: it sees what speaks for the class."""
    monkeypatch.setattr(Learner, "step", lambda self, number: torch.zeros(len(loop.LOSSES)))
    training = replace(SMALL, seed=seed, steps=1, gates="on")
    with pytest.raises(InputError, match="no better than the untrained explainer's"):
        train(load("demo", device="cpu"), ITEMS, tmp_path / "run", training)


def test_maps_that_rank_nothing_stop_it_and_gates_off_lets_it_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constant maps keep a rank entropy of 1 however low the temperature; their order may still be better."""
    view, training = load("demo", device="cpu"), replace(SMALL, steps=2, look=1, gates="on")
    looks = iter([0.0] + [0.5] * 3 + [0.0] + [0.5] * 9)
    monkeypatch.setattr(Learner, "look", lambda self: loop.Looked(next(looks), 1.0))
    plain, begun = Learner.scores, []

    def flat(self: Learner) -> torch.Tensor:
        if self in begun:
            return torch.full((2, 196), 0.7)
        begun.append(self)
        return plain(self)

    monkeypatch.setattr(Learner, "scores", flat)
    with pytest.raises(InputError, match=r"rank regions no more clearly than .* \(rank entropy 1.000 and 0\.\d+ on"):
        train(view, ITEMS, tmp_path / "run", training)
    train(view, ITEMS, tmp_path / "run", replace(training, gates="off"))
    with (tmp_path / "run" / LOG).open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["entropy"]) for row in rows] == pytest.approx([1.0, 1.0], abs=1e-4)
    # The temperature falls from 0.1 to 0.01: that alone makes the ranks of the untrained maps clearer.
    assert 1 > float(rows[0]["untrained"]) > float(rows[1]["untrained"]) + 0.05


def test_a_full_report_has_other_methods_beside_the_explainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.method.aha.method.CURVE", 2)  # short curves for refinement, too
    training = replace(SMALL, steps=1, report="full")
    train(load("demo", device="cpu"), ITEMS, tmp_path / "run", training)
    table = [line.split(" | ") for line in (tmp_path / "run" / REPORT).read_text().splitlines() if " to " in line]
    names = [row[0].removeprefix("| ") for row in table]
    wanted = {"aha", "aha, 3 steps of refinement", "random", "gradcam", "ig", "rollout", "genatt", "bt_h"}
    assert wanted <= set(names)
    assert len(names) == len(set(names)) == 10
    differences = [float(row[1]) for row in table]
    assert differences == sorted(differences, reverse=True)
    for _, difference, ends, insertion, deletion, _ in table:
        low, high = (float(end) for end in ends.split(" to "))
        assert low <= float(difference) <= high
        assert float(insertion) - float(deletion) == pytest.approx(float(difference), abs=2e-4)


def test_datasets_are_joined_and_limited(tmp_path: Path) -> None:
    scenes.make(3).pil.save(tmp_path / "scene 3.png")
    items = joined(["scenes:19", f"folder:{tmp_path}"]).items
    assert [items[0].name, items[-1].name] == ["scenes:19: scene 0", f"folder:{tmp_path}: scene 3.png"]
    assert joined(["scenes:20"]).items == ITEMS
    view, fabric = load("demo", device="cpu"), launched("cpu")
    whole = Learner(view, items, SMALL, fabric)
    some = Learner(view, items, replace(SMALL, limit=4), fabric)
    assert [item.name for item in some.held.items] == [item.name for item in whole.held.items]
    assert (len(whole.pictures), len(some.pictures)) == (18, 4)
    assert {item.name for item in some.pictures.items} < {item.name for item in whole.pictures.items}
    assert some.pictures.items[0].name == "scenes:19: scene 1"
    assert some.pictures.items[-1].name == "scenes:19: scene 18"
    assert len(Learner(view, items, replace(SMALL, limit=500), fabric).pictures) == 18
    with pytest.raises(InputError, match=r"--limit must be a whole number from 1 to .*, but 0 was given"):
        replace(SMALL, limit=0)


def test_the_papers_explainer_sees_features_alone() -> None:
    fabric = launched("cpu")
    for evidence, expected in (("on", True), ("off", False)):
        learner = Learner(load("demo", device="cpu"), ITEMS, replace(SMALL, evidence=evidence), fabric)
        assert learner.explainer.config["evidence"] is expected


def test_cuts_are_parts_of_the_picture() -> None:
    square = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).repeat(1, 3, 1, 1)
    middle = cut(square, [Draw(0, (0.25, 0.25, 0.5, 0.5), False, 0, 0)], (4, 4))
    torch.testing.assert_close(middle, centre(square, (4, 4)))
    mirrored = cut(square, [Draw(0, (0.25, 0.25, 0.5, 0.5), True, 0, 0)], (4, 4))
    torch.testing.assert_close(mirrored, middle.flip(3))


def test_every_picture_once_an_epoch() -> None:
    found = [one.number for step in range(5) for one in draws(10, 4, 3, step, others=0.2, references=3)]
    assert sorted(found[:10]) == sorted(found[10:]) == list(range(10))
    assert found[:10] != found[10:]
    again = [one for step in range(5) for one in draws(10, 4, 3, step, others=0.2, references=3)]
    assert [one.number for one in again] == found


def test_pictures_are_kept_once_they_are_read() -> None:
    shelf = Pictures(ITEMS[:2], (144, 144))
    assert shelf.fetch([0, 1, 0]).shape == (3, 3, 165, 165)
    assert torch.equal(shelf.fetch([1])[0], shelf.fetch([0, 1])[1])
    ahead = Pictures(ITEMS[:2], (144, 144))
    ahead.load(torch.device("cpu"))
    assert torch.equal(ahead.fetch([1, 0, 1]), shelf.fetch([1, 0, 1]))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = [
        "--data",
        "scenes:8",
        "quads:scenes:8",
        "--limit",
        "9",
        "--report",
        "short",
        "--steps",
        "2",
        "--batch",
        "4",
        "--channels",
        "8",
        "--look",
        "2",
        "--curve",
        "2",
    ]
    assert main(["train", *words, "--out", str(out), "--device", "cpu", "--gates", "off"]) == 0
    assert f"aha(explainer='{out}/explainer')" in capsys.readouterr().out
    assert json.loads((out / EXPLAINER / "config.json").read_text())["target"] == "demo"
