"""Recommendations: what follows from hand-made numbers, and a small run on a user's pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm

from vitrail import InputError, cli, scenes
from vitrail.bench.recommend import choose as bench_recommend
from vitrail.bench.recommend.choose import CANDIDATES, candidates
from vitrail.bench.recommend.verdict import FLOOR, Recommendation, conclude
from vitrail.bench.report.compare import Measured
from vitrail.metric.statistics import interval
from vitrail.model import load

NOISE = np.random.default_rng(0).standard_normal((4, 40))


def numbers(each: np.ndarray) -> Measured:
    counted = each[np.isfinite(each)]
    return Measured(float(counted.mean()) if len(counted) else np.nan, *interval(each), each)


def found(
    ins_del: dict[str, np.ndarray], likeness: dict[str, float] | None = None, seconds: dict[str, float] | None = None
) -> Recommendation:
    """A recommendation from Ins - Del; where nothing else is said, maps change and methods cost a second."""
    alike = dict.fromkeys(ins_del, 0.1) | (likeness or {})
    images = max(len(each) for each in ins_del.values())
    floor = np.full(images, -0.05) + 0.02 * NOISE[3, :images]
    return conclude(
        "a model",
        {method: numbers(each) for method, each in (ins_del | {FLOOR: floor}).items()},
        {method: numbers(np.full(4, value)) for method, value in (alike | {FLOOR: 1.0}).items()},
        {method: ((seconds or {}).get(method, 1.0), 2.0, 1.0) for method in ins_del},
        images=images,
    )


def said(one: Recommendation) -> str:
    return "\n".join(one.sentences())


def test_sure() -> None:
    one = found({"b": 0.3 + 0.05 * NOISE[1], "a": 0.5 + 0.05 * NOISE[0], "c": 0.2 + 0.05 * NOISE[2]})
    assert [candidate.method for candidate in one.candidates] == ["a", "b", "c"]
    assert one.best is not None
    assert one.best.method == "a"
    assert one.sure
    assert one.tied == []
    assert one.needed is None
    assert one.cheapest is one.best
    assert one.behind["b"].low > 0
    assert said(one).startswith("Use a. Ins - Del 0.497 (0.4")
    assert "It costs 1 s, 2 forward and 1 backward passes an image." in said(one)
    assert "the next, b, is 0.182 behind (0.1" in said(one)


def test_not_sure() -> None:
    noisy = {"a": 0.30 + 0.1 * NOISE[0], "b": 0.29 + 0.1 * NOISE[1], "c": np.full(40, -0.3)}
    one = found(noisy, seconds={"a": 3.0, "b": 0.25})
    assert not one.sure
    first, second = one.passing
    assert one.tied == [second]
    assert one.cheapest is not None
    assert one.cheapest.method == "b"
    gap = one.behind[second.method]
    assert one.needed == int(np.ceil(40 * ((gap.high - gap.low) / 2 / gap.mean) ** 2))
    assert one.needed > 40, "the interval holds zero, so more pictures are needed than there were"
    text = said(one)
    assert f"Best, but not surely: {first.method}." in text
    assert f"cannot be told apart from {second.method}" in text
    assert "The cheapest of them is b: 0.25 s" in text
    assert "pictures would be needed" in text
    assert "Not better than random maps on these pictures: c." in text


def test_the_same_maps_are_never_told_apart() -> None:
    one = found({"a": 0.3 + 0.1 * NOISE[0], "b": 0.3 + 0.1 * NOISE[0]})
    assert (len(one.tied), one.needed) == (1, None)
    assert "have the same mean: more pictures may not tell them apart" in said(one)


def test_all_fail() -> None:
    one = found({"deaf": 0.5 + 0.05 * NOISE[0], "blind": NOISE[1] - 0.05}, likeness={"deaf": 0.83})
    assert one.best is one.cheapest is None
    assert not one.sure
    assert one.to_dict()["recommended"] is None
    text = said(one)
    assert text.startswith("No method can be recommended")
    assert "deaf (0.83)" in text
    assert "Not better than random maps on these pictures: blind." in text


def test_a_better_method_that_ignores_the_model_is_passed_over() -> None:
    one = found({"deaf": 0.9 + 0.05 * NOISE[0], "good": 0.3 + 0.05 * NOISE[1]}, likeness={"deaf": 0.9})
    assert one.best is not None
    assert one.best.method == "good"
    assert one.behind == {}
    assert "No other method passes both rules." in said(one)


def test_few_pictures_are_never_sure() -> None:
    one = found({"a": 0.5 + 0.01 * NOISE[0, :6], "b": 0.3 + 0.01 * NOISE[1, :6]})
    assert one.tied == []
    assert not one.sure
    assert said(one).startswith("Best on these few pictures: a.")
    assert "Fewer than 10 pictures" in said(one)


def test_what_could_not_be_measured_is_told() -> None:
    one = found({"a": 0.5 + 0.05 * NOISE[0], "broken": np.full(40, np.nan)}, likeness={"a": np.nan})
    assert one.best is not None
    assert one.best.method == "a"
    assert [candidate.method for candidate in one.candidates] == ["a", "broken"]
    assert "The randomisation check could not be made for a." in said(one)
    assert "NaN" not in json.dumps(one.to_dict()), "JSON has no such word"


# ----------------------------------------------------------------------------------------------------------- candidates


def test_candidates_are_what_the_model_serves() -> None:
    served, refused = candidates(load("demo"))
    assert served == [*CANDIDATES]
    assert refused == ()
    cnn = load(timm.create_model("test_resnet", num_classes=3))
    served, refused = candidates(cnn)
    assert {"gradcam", "ig(steps=20)"} <= set(served)
    assert {"rollout", "decompx", "tis(masks=256)"} <= set(refused)
    assert candidates(cnn, ["layercam", "random", "layercam"]) == (["layercam"], ())
    with pytest.raises(InputError, match="rollout needs attention"):
        candidates(cnn, ["rollout"])
    with pytest.raises(InputError, match="no method to choose besides random"):
        candidates(cnn, ["random"])


# ---------------------------------------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six scenes of a user."""
    home = tmp_path_factory.mktemp("pictures")
    for seed in range(6):
        scenes.make(seed).pil.save(home / f"{seed}.png")
    return home


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves of a few points, which cost little."""
    monkeypatch.setattr(bench_recommend, "STEPS", 6)


def recommend(*arguments: object, model: object = "demo") -> int:
    return cli.main(["recommend", "--model", str(model), "--device", "cpu", *map(str, arguments)])


def test_a_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    asked = ("--images", folder, "--methods", "decompx", "genatt", "--methods", "rollout", "--out", out)
    assert recommend(*asked) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in ("decompx", "genatt", "rollout", "Ins - Del", "Fewer than 10 pictures", "vitrail report"):
        assert words in printed
    assert cli.main(["report", str(out), "--form", "markdown"]) == 0, "it is a run like any other"
    assert "randomisation" in capsys.readouterr().out
    assert recommend(*asked, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["images"] == 6
    assert {one["method"] for one in told["candidates"]} == {"decompx", "genatt", "rollout"}
    assert told["recommended"] in ("decompx", "genatt", "rollout")
    assert not told["sure"]
    assert all(one["seconds"] > 0 and one["passes"] >= 1 for one in told["candidates"])


def test_a_cnn_and_single_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the model is no transformer; a broken picture is told, and the rest goes on."""
    model = tmp_path / "mine.py"
    model.write_text("import timm\n\ndef make():\n    return timm.create_model('test_resnet', num_classes=3)\n")
    (tmp_path / "broken.png").write_text("no picture")
    files = (folder / "0.png", folder / "1.png", tmp_path / "broken.png")
    asked = ("--images", *files, "--methods", "gradcam", "layercam", "lrp", "--json")
    assert recommend(*asked, model=f"{model}:make") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["images"] for one in told["candidates"]] == [2, 2, 2]
    left_out = "Left out by all methods, 1 picture: the picture cannot be read"
    assert any(line.startswith(left_out) for line in told["sentences"])


def test_mistakes_get_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = folder / "0.png"
    for arguments, sentence in (
        (["--images", one, folder / "none.png"], "there is no picture"),
        (["--images", one, "--out", "memory://run"], "single pictures need a run in a folder of this machine"),
        (["--images", folder, "--methods", "gradcamm"], "did you mean"),
        (["--images", folder, "--limit", "0"], "limit must be 1 or more"),
    ):
        assert recommend(*arguments) == 2
        assert sentence in capsys.readouterr().err
