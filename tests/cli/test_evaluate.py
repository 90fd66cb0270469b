"""``vitrail evaluate`` and ``vitrail metrics``: pictures, masks and classes from files, a table out."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail import Scores, evaluate, scenes
from vitrail.cli import main
from vitrail.metric import PRESETS, Preset, metrics

STEP = "deletion(step=5184)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pictures, their masks and a file of their classes and boxes."""
    home = tmp_path_factory.mktemp("data")
    (home / "pictures").mkdir()
    (home / "masks").mkdir()
    lines = ["file,class,boxes"]
    for seed in (3, 4):
        scene = scenes.make(seed)
        scene.pil.save(home / "pictures" / f"{seed}.png")
        Image.fromarray(scene.objects[0].mask.astype(np.uint8)).save(home / "masks" / f"{seed}.png")
        lines.append(f"{seed}.png,{scene.name},{' '.join(map(str, scene.objects[0].box))}")
    (home / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    return home


def run(folder: Path, *more: str) -> int:
    return main(["evaluate", str(folder / "pictures"), "--out", str(folder / "out"), *more])


def test_a_table_and_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--method", "decompx", "random", "--metric", STEP, "--metric", "sparseness") == 0
    printed = capsys.readouterr().out
    assert "decompx" in printed
    assert "scores.parquet" in printed
    scores = Scores.from_parquet(folder / "out" / "scores.parquet")
    assert scores.methods == ["decompx", "random"]
    assert scores.metrics == [STEP, "sparseness"]
    assert scores.images == ("3.png", "4.png")
    text = (folder / "out" / "scores.md").read_text(encoding="utf-8")
    assert text.startswith("# demo, 2 pictures")
    assert "baseline zero_norm" in text
    assert [path.name for path in (folder / "out" / "curves").iterdir()] == ["deletion-step=5184.png"]


def test_masks_labels_and_boxes(folder: Path) -> None:
    labels = ["--labels", str(folder / "labels.csv")]
    masks = ["--masks", str(folder / "masks")]
    assert (
        run(folder, *labels, *masks, "--metric", "pointing_game", "deletion_accuracy", "--target", "label", "--quiet")
        == 0
    )
    by_mask = Scores.from_parquet(folder / "out" / "scores.parquet")
    assert by_mask.row("pointing_game").counted == 2
    assert run(folder, *labels, "--metric", "energy_pointing_game", "--quiet") == 0, "boxes of the labels file"
    assert Scores.from_parquet(folder / "out" / "scores.parquet").row("energy_pointing_game").value > 0.5


@pytest.mark.parametrize("column", ["boxes", "boxes_xyxy"])
def test_the_labels_file_has_all_that_a_preset_asks_for(
    folder: Path, column: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its classes are explained, and its boxes are used, whatever their column is called."""
    monkeypatch.setitem(PRESETS, "one", Preset("nobody", (STEP, "energy_pointing_game"), "label"))
    text = (folder / "labels.csv").read_text(encoding="utf-8").replace(",boxes", f",{column}")
    text = text.replace(scenes.make(3).name, "0")
    (folder / "more.csv").write_text(text, encoding="utf-8")
    assert run(folder, "--labels", str(folder / "more.csv"), "--metric", "one", "--method", "ixg", "--quiet") == 0
    found = Scores.from_parquet(folder / "out" / "scores.parquet")
    assert found.row("energy_pointing_game").counted == 2
    assert found.row("deletion").protocol["explained"] == "label"
    if column != "boxes":
        return
    classes = ["--labels", str(folder / "classes.csv"), "--metric", "one", "--method", "ixg"]
    lines = (line.rpartition(",")[0] for line in text.splitlines())
    (folder / "classes.csv").write_text("\n".join(lines), encoding="utf-8")
    assert run(folder, *classes) == 0
    assert "one without energy_pointing_game: no masks or boxes were given" in capsys.readouterr().out
    assert run(folder, "--metric", "one", "--target", "predicted", "--method", "ixg", "--quiet") == 0
    assert Scores.from_parquet(folder / "out" / "scores.parquet").row("deletion").protocol["explained"] == "predicted"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--metric", "delition"], "did you mean deletion"),
        (["--metric", "pointing_game"], "give --masks FOLDER, or --labels FILE.csv with a column boxes"),
        (["--metric", "deletion_accuracy"], "needs the true classes; give --labels FILE.csv"),
        (["--metric", "tis"], "the preset tis explains the true class; give --labels, or --target predicted"),
        (["--metric", "skipplus"], "give --labels; without it nothing of the preset can be measured"),
        (["--metric", "skipplus", "--target", "predicted"], "no masks or boxes were given; give --labels, or --masks"),
        (["--metric", "skipplus", "rise"], "skipplus explains the true class and rise explains the predicted class"),
        (["--target", "label"], "--target label needs --labels"),
        (["--labels", "{folder}/nothing.csv"], "there is no file"),
        (["--labels", "{folder}/reversed.csv"], "reversed.csv, line 3 has the box 100 100 50 50, which holds no pixel"),
        (["--labels", "{folder}/unknown.csv"], "unknown.csv, line 3: demo has no class called 'whela'"),
        (
            ["--labels", "{folder}/outside.csv", "--metric", "pointing_game", "--method", "random"],
            "outside.csv, line 2: the box 200 100 250 150 lies outside of its picture, which is 144 wide and 144 high",
        ),
        (["--labels", "{folder}/empty.csv"], "columns file and class"),
        (["--labels", "{folder}/other.csv"], "says nothing of 2 of the 2 pictures, 3.png first"),
        (["--labels", "{folder}/boxes.csv"], "boxes that cannot be read"),
        (["--masks", "{folder}/pictures/none"], "there is no mask"),
        (["--method", "tisss"], "no method called"),
    ],
)
def test_mistakes_get_a_sentence(
    folder: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty.csv").write_text("a,b\n", encoding="utf-8")
    (folder / "other.csv").write_text("file,class\nother.png,1\n", encoding="utf-8")
    (folder / "boxes.csv").write_text("file,class,boxes\n3.png,1,a b c d\n4.png,1,\n", encoding="utf-8")
    (folder / "reversed.csv").write_text("file,class,boxes\n3.png,1,\n4.png,1,100 100 50 50\n", encoding="utf-8")
    (folder / "outside.csv").write_text(
        "file,class,boxes\n3.png,1,200 100 250 150\n4.png,1,1 1 9 9\n", encoding="utf-8"
    )
    (folder / "unknown.csv").write_text("file,class\n3.png,1\n4.png,whela\n", encoding="utf-8")
    assert run(folder, *(word.format(folder=folder) for word in more)) == 2
    assert message in capsys.readouterr().err


def test_the_table_says_why_a_picture_does_not_count(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--method", "random", "--metric", "grid_pointing_game") == 0
    why = "2 of 2 images do not count: their mosaic takes 3 other pictures"
    assert why in " ".join(capsys.readouterr().out.split())
    assert why in (folder / "out" / "scores.md").read_text(encoding="utf-8")


def test_the_list_of_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in found] == metrics()
    assert {key for one in found for key in one} >= {"id", "higher_is_better", "needs", "presets"}
    named = {one["id"]: one for one in found}
    assert named["pointing_game"]["needs"] == ["masks"]
    assert named["deletion"]["higher_is_better"] is False
    assert {preset for one in found for preset in one["presets"]} == set(PRESETS)
    assert main(["metrics", "*aopc"]) == 0
    table = capsys.readouterr().out
    assert "deletion_aopc" in table
    assert "pointing" not in table
    assert main(["metrics", "nothing*"]) == 2


def test_a_picture_with_two_lines_is_judged_for_each(tmp_path: Path) -> None:
    scene = scenes.make(8, objects=2, classes=["whale", "shark"])
    scene.pil.save(tmp_path / "two.png")
    boxes = [" ".join(map(str, one.box)) for one in scene.objects]
    (tmp_path / "two.csv").write_text(
        "file,class,boxes\n" + "".join(f"two.png,{one.name},{box}\n" for one, box in zip(scene.objects, boxes))
    )
    method, out = "var(ixg, classes=present)", tmp_path / "out"
    asked = ["--labels", str(tmp_path / "two.csv"), "--target", "label", "--method", method, "--metric"]
    assert (
        main(["evaluate", str(tmp_path / "two.png"), *asked, "region_attribution", "--out", str(out), "--quiet"]) == 0
    )
    found = Scores.from_parquet(out / "scores.parquet")
    assert found.images == ("two.png", "two.png")
    for i, (one, other) in enumerate((scene.objects, scene.objects[::-1])):
        spec = f"var(ixg, classes=({other.name},))"
        alone = evaluate(
            "demo", scene.pil, spec, "region_attribution", target=one.name, boxes=[[tuple(map(float, one.box))]]
        )
        assert found.row("region_attribution", method).each[i] == pytest.approx(alone.rows[0].each[0], abs=1e-5)
