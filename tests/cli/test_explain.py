"""``vitrail explain``: pictures in, a sheet and the maps out; run in this process, and a few times as users do."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail import cli, scenes
from vitrail.cli.explain import SHEET_ROWS, targets_of
from vitrail.explanation import Explanation
from vitrail.method import Batch
from vitrail.method.attention.rollout import RawAttention

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    scenes.make(3, classes=["cat"]).pil.save(folder / "cat.png")
    scenes.make(40, classes=["church"]).pil.save(folder / "church.png")
    return folder


def explain(*arguments: object) -> int:
    return cli.main(["explain", *map(str, arguments), "--device", "cpu"])


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def files_of(*methods: str) -> set[str]:
    names = ("maps.npz", "overlay.png", "manifest.json")
    return {"sheet.png"} | {f"{method}/{name}" for method in methods for name in names}


def test_a_sheet_and_the_maps_are_written(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "a" / "b"
    assert explain(folder, "--method", "decompx", "ig(steps=2)", "--out", out) == 0
    assert tree(out) == files_of("decompx", "ig-steps=2")
    with Image.open(out / "sheet.png") as sheet:
        sheet.load()
        assert sheet.width > 144 * 3
    said = capsys.readouterr()
    assert said.err == ""
    for word in ("cat.png", "church.png", "cat", "church", "%", "sheet.png", "maps.npz"):
        assert word in said.out
    manifest = json.loads((out / "ig-steps=2" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["method"] == "ig(steps=2)"
    assert manifest["model"] == "demo"
    assert manifest["images"] == ["cat.png", "church.png"]
    assert manifest["explained"] == ["cat", "church"]
    found = vitrail.explain(vitrail.load("demo", device="cpu"), folder, "decompx")
    with np.load(out / "decompx" / "maps.npz") as stored:
        assert stored["maps"].shape == (2, 12, 12)
        assert np.allclose(stored["maps"], found.maps.numpy(), atol=1e-5)
    assert Explanation.load(out / "decompx").fingerprint == found.fingerprint


def test_the_default_is_decompx_on_the_demo_model(folder: Path, tmp_path: Path) -> None:
    assert explain(folder / "cat.png", "--out", tmp_path) == 0
    assert tree(tmp_path) == files_of("decompx")


def test_methods_may_be_listed_or_the_flag_repeated(folder: Path, tmp_path: Path) -> None:
    picture = folder / "cat.png"
    wanted = files_of("gradcam", "random-seed=5", "rollout")
    forms = [
        (picture, "--method", "gradcam", "random(seed=5)", "rollout"),
        (picture, "--method", "gradcam", "--method", "random(seed=5)", "--method", "rollout"),
        ("--method=gradcam", "random(seed=5)", "--quiet", picture, "--method", "rollout"),
    ]
    sheets = []
    for i, form in enumerate(forms):
        assert explain(*form, "--out", tmp_path / str(i)) == 0
        assert tree(tmp_path / str(i)) == wanted
        maps = [Explanation.load(tmp_path / str(i) / name).maps for name in ("gradcam", "random-seed=5", "rollout")]
        sheets.append(maps)
    assert all(torch.equal(a, b) for other in sheets[1:] for a, b in zip(sheets[0], other))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["a", "--method", "x", "--method", "y"], ["a", "--method", "x", "y"]),
        (["--method=x", "--out", "o", "--method", "y", "z"], ["--out", "o", "--method", "x", "y", "z"]),
        (["--classes", "a b", "--method", "x", "--classes", "c"], ["--classes", "a b", "c", "--method", "x"]),
        (["--out", "--method"], ["--out", "--method"]),
        ([], []),
    ],
)
def test_repeated_flags_are_gathered(given: list[str], meant: list[str]) -> None:
    assert cli.merged(given) == meant


def test_methods_with_alike_names_get_folders_of_their_own(folder: Path, tmp_path: Path) -> None:
    alike = ["smoothgrad(random(seed=1))", "smoothgrad(random, seed=1)"]
    assert explain(folder / "cat.png", "--method", *alike, "--out", tmp_path, "--quiet") == 0
    manifests = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*/manifest.json")]
    assert sorted(manifest["method"] for manifest in manifests) == sorted(alike)


def test_quiet_prints_nothing(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert explain(folder, "--method", "gradcam", "--out", tmp_path, "--quiet") == 0
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "sheet.png").is_file()


def test_progress_is_for_a_person_at_a_terminal(
    folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert explain(folder, "--method", "gradcam", "--out", tmp_path) == 0
    assert "gradcam:" in capsys.readouterr().err
    assert explain(folder, "--method", "gradcam", "--out", tmp_path, "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("target", "explained"),
    [
        ("predicted", ["cat", "church"]),
        ("3", [scenes.CLASSES[3]] * 2),
        ("rabbit", ["rabbit"] * 2),
        ("CAT", ["cat"] * 2),
    ],
)
def test_the_target_by_number_by_name_or_predicted(
    target: str, explained: list[str], folder: Path, tmp_path: Path
) -> None:
    assert explain(folder, "--method", "gradcam", "--target", target, "--out", tmp_path, "--quiet") == 0
    found = Explanation.load(tmp_path / "gradcam")
    assert [found.explained(i) for i in range(2)] == explained


def test_another_model_with_weights_from_a_file(folder: Path, tmp_path: Path) -> None:
    network = vitrail.load("timm/resnet10t", pretrained=False, device="cpu").model
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    arguments = ["--model", "resnet10t", "--checkpoint", tmp_path / "weights.pt", "--size", 64, 96]
    assert explain(folder / "cat.png", *arguments, "--out", tmp_path / "out", "--quiet") == 0
    found = Explanation.load(tmp_path / "out" / "gradcam")
    assert found.size == (64, 96)
    assert found.maps.shape == (1, 2, 3)
    assert found.model == "timm/resnet10t"


def test_batch_and_precision_reach_the_work(folder: Path, tmp_path: Path) -> None:
    base = [folder, "--method", "rise(masks=8)", "--quiet"]
    for name, more in {"plain": [], "single": ["--batch", 1], "rough": ["--precision", "bf16"]}.items():
        assert explain(*base, *more, "--out", tmp_path / name) == 0
    plain, single, rough = (Explanation.load(tmp_path / name / "rise-masks=8") for name in ("plain", "single", "rough"))
    assert torch.allclose(plain.logits, single.logits, atol=1e-4)
    assert not torch.allclose(plain.logits, rough.logits, atol=1e-4)


def test_a_long_list_is_cut_on_the_sheet_and_whole_in_the_maps(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    count = SHEET_ROWS + 3
    assert explain(*[folder / "cat.png"] * count, "--method", "random", "--out", tmp_path) == 0
    assert len(Explanation.load(tmp_path / "random")) == count
    assert f"(the first {SHEET_ROWS} of {count} pictures)" in capsys.readouterr().out


def test_writing_again_replaces_what_was_there(folder: Path, tmp_path: Path) -> None:
    for picture in ("cat.png", "church.png"):
        assert explain(folder / picture, "--method", "random", "--out", tmp_path, "--quiet") == 0
    assert Explanation.load(tmp_path / "random").images == ("church.png",)
    assert tree(tmp_path) == files_of("random")


# ------------------------------------------------------------------------------------------------- several targets


def test_several_targets_are_columns_of_their_own(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("file,class\nchurch.png,house\ncat.png,3\nother.png,cat\n")
    targets = ["predicted", "label", "rabbit", "3"]
    arguments = ["--target", *targets, "--labels", labels, "--method", "gradcam", "random", "--out", tmp_path / "out"]
    assert explain(folder, *arguments) == 0
    assert tree(tmp_path / "out") == files_of("gradcam", "random")
    wanted = {
        "predicted": ["cat", "church"],
        "label": [scenes.CLASSES[3], "house"],
        "rabbit": ["rabbit"] * 2,
        "3": [scenes.CLASSES[3]] * 2,
    }
    view = vitrail.load("demo", device="cpu")
    stored = Explanation.load(tmp_path / "out" / "gradcam")
    assert stored.targets == tuple(targets)
    for target, classes in wanted.items():
        found = stored.one(target)
        assert [found.explained(i) for i in range(2)] == classes
        alone = vitrail.explain(view, folder, "gradcam", classes)
        assert torch.allclose(found.maps, alone.maps, atol=1e-6), "as if it were asked for alone"
    with Image.open(tmp_path / "out" / "sheet.png") as sheet:
        assert sheet.width > 200 * (1 + 2 * len(targets))
    said = capsys.readouterr().out
    assert all(word in said for words in wanted.values() for word in words)


def test_the_lines_of_a_labels_file_are_targets_of_their_picture(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("file,class\na.png,cat\nb.png,3\na.png,dog\nphotos/b.png,cat\n")
    found = targets_of(["label"], labels, ["b.png", "a.png"])
    given = {name: [line.given for line in own if not isinstance(line, str)] for name, own in found.items()}
    assert given == {"label": [3, "cat"], "label 2": ["cat", "dog"]}
    assert targets_of(["predicted", "a dog"], None, ["b.png"]) == {"predicted": "predicted", "a dog": "a dog"}


@pytest.mark.parametrize(
    ("text", "asked", "problem"),
    [
        (None, ["label"], "--target label needs --labels FILE.csv"),
        ("file,class\na.png,cat\n", ["label"], "says nothing of 1 of the 2 pictures, b.png first"),
        ("file,class\na.png,cat\nb.png,cat\nb.png,dog\n", ["label"], "has 1 lines of a.png and 2 of b.png"),
        ("file,class\na.png,\nb.png,cat\n", ["label"], "line 2 has no file or no class"),
        ("picture,class\na.png,1\n", ["label"], "a first line with the columns file and class"),
        ("file,class\na.png,cat\nb.png,cat\n", ["cat"], "--labels is read for --target label"),
    ],
)
def test_targets_that_cannot_be_read_are_refused(
    text: str | None, asked: list[str], problem: str, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.csv"
    if text is not None:
        labels.write_text(text)
    with pytest.raises(vitrail.InputError, match=problem):
        targets_of(asked, None if text is None else labels, ["a.png", "b.png"])


def test_a_wrong_target_is_told_before_the_work(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert explain(folder, "--target", "cat", "rabit", "--method", "rise", "--out", tmp_path / "out") == 2
    assert "no class called 'rabit'; did you mean 'rabbit'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["v", "--target", "cat", "3", "--target=dog"], ["v", "--target", "cat", "3", "dog"]),
        (["v", "--target", "cat", "photos"], ["v", "photos", "--target", "cat"]),
        (["v", "--quiet", "--target", "cat", "photos"], ["v", "--quiet", "photos", "--target", "cat"]),
        (["v", "x", "--target", "cat", "photos"], ["v", "x", "--target", "cat", "photos"]),
        (["v", "--target", "cat", "photos/a.png"], ["v", "photos/a.png", "--target", "cat"]),
    ],
)
def test_pictures_may_stand_behind_the_targets(
    given: list[str], meant: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    monkeypatch.chdir(tmp_path)
    assert cli.merged(given) == meant


def test_styles_and_notes(folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    sheets = {}
    for style in ("auto", "signed", "heat"):
        assert explain(folder, "--method", "decompx", "--style", style, "--out", tmp_path / style, "--quiet") == 0
        with Image.open(tmp_path / style / "sheet.png") as sheet:
            sheets[style] = sheet.convert("RGB").crop((0, 0, sheet.width, sheet.height - 60)).tobytes()  # not seconds
    assert sheets["auto"] == sheets["signed"] != sheets["heat"]
    maps = RawAttention.maps

    def flat(self: RawAttention, view: object, batch: Batch) -> torch.Tensor:
        batch.note("made for a test", torch.tensor([True, False]))
        return maps(self, view, batch) * 0  # type: ignore[arg-type]

    monkeypatch.setattr(RawAttention, "maps", flat)
    assert explain(folder, "--method", "raw_attention", "--out", tmp_path / "noted") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "note: made for a test (cat.png)" in said
    assert "the map is empty (cat.png, church.png)" in said
    manifest = json.loads((tmp_path / "noted" / "raw_attention" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["notes"][0][0] == "made for a test"


# ------------------------------------------------------------------------------------------------- as users run it


def console(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)


def test_the_installed_command(folder: Path, tmp_path: Path) -> None:
    command = Path(sysconfig.get_path("scripts")) / "vitrail"
    done = console(command, "explain", folder / "cat.png", "--method", "gradcam", "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cat.png" in done.stdout
    assert tree(tmp_path / "out") == files_of("gradcam")


def test_python_m_vitrail(tmp_path: Path) -> None:
    done = console(sys.executable, "-m", "vitrail", "explain", tmp_path / "no.png", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no.png" in done.stderr
    assert not (tmp_path / "out").exists()


def test_help_does_not_wait_for_torch() -> None:
    done = console(sys.executable, "-X", "importtime", "-m", "vitrail", "explain", "--help")
    assert done.returncode == 0
    assert "--checkpoint" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tyro" in imported
    assert not {"torch", "numpy", "matplotlib"} & imported


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitrail.cli.explain.Explain.run", interrupted)
    assert explain("a.png") == 130
    assert capsys.readouterr().err == "vitrail: stopped\n"


def test_pictures_may_stand_behind_the_methods(folder: Path, tmp_path: Path) -> None:
    picture = str(sorted(folder.iterdir())[0])
    given = ["explain", "--method", "gradcam", picture, "--out", str(tmp_path)]
    assert cli.merged(given) == ["explain", picture, "--out", str(tmp_path), "--method", "gradcam"]


def two_animals(folder: Path) -> tuple[Path, Path]:
    """A picture with two objects, and a labels file with a line for each."""
    scene = vitrail.scenes.make(8, objects=2, classes=["whale", "shark"])
    scene.pil.save(folder / "two.png")
    (folder / "two.csv").write_text("file,class\ntwo.png,whale\ntwo.png,shark\n")
    return folder / "two.png", folder / "two.csv"


def test_the_lines_of_a_labels_file_say_what_is_present(tmp_path: Path) -> None:
    picture, labels = two_animals(tmp_path)
    asked = ["--target", "label", "--labels", labels, "--method", "var(ixg, classes=present)", "--quiet"]
    assert explain(picture, *asked, "--out", tmp_path / "out") == 0
    stored = Explanation.load(next((tmp_path / "out").glob("var*")))
    for target, explained, other in (("label", "whale", "shark"), ("label 2", "shark", "whale")):
        found = stored.one(target)
        expected = vitrail.explain("demo", picture, f"var(ixg, classes=({other},))", explained)
        assert torch.allclose(found.maps, expected.maps, atol=1e-6 * float(expected.maps.abs().max()))
