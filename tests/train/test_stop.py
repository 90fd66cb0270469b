"""Interrupted trainings: what they leave, and how they go on."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.train_setup import ITEMS, SMALL
from vitrail import InputError, cli, explain, load
from vitrail.method import Explainer
from vitrail.method.aha.known import LEARNED
from vitrail.method.aha.method import UNSEEN
from vitrail.train import EXPLAINER, REPORT, Learner, loop, run, train
from vitrail.train.pictures import numbers_drawn

WORDS = "--data scenes:20 --batch 2 --channels 8 --curve 2 --look 1 --cells 4 6 --gates off --report short --device cpu"


@pytest.fixture(autouse=True)
def few_points() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "STEPS", 2)
        yield


def test_an_interrupt_leaves_an_explainer_that_works_and_more_steps_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "vitrail", "train", *WORDS.split(), "--out", str(out)]
    started = subprocess.Popen(
        [*command, "--steps", "500"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background has it ignored
    )
    while not (out / EXPLAINER / "config.json").is_file() and started.poll() is None:
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    said, complained = started.communicate(timeout=600)
    assert (started.returncode, complained.splitlines()[-1]) == (130, "vitrail: stopped")
    found = re.search(r"the explainer as of step (\d+) is \"(.*)\"; the same command goes on", said)
    assert found is not None, said
    assert not list(out.rglob(".*")), "nothing half written"
    assert explain("demo", [ITEMS[0].picture()], found[2]).maps.shape == (1, 144, 144)
    steps = int(found[1]) + 1
    assert cli.main([*command[3:], "--steps", str(steps)]) == 0
    assert json.loads((out / EXPLAINER / "config.json").read_text())["steps"] == steps


def test_seconds_of_all_parts_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    plain = Learner.step

    def steps_of_ten_seconds(self: Learner, number: int) -> torch.Tensor:
        if number == 4 and clock[0] == 40:
            raise KeyboardInterrupt
        clock[0] += 10
        return plain(self, number)

    monkeypatch.setattr(Learner, "step", steps_of_ten_seconds)
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    with pytest.raises(KeyboardInterrupt):
        train(load("demo", device="cpu"), ITEMS, tmp_path, SMALL)
    clock[0] = 1000.0
    train(load("demo", device="cpu"), ITEMS, tmp_path, SMALL)
    assert "; 60 s on 1 x cpu" in (tmp_path / REPORT).read_text(), "three steps before the look, three after it"


def test_what_it_was_trained_on_is_known_again(tmp_path: Path) -> None:
    view, training = load("demo", device="cpu"), replace(SMALL, steps=2, look=2, evidence="off")
    train(view, ITEMS, tmp_path, training)
    spec = f"aha(explainer='{tmp_path / EXPLAINER}')"
    learner = Learner(view, ITEMS, training, run.launched("cpu"))
    seen = [learner.pictures.items[i].name for i in numbers_drawn(18, 4, 0, 2)]
    seen += [item.name for item in learner.held.items]
    assert len(seen) == 2 * 4 + 2
    found = explain(view, [item.picture() for item in ITEMS], spec)
    assert [LEARNED in notes for notes in found.notes] == [item.name in seen for item in ITEMS]
    explainer = Explainer.from_pretrained(tmp_path / EXPLAINER)
    never = torch.tensor([not row.any() for row in explainer.decoder.embedding.weight])
    assert 0 < never.sum() < 14
    told = explain(view, [ITEMS[0].picture()] * 14, spec, list(range(14)))
    assert [UNSEEN[0] in notes for notes in told.notes] == never.tolist()
    same = told.maps[never]
    assert all(torch.allclose(one, same[0], atol=1e-6) for one in same), "as the note says"


def test_fewer_steps_than_there_were_are_refused(tmp_path: Path) -> None:
    view = load("demo", device="cpu")
    train(view, ITEMS, tmp_path, replace(SMALL, steps=2, look=1))
    with pytest.raises(InputError, match="has 2 steps already; give --steps 2 or more, or another folder with --out"):
        train(view, ITEMS, tmp_path, replace(SMALL, steps=1, look=1))
    train(view, ITEMS, tmp_path, replace(SMALL, steps=3, look=1))
    assert Explainer.from_pretrained(tmp_path / EXPLAINER).config["steps"] == 3
