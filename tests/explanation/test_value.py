"""An explanation is a value: drawn at any size, written whole or not at all, read back bit for bit."""

import io
import json
import os
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail import scenes
from vitrail.explanation import Explanation, sheet_of
from vitrail.explanation.draw import footnotes, marked, numbered

PICTURES = [scenes.make(seed).pil for seed in range(3)]


def made(count: int = 3, **changes: Any) -> Explanation:
    generator = torch.Generator().manual_seed(0)
    explanation = Explanation(
        maps=torch.randn(count, 4, 6, generator=generator),
        logits=torch.randn(count, 5, generator=generator),
        classes=torch.tensor([4, 0, 2, 1, 3] * 10)[:count],
        method="ig(steps=3)",
        config={"id": "ig", "steps": 3, "gradient": "true"},
        model="somewhere/some_model",
        fingerprint="0123abcd",
        size=(40, 60),
        images=tuple(f"picture {i}.png" for i in range(count)),
        class_names=("cat", "dog", "fox, red fox", "Bär", "鳥"),
        seconds=0.75,
        forwards=12,
        backwards=9,
    )
    own = {"signed": None, "enlargement": None} if "method" in changes else {}  # as another method means it
    return replace(explanation, **(own | changes))


@pytest.fixture(scope="module")
def real() -> Explanation:
    return vitrail.explain("demo", PICTURES, "smoothgrad(gradcam, samples=2)", target=["cat", 3, "church"])


def same(a: Explanation, b: Explanation) -> bool:
    for field in fields(Explanation):
        one, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, torch.Tensor):
            if one.dtype != other.dtype or not torch.equal(one, other):
                return False
        elif one != other or type(one) is not type(other):
            return False
    return True


# ------------------------------------------------------------------------------------------------------------ reading


def test_upsample_sizes_and_modes() -> None:
    explanation = made()
    assert explanation.upsample().shape == (3, 40, 60)
    assert explanation.upsample((7, 5)).shape == (3, 7, 5)
    nearest = explanation.upsample(mode="nearest")
    assert torch.equal(nearest, explanation.maps.repeat_interleave(10, 1).repeat_interleave(10, 2))
    assert explanation.upsample((4, 6)).allclose(explanation.maps), "its own size changes nothing"
    flat = replace(explanation, maps=torch.full((3, 4, 6), 2.5))
    drawn = {mode: explanation.upsample(mode=mode) for mode in ("bilinear", "bicubic", "nearest")}
    for mode in drawn:
        assert flat.upsample(mode=mode).allclose(torch.tensor(2.5)), mode
    assert drawn["bilinear"].max() <= explanation.maps.max()
    assert not drawn["bilinear"].allclose(drawn["bicubic"])
    # Halfway between the centres of two cells lies their mean.
    middle = explanation.upsample((8, 12))[:, 0, 1:3].mean(1)
    assert middle.allclose(explanation.maps[:, 0, :2].mean(1), atol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "", None])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    with pytest.raises(vitrail.InputError, match="'bilinear', 'bicubic' or 'nearest'"):
        made().upsample(mode=mode)


def test_overlay_has_the_size_of_the_picture() -> None:
    explanation = made()
    for size in ((60, 40), (90, 60), (7, 300)):
        drawn = explanation.overlay(Image.new("L", size, 128), 1)
        assert (drawn.size, drawn.mode) == (size, "RGB")
    picture = PICTURES[0]
    overlays = [explanation.overlay(picture, i).tobytes() for i in range(3)]
    assert len({*overlays, picture.convert("RGB").tobytes()}) == 4, "each map draws its own picture"
    assert explanation.overlay(np.asarray(picture), 0).tobytes() == overlays[0]
    assert explanation.overlay(picture, 0, alpha=0.1).tobytes() != overlays[0], "options reach the drawing"


def test_predictions_are_probabilities_best_first() -> None:
    explanation = made()
    every = explanation.predictions(1, top=99)
    assert len(every) == 5
    assert sum(share for _, share in every) == pytest.approx(1, abs=1e-6)
    assert [share for _, share in every] == sorted((share for _, share in every), reverse=True)
    assert every[0][0] == explanation.class_name(int(explanation.logits[1].argmax()))
    assert explanation.predictions(1) == every[:3]
    shares = explanation.logits[1].softmax(0)
    assert dict(every) == pytest.approx({explanation.class_name(k): float(shares[k]) for k in range(5)})


def test_names_of_classes() -> None:
    explanation = made()
    assert [explanation.explained(i) for i in range(3)] == ["鳥", "cat", "fox, red fox"]
    assert made(class_names=None).explained(0) == "class 4"
    assert made(classes=None).explained(0) == "a function of the logits"
    twice = made(class_names=("crane", "dog", "crane", "sofa", "hen"))
    assert [twice.explained(i) for i in range(3)] == ["hen", "crane (0)", "crane (2)"]


def test_the_first_images_alone() -> None:
    explanation = made()
    part = explanation.first(2)
    assert len(part) == 2
    assert torch.equal(part.maps, explanation.maps[:2])
    assert torch.equal(part.logits, explanation.logits[:2])
    assert part.classes is not None
    assert part.classes.tolist() == [4, 0]
    assert part.images == ("picture 0.png", "picture 1.png")
    assert (part.seconds, part.forwards, part.backwards) == (pytest.approx(0.5), 8, 6), "their share of the cost"
    assert len(explanation) == 3
    assert same(explanation.first(99), explanation)
    assert made(classes=None).first(1).classes is None


def test_it_says_what_it_is() -> None:
    words = repr(made())
    assert "ig(steps=3) on somewhere/some_model" in words
    assert "3 maps of 4 x 6" in words
    assert "12 forward and 9 backward" in words


@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_notebook_shows_a_png(count: int) -> None:
    data = made(count)._repr_png_()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()
        assert picture.width > 100


# ------------------------------------------------------------------------------------------------------------- saving


def test_saved_and_loaded_is_the_same_bit_for_bit(tmp_path: Path, real: Explanation) -> None:
    odd = made()
    odd.maps[0, 0, 0], odd.maps[0, 0, 1], odd.maps[0, 0, 2] = -0.0, 1e-45, torch.finfo(torch.float32).max
    for i, explanation in enumerate((odd, real, made(classes=None, class_names=None))):
        folder = explanation.save(tmp_path / "new" / str(i))
        assert folder == tmp_path / "new" / str(i)
        assert {file.name for file in folder.iterdir()} == {"maps.npz", "overlay.png", "manifest.json"}
        loaded = Explanation.load(str(folder))
        assert same(loaded, explanation)
        assert loaded.maps.numpy().tobytes() == explanation.maps.numpy().tobytes()
        assert same(Explanation.load(loaded.save(tmp_path / "again" / str(i))), explanation)


def test_the_configuration_survives_json() -> None:
    method = vitrail.method.parse("smoothgrad(ig(steps=3), noise=0.25)")
    assert json.loads(json.dumps(method.config)) == method.config
    assert method.config["base"] == {"id": "ig", "steps": 3, "gradient": "true"}


def test_the_manifest_is_json_for_anyone(tmp_path: Path, real: Explanation) -> None:
    text = (real.save(tmp_path) / "manifest.json").read_text(encoding="utf-8")
    facts = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert facts["method"] == "smoothgrad(gradcam, samples=2)"
    assert facts["config"]["base"]["id"] == "gradcam"
    assert facts["explained"] == ["cat", scenes.CLASSES[3], "church"]
    assert facts["size"] == [144, 144]
    assert {"vitrail", "torch", "timm", "torchvision", "python"} <= facts["versions"].keys()
    assert facts["forwards"] == 9


def test_pictures_are_drawn_under_the_maps_where_given(tmp_path: Path, real: Explanation) -> None:
    alone, over = real.save(tmp_path / "alone"), real.save(tmp_path / "over", PICTURES)
    assert (alone / "overlay.png").read_bytes() != (over / "overlay.png").read_bytes()
    assert (alone / "maps.npz").read_bytes() == (over / "maps.npz").read_bytes()


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace_file = os.replace

    def noted(source: str, target: Path) -> None:
        assert Path(source).parent == target.parent, "moved within one folder, hence in one step"
        order.append(target.name)
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", noted)
    made().save(tmp_path)
    assert order == ["maps.npz", "overlay.png", "manifest.json"]


@pytest.mark.parametrize("victim", ["maps.npz", "overlay.png", "manifest.json"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError("no")])
@pytest.mark.parametrize("older", [False, True])
def test_failing_in_the_middle_leaves_no_manifest_and_no_scraps(
    victim: str, failure: BaseException, older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if older:
        made(2).save(tmp_path)
    replace_file = os.replace

    def failing(source: str, target: Path) -> None:
        if target.name == victim:
            raise failure
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", failing)
    expected = vitrail.InputError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected):
        made().save(tmp_path)
    left = {file.name for file in tmp_path.iterdir()}
    assert "manifest.json" not in left, "no manifest vouches for half of the files, an older one neither"
    assert left <= {"maps.npz", "overlay.png"}, "no temporary files"
    with pytest.raises(vitrail.InputError):
        Explanation.load(tmp_path)


def test_what_cannot_be_drawn_or_described_is_not_written_at_all(tmp_path: Path) -> None:
    with pytest.raises(vitrail.InputError):
        made().save(tmp_path / "a", PICTURES[:1])
    with pytest.raises(TypeError):
        made(config={"id": object()}).save(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(vitrail.InputError, match=r"cannot be written .*; choose another folder"):
            made().save(folder)
    assert (tmp_path / "file").read_text() == "in the way"
    (tmp_path / "out" / "maps.npz").mkdir(parents=True)
    with pytest.raises(vitrail.InputError, match=r"maps\.npz cannot be written"):
        made().save(tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["maps.npz"]


# ------------------------------------------------------------------------------------------------------------ loading


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


MAPS, LOGITS = np.zeros((3, 4, 6), np.float32), np.zeros((3, 5), np.float32)

DAMAGE: dict[str, tuple[str, bytes | None]] = {
    "manifest missing": ("manifest.json", None),
    "manifest empty": ("manifest.json", b""),
    "manifest cut short": ("manifest.json", b'{"schema": 1, "meth'),
    "manifest in another encoding": ("manifest.json", b"\xff\xfe{"),
    "manifest a list": ("manifest.json", b"[1, 2]"),
    "manifest a number": ("manifest.json", b"1"),
    "manifest without facts": ("manifest.json", b'{"schema": 1}'),
    "manifest without schema": ("manifest.json", b'{"method": "ig"}'),
    "maps missing": ("maps.npz", None),
    "maps empty": ("maps.npz", b""),
    "maps garbage": ("maps.npz", b"these are no maps"),
    "maps a broken archive": ("maps.npz", b"PK\x03\x04" + bytes(60)),
    "maps cut short": ("maps.npz", _npz(maps=MAPS, logits=LOGITS)[:-200]),
    "maps a single array": ("maps.npz", _npy(MAPS)),
    "maps without logits": ("maps.npz", _npz(maps=MAPS)),
    "maps of words": ("maps.npz", _npz(maps=np.array(["a", "b", "c"]), logits=LOGITS)),
    "maps of other images": ("maps.npz", _npz(maps=MAPS[:2], logits=LOGITS[:2])),
    "maps of the wrong shape": ("maps.npz", _npz(maps=MAPS[0], logits=LOGITS)),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_no_explanation_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    name, content = DAMAGE[kind]
    file = made().save(tmp_path) / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(vitrail.InputError, match="holds no explanation that can be read"):
        Explanation.load(tmp_path)


def test_another_format_is_told_by_its_number(tmp_path: Path) -> None:
    manifest = made().save(tmp_path) / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"schema": 2', '"schema": 99'), encoding="utf-8")
    with pytest.raises(vitrail.InputError, match="was written in format 99, but this version of vitrail reads 1 and 2"):
        Explanation.load(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(vitrail.InputError, match="holds no explanation"):
        Explanation.load(tmp_path / "nowhere")


class Payload:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("form", ["object array", "bare pickle"])
def test_nothing_is_unpickled(form: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    made().save(tmp_path)
    payload = np.array([Payload(trace)], dtype=object)
    content = _npz(maps=payload, logits=LOGITS) if form == "object array" else pickle.dumps(Payload(trace))
    (tmp_path / "maps.npz").write_bytes(content)
    with pytest.raises(vitrail.InputError):
        Explanation.load(tmp_path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Payload(trace)))
    assert trace.exists(), "the trap works"


# ------------------------------------------------------------------------------------------------------------- sheets


def test_a_sheet_needs_the_same_images_and_a_picture_for_each(real: Explanation) -> None:
    other = replace(real, images=("a", "b", "c"))
    for explanations, pictures in (
        ([real, other], PICTURES),
        ([real, real.first(2)], PICTURES),
        ([real], PICTURES[:2]),
    ):
        with pytest.raises(vitrail.InputError, match="explanations of the same images, and one picture for each"):
            sheet_of(explanations, pictures)
    with pytest.raises(vitrail.InputError, match="at least one explanation"):
        sheet_of([], PICTURES)


def test_a_sheet_grows_with_methods_and_images(real: Explanation) -> None:
    one, two = sheet_of([real], PICTURES), sheet_of([real, real], PICTURES, title="Twice")
    fewer = sheet_of([real.first(1)], PICTURES[:1])
    assert one.mode == "RGB"
    assert two.width > one.width
    assert one.height > fewer.height


def test_four_explanations_of_four_classes_are_told_apart() -> None:
    found = [vitrail.explain("demo", PICTURES[:2], "gradcam", target=name) for name in ("cat", "shark", "house", 3)]
    page = sheet_of(found, PICTURES[:2])
    alone = sheet_of(found[:1], PICTURES[:2])
    assert page.height > alone.height, "a line below each cell says what it explains"
    for k in range(4):
        other = [*found[:k], replace(found[k], classes=torch.tensor([7, 7])), *found[k + 1 :]]
        assert sheet_of(other, PICTURES[:2]).tobytes() != page.tobytes()
    named = sheet_of(found, PICTURES[:2], names=["a", "b", "c", "d"])
    assert named.tobytes() != page.tobytes()
    with pytest.raises(vitrail.InputError, match="3 names were given for 4 explanations"):
        sheet_of(found, PICTURES[:2], names=["a", "b", "c"])


def test_two_models_on_a_sheet_do_not_share_the_first_ones_predictions(real: Explanation) -> None:
    other = replace(real, model="another", logits=real.logits.flip(1))
    page, alone = sheet_of([real, other], PICTURES), sheet_of([real, real], PICTURES)
    assert page.height != alone.height, "each cell says its own class and probability"
    changed = replace(other, logits=other.logits * 0.1)
    assert sheet_of([real, changed], PICTURES).tobytes() != page.tobytes()


def test_the_probability_of_the_class_explained() -> None:
    explanation = made()
    assert explanation.probability(0) == pytest.approx(float(explanation.logits[0].softmax(0)[4]))
    assert made(classes=None).probability(0) is None
    one = made(logits=torch.full((3, 1), 0.3), classes=torch.zeros(3, dtype=torch.long), class_names=("likeness",))
    assert one.probability(0) is None, "a single answer is no probability"
    assert one.predictions(0) == []
    assert sheet_of([one], PICTURES).height > sheet_of([made()], PICTURES).height, "so each cell says its own"


@pytest.mark.parametrize("draw", ["picture", "sheet", "overlay"])
def test_styles_change_the_colours_and_auto_is_the_methods_own(draw: str) -> None:
    explanation = made()

    def drawn(style: Any, one: Explanation = explanation) -> bytes:
        if draw == "picture":
            return one.picture(style).tobytes()
        if draw == "sheet":
            return sheet_of([one], PICTURES, style=style).tobytes()
        return one.overlay(PICTURES[0], 0, style).tobytes()

    assert drawn("auto") == drawn("signed") != drawn("heat")
    unsigned = made(method="gradcam")
    assert drawn("auto", unsigned) == drawn("heat", unsigned)
    with pytest.raises(vitrail.InputError, match="a style must be"):
        drawn("hot")


def test_overlays_are_enlarged_as_the_method_enlarges_its_maps() -> None:
    sparse = torch.zeros(1, 4, 4)
    sparse[0, 1, 2] = 1
    grey = Image.new("RGB", (80, 80), (90, 90, 90))
    parts = {"maps": sparse, "logits": torch.zeros(1, 5), "images": ("a",), "notes": ((),)}
    for method in ("mda", "gradcam"):
        one = made(1, **parts, method=method)
        drawn = np.asarray(one.overlay(grey)).astype(int)
        strength = one.upsample((80, 80))[0].numpy()
        plain = drawn[0, 0]
        changed = (drawn != plain).any(-1)
        assert (changed <= (strength > 0)).all()
        assert (changed[strength > 0.05]).all()
        assert (len(np.unique(drawn.reshape(-1, 3), axis=0)) == 2) == (method == "mda"), "whole cells, or a slope"
        sheets = [sheet_of([made(1, **parts, method=name)], [grey]).tobytes() for name in ("mda", "gradcam")]
        assert sheets[0] != sheets[1]


def test_notes_stand_in_the_picture_the_sheet_the_repr_and_the_manifest(tmp_path: Path) -> None:
    plain, note = made(), "few masks leave many patches tied"
    noted = made(notes=((), (note,), (note, "the map is empty")))
    assert "(2 with notes)" in repr(noted)
    assert "notes" not in repr(plain)
    assert noted.picture().height > plain.picture().height
    assert noted.picture().tobytes() != made(notes=((note,), (note,), (note, "the map is empty"))).picture().tobytes()
    assert sheet_of([noted], PICTURES).height > sheet_of([plain], PICTURES).height
    assert Explanation.load(noted.save(tmp_path)).notes == noted.notes
    assert numbered(footnotes([noted, plain])) == [f"Note 1: {note}.", "Note 2: the map is empty."]
    assert [marked(notes, footnotes([noted])) for notes in noted.notes] == ["", "note 1", "notes 1, 2"]


def test_empty_maps_are_said_in_the_repr_and_never_drawn_in_colour() -> None:
    flat = torch.full((3, 4, 6), 0.25)
    for method in ("ig(steps=3)", "gradcam"):
        one = made(maps=flat, method=method)
        assert "(3 empty)" in repr(one)
        for picture in (one.picture(), one.overlay(Image.new("RGB", (120, 80), (90, 90, 90)))):
            assert (np.ptp(np.asarray(picture).astype(int), axis=-1) == 0).all()
