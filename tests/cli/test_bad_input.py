"""What users get wrong: exit code 2, one line with the remedy, nothing written. What only looks wrong: handled."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from helpers.bad_calls import CALLS
from helpers.foreign import foreign
from vitrail import cli, scenes
from vitrail.explanation import Explanation

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "cat.png"
    scenes.make(3, classes=["cat"]).pil.save(path)
    return path


def refused(capsys: Capture, out: Path, *arguments: object) -> str:
    """Run ``vitrail explain``, check that it refuses as it should, and return the sentence."""
    command = ["explain", *map(str, arguments), "--out", str(out)]
    if "--device" not in command:
        command += ["--device", "cpu"]
    assert cli.main(command) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert "\r" not in said.err
    assert said.err.startswith("vitrail: ")
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1, said.err
    assert not foreign(said.err), "a keyword of Python"
    assert not out.exists() or out.is_file(), "nothing is written"
    return said.err.removeprefix("vitrail: ").strip()


# ----------------------------------------------------------------------------------------------------------- pictures


def _truncated(path: Path) -> None:
    scenes.make(1).pil.save(path, quality=95)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing.jpg": (lambda path: None, "check the name"),
    "truncated.jpg": (_truncated, "copy it again"),
    "empty.png": (lambda path: path.touch(), "download or copy the picture again"),
    "text.jpg": (lambda path: path.write_text("I am a letter, not a picture.\n"), "give a JPEG, PNG"),
    "script.eps": (lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n"), "give a JPEG, PNG"),
    "folder": (lambda path: path.mkdir(), "give a folder that does"),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("company", ["alone", "behind a good one"])
def test_pictures_that_cannot_be_read(name: str, company: str, good: Path, tmp_path: Path, capsys: Capture) -> None:
    make, remedy = BAD_FILES[name]
    make(tmp_path / name)
    images = [tmp_path / name] if company == "alone" else [good, tmp_path / name]
    said = refused(capsys, tmp_path / "out", *images, "--method", "random", "--batch", 1)
    assert str(tmp_path / name) in said
    assert remedy in said


@pytest.mark.parametrize("verb", ["explain", "evaluate"])
@pytest.mark.parametrize("kind", ["text.jpg", "truncated.jpg"])
def test_broken_pictures_are_refused_before_a_model_is_loaded(
    verb: str, kind: str, good: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.model.load", lambda *_, **__: pytest.fail("the model is loaded"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(5):
        BAD_FILES[kind][0](folder / f"{i}.jpg")
    assert cli.main([verb, str(folder), "--method", "random"]) == 2
    said = capsys.readouterr().err
    assert str(folder / "0.jpg") in said
    if kind == "text.jpg":
        assert said.endswith("5 of 5 pictures cannot be opened.\n")
        assert cli.main([verb, str(good), str(folder), "--method", "random"]) == 2
        assert "5 of 6 pictures cannot be opened" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["text.jpg", "truncated.jpg"])
def test_runs_on_broken_pictures_alone_are_refused_before_a_model_is_loaded(
    kind: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("vitrail.bench.runner.load", "vitrail.bench.recommend.choose.load"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("the model is loaded"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(3):
        BAD_FILES[kind][0](folder / f"{i}.jpg")
    bench = ["bench", "scenes", "--part", "object", "--methods", "random", "--metrics", "sparseness"]
    several = [str(path) for path in sorted(folder.iterdir())]
    for words in (
        [*bench, "--data", f"folder:{folder}", "--out", str(tmp_path / "run")],
        ["recommend", "--model", "demo", "--methods", "ixg", "--images", str(folder)],
        ["recommend", "--model", "demo", "--methods", "ixg", "--images", *several],
    ):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert re.search(r"none of 3 pictures of .* can be read; the first, .*0\.jpg: ", said)
    assert not (tmp_path / "run").exists()


def test_a_folder_without_pictures(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    assert "holds no pictures" in refused(capsys, tmp_path / "out", tmp_path / "notes")


def test_no_images_at_all(tmp_path: Path, capsys: Capture) -> None:
    assert "give picture files or a folder" in refused(capsys, tmp_path / "out")


# ------------------------------------------------------------------------------------------------- words and numbers


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--target", "5000"], "class 5000 does not exist: demo has 14 classes, 0 to 13"),
        (["--target", "-1"], "0 to 13"),
        (["--target", "rabit"], "did you mean 'rabbit'"),
        (["--method", ""], "--method was given an empty name"),
        (["--model", ""], "the --model has no name"),
        (["--target", "submarine boat"], "no class called 'submarine boat'"),
        (["--method", "gradcm"], "did you mean gradcam"),
        (["--method", "gradcam", "--method", "rollot"], "did you mean rollout"),
        (["--method", "ig(step=3)"], "did you mean steps"),
        (["--method", "ig(steps=x)"], "must be a whole number"),
        (["--method", "ig("], "write it like"),
        (["--method", "ig(steps=0)"], "steps to be 1 to 2,000"),
        (["--method", "rollout(start=99)"], "0 to 5"),
        (["--model", "vit_tinny_patch16_224"], "did you mean vit_tiny_patch16_224"),
        (["--model", "timm/resnet5O"], "did you mean resnet5"),
        (["--model", "torchvision/resnet5O"], "did you mean resnet5"),
        (["--model", "zzzzzzzzzz"], "timm has no name like it"),
        (["--classes", "cat", "dog"], "14 classes, but 2 class names were given"),
        (["--batch", "0"], "must be 1 or more"),
        (["--size", "100", "100"], "doesn't match model (144)"),
        (["--device", "abacus"], "the device 'abacus' cannot be used here"),
        (["--device", "cuda:99"], "the device 'cuda:99' cannot be used here"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_and_numbers(
    arguments: list[str], remedy: str, good: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert remedy in refused(capsys, tmp_path / "out", good, *arguments)


def test_a_mistyped_method_is_told_before_anything_else_is_done(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["--method", "gradcm", "--model", "nonsense", "--checkpoint", tmp_path / "none.pt"]
    assert "gradcm" in refused(capsys, tmp_path / "out", tmp_path / "none.png", *arguments)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_an_out_folder_that_is_a_file(below: str, good: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("in the way")
    said = refused(capsys, tmp_path / "file" / below, good, "--method", "random")
    assert "choose another folder" in said
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize(
    "arguments",
    [["explain", "a.png", "--unknown"], ["explian"], [], ["explain", "a.png", "--precision", "fp8"], ["demo", "--out"]],
    ids=" ".join,
)
def test_flags_that_do_not_exist(
    arguments: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "vitrail" in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------- checkpoints


def _weights() -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in scenes.classifier().state_dict().items()}


def _saved(weights: dict[str, torch.Tensor], path: Path) -> None:
    save_file(weights, path) if path.suffix == ".safetensors" else torch.save(weights, path)


def _wrong_shape(path: Path) -> None:
    _saved(_weights() | {"head.weight": torch.zeros(3, 128), "head.bias": torch.zeros(3)}, path)


def _not_a_number(path: Path) -> None:
    weights = _weights()
    weights["blocks.2.mlp.fc1.weight"][0, 0] = float("nan")
    _saved(weights, path)


def _one_missing(path: Path) -> None:
    weights = _weights()
    del weights["norm.bias"]
    _saved(weights, path)


BAD_WEIGHTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "does not exist"),
    "empty": (lambda path: path.touch(), "cannot be read"),
    "garbage": (lambda path: path.write_bytes(b"\x80\x02garbage" * 99), "give a safetensors file"),
    "other shape": (_wrong_shape, "head.weight is (3, 128) in the file but (14, 128) in the model"),
    "one missing": (_one_missing, "it has no norm.bias"),
    "one too many": (lambda path: _saved(_weights() | {"more": torch.zeros(1)}, path), "the model has no more"),
    "not a number": (_not_a_number, "check its weights"),
}


@pytest.mark.parametrize("kind", BAD_WEIGHTS)
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_checkpoints_that_cannot_be_used(kind: str, ending: str, good: Path, tmp_path: Path, capsys: Capture) -> None:
    make, remedy = BAD_WEIGHTS[kind]
    path = tmp_path / f"weights.{ending}"
    make(path)
    said = refused(capsys, tmp_path / "out", good, "--checkpoint", path, "--method", "gradcam")
    assert remedy in said
    assert kind == "not a number" or str(path) in said


class Payload:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> object:
        return Path.touch, (self.trace,)


def test_a_checkpoint_is_not_run(good: Path, tmp_path: Path, capsys: Capture) -> None:
    torch.save({"head.weight": Payload(tmp_path / "trace")}, tmp_path / "weights.pt")
    said = refused(capsys, tmp_path / "out", good, "--checkpoint", tmp_path / "weights.pt")
    assert "give a safetensors file" in said
    assert not (tmp_path / "trace").exists()


# ------------------------------------------------------------------------------------------------------- odd but fine


def _gif(path: Path) -> None:
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "green", "blue")]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100)


def _sixteen_bit(path: Path) -> None:
    grey = np.asarray(scenes.make(3).pil.convert("L")).astype(np.uint16) * 257
    Image.fromarray(grey).save(path)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "sixteen.png": _sixteen_bit,
    "cmyk.jpg": lambda path: scenes.make(3).pil.convert("CMYK").save(path),
    "grey.png": lambda path: scenes.make(3).pil.convert("L").save(path),
    "bilevel.png": lambda path: scenes.make(3).pil.convert("1").save(path),
    "palette.png": lambda path: scenes.make(3).pil.convert("P").save(path),
    "alpha.png": lambda path: scenes.make(3).pil.convert("RGBA").save(path),
    "dot.png": lambda path: Image.new("RGB", (1, 1), "orange").save(path),
    "thin.png": lambda path: Image.new("RGB", (400, 2), "orange").save(path),
    "moving.gif": _gif,
    "no ending": lambda path: scenes.make(3).pil.save(path, "PNG"),
    "ünï codé 鳥.png": lambda path: scenes.make(3).pil.save(path),
}


def test_odd_pictures_are_handled(tmp_path: Path, capsys: Capture) -> None:
    for name, make in ODD_FILES.items():
        make(tmp_path / name)
    paths = [str(tmp_path / name) for name in ODD_FILES]
    out = tmp_path / "out"
    assert cli.main(["explain", *paths, "--method", "gradcam", "--out", str(out), "--device", "cpu"]) == 0
    assert capsys.readouterr().err == ""
    found = Explanation.load(out / "gradcam")
    assert found.images == tuple(ODD_FILES)
    assert torch.isfinite(found.maps).all()
    said = dict(zip(ODD_FILES, found.logits))
    plain = said["no ending"]
    for same in ("alpha.png", "ünï codé 鳥.png"):
        assert torch.allclose(said[same], plain, atol=1e-4), same
    assert torch.allclose(said["sixteen.png"], said["grey.png"], atol=1e-4), "as bright as with 8 bits"
    assert not torch.allclose(said["moving.gif"], said["dot.png"], atol=1e-2)


@pytest.mark.parametrize("name", ["sixteen.png", "cmyk.jpg", "grey.png", "dot.png", "moving.gif", "alpha.png"])
def test_an_odd_picture_alone_is_handled(name: str, tmp_path: Path) -> None:
    ODD_FILES[name](tmp_path / name)
    out = tmp_path / "out"
    arguments = [str(tmp_path / name), "--method", "random", "--out", str(out), "--device", "cpu", "--quiet"]
    assert cli.main(["explain", *arguments]) == 0
    assert (out / "sheet.png").is_file()


# --------------------------------------------------------------------------------------------------------- every verb


@pytest.fixture
def place(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty folder with a folder of pictures, an empty one, and files that are none of what is wanted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VITRAIL_ASSETS", raising=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "good").mkdir()
    for name in ("good/a.png", "good/b.png", "picture.png"):
        shutil.copy(good, tmp_path / name)
    (tmp_path / "file").write_text("in the way\n")
    (tmp_path / "broken.yaml").write_text("title: [\n")
    return tmp_path


@pytest.mark.parametrize(
    ("verb", "words", "remedy"),
    [(verb, words, remedy) for verb, calls in CALLS.items() for words, remedy in calls],
    ids=lambda value: value or "nothing",
)
def test_what_any_verb_refuses(verb: str, words: str, remedy: str, place: Path, capsys: Capture) -> None:
    before = sorted(place.rglob("*"))
    assert cli.main([verb, *words.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("vitrail: ")
    assert said.err.count("\n") == 1, said.err
    assert remedy in said.err
    assert not foreign(said.err), "a keyword of Python"
    assert sorted(place.rglob("*")) == before, "something is left behind"


def test_every_verb_is_tried(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    usage = re.search(r"\{([\w,\s]+)\}", capsys.readouterr().out)
    assert usage is not None
    assert set(re.findall(r"\w+", usage.group(1))) == set(CALLS)
