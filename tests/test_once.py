"""A picture is read once, and the model answers the clean picture once, however many methods and metrics there are."""

from collections import Counter
from pathlib import Path
from typing import BinaryIO

import PIL.Image
import pytest
import torch
from torch import Tensor

import vitrail
from vitrail import scenes
from vitrail.bench import Plan, run
from vitrail.cli import main
from vitrail.front import explain_each
from vitrail.model import View
from vitrail.model import pictures as inputs

METHODS = ["rise(masks=4)", "occlusion(window=72, stride=72)", "lime(samples=4, grid=2)"]
METRICS = ["insertion(step=5184)", "deletion(step=5184)", "average_drop", "sparseness"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = []
    for seed in (3, 4, 5):
        found.append(tmp_path / "pictures" / f"{seed}.png")
        found[-1].parent.mkdir(exist_ok=True)
        scenes.make(seed).pil.save(found[-1])
    return found


class Counted:
    """How often each picture was decoded, and went through the model clean."""

    def __init__(self) -> None:
        self.decoded: Counter[str] = Counter()
        self.clean: Counter[int] = Counter()
        self.inputs: Tensor = torch.zeros(0)


@pytest.fixture
def counted(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> Counted:
    view, found = vitrail.load("demo"), Counted()
    found.inputs = view.preprocess.batch(files)
    decoded, logits = inputs._decoded, View.logits

    def decoding(handle: BinaryIO, name: str) -> PIL.Image.Image:
        found.decoded[Path(name).name] += 1
        return decoded(handle, name)

    def asking(self: View, images: Tensor) -> Tensor:
        for i, one in enumerate(found.inputs):
            found.clean[i] += int((images.cpu() == one).flatten(1).all(1).sum())
        return logits(self, images)

    monkeypatch.setattr(inputs, "_decoded", decoding)
    monkeypatch.setattr(View, "logits", asking)
    return found


def once(counted: Counted, *, looked_at: bool = False) -> None:
    """Check it; where broken pictures are refused before a model is loaded, the first one was read for that as well."""
    assert set(counted.clean.values()) == {1}, counted.clean
    assert len(counted.decoded) == 3
    counted.decoded["3.png"] -= looked_at
    assert set(counted.decoded.values()) == {1}, counted.decoded


def test_explain(files: list[Path], counted: Counted) -> None:
    view = vitrail.load("demo")
    before = view.meter.forwards
    found = vitrail.explain(view, files, "rise(masks=4)")
    once(counted)
    assert view.meter.forwards - before == found.forwards == 3 * 5


def test_explain_with_several_methods(files: list[Path], counted: Counted) -> None:
    view = vitrail.load("demo")
    before = view.meter.forwards
    explain_each(view, files, METHODS, targets=["predicted", "whale"])
    once(counted)
    assert view.meter.forwards - before == 3 * (1 + 4 + 4 + 4)


def test_a_method_with_a_clean_pass_of_its_own_asks_for_no_other(files: list[Path], counted: Counted) -> None:
    vitrail.explain("demo", files, "genatt")
    assert not counted.clean
    assert set(counted.decoded.values()) == {1}


def test_evaluate(files: list[Path], counted: Counted) -> None:
    view = vitrail.load("demo")
    before = view.meter.forwards
    vitrail.evaluate(view, files, METHODS, METRICS)
    once(counted)
    # Five points each: the ends of the curves are the clean picture and the two baselines, known to all methods.
    points = torch.arange(0, 144 * 144 + 5184, 5184).clamp_max(144 * 144).unique()
    inner = len(points) - 2
    assert view.meter.forwards - before == 3 * (1 + (4 + 4 + 4) + 2 + 3 * (2 * inner + 1))


def test_an_adaptive_blur_is_searched_once_for_all_methods(files: list[Path], counted: Counted) -> None:
    view, metric = vitrail.load("demo"), "deletion(step=10368, baseline=adaptive_blur)"
    made = []
    for count in (1, 2, 3):
        before = view.meter.forwards
        vitrail.evaluate(view, files, ["random", "random(seed=1)", "random(seed=2)"][:count], metric)
        made.append(view.meter.forwards - before)
    assert made[1] - made[0] == made[2] - made[1] == 3, "one point between the ends, three pictures"


def test_the_benchmark(files: list[Path], counted: Counted, tmp_path: Path) -> None:
    plan = Plan("demo", f"folder:{files[0].parent}", tuple(METHODS), tuple(METRICS), chunk=2)
    made = []
    run(plan, str(tmp_path / "run"), observers=[lambda event: made.append(event.passes.forwards)])
    once(counted, looked_at=True)
    assert max(made) == 3 * (1 + (4 + 4 + 4) + 2 + 3 * (2 * 3 + 1))


def test_the_command_line(files: list[Path], counted: Counted, tmp_path: Path) -> None:
    methods = ["rise(masks=4)", "genatt", "occlusion(window=72,stride=72)"]
    command = ["explain", str(files[0].parent), "--method", *methods, "--target", "predicted", "whale"]
    assert main([*command, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    once(counted, looked_at=True)
