"""The front door's main verb: what it takes, what it gives, what it costs, and what it leaves behind."""

import copy
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitrail
from vitrail import scenes
from vitrail.events import Event
from vitrail.method import METHODS, Batch, Method
from vitrail.model import Need, View

PICTURES = [scenes.make(seed).pil for seed in range(5)]


@pytest.fixture(scope="module")
def demo() -> View:
    return vitrail.load("demo", device="cpu")


def small_cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, stride=2, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.Conv2d(48, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


@pytest.fixture
def cnn() -> View:
    return vitrail.load(small_cnn().eval(), size=(32, 32))


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


# ------------------------------------------------------------------------------------------------------ what it takes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for i, picture in enumerate(PICTURES[:2]):
        picture.save(folder / f"{i}.png")
    (folder / "notes.txt").write_text("not a picture")
    return folder


@pytest.fixture(scope="module")
def wanted(demo: View) -> vitrail.Explanation:
    return vitrail.explain(demo, PICTURES[:2], "gradcam")


def as_arrays() -> list[Any]:
    return [np.asarray(picture) for picture in PICTURES[:2]]


@pytest.mark.parametrize(
    "kind",
    [
        "paths",
        "strings",
        "folder",
        "nested",
        "array list",
        "array stack",
        "uint8 tensors",
        "float batch",
        "floats",
        "mix",
    ],
)
def test_every_kind_of_image_gives_the_same_maps(
    kind: str, demo: View, folder: Path, wanted: vitrail.Explanation
) -> None:
    paths = [folder / "0.png", folder / "1.png"]
    images: Any = {
        "paths": paths,
        "strings": [str(path) for path in paths],
        "folder": folder,
        "nested": [[paths[0]], (str(paths[1]),)],
        "array list": as_arrays(),
        "array stack": np.stack(as_arrays()),
        "uint8 tensors": torch.from_numpy(np.stack(as_arrays())).permute(0, 3, 1, 2),
        "float batch": demo.preprocess.batch(paths),
        "floats": list(demo.preprocess.batch(paths)),
        "mix": [PICTURES[0], demo.preprocess.tensor(paths[1])],
    }[kind]
    found = vitrail.explain(demo, images, "gradcam")
    assert close(found.maps, wanted.maps)
    assert torch.equal(found.classes, wanted.classes)
    assert found.size == (144, 144)
    if kind in ("paths", "strings", "folder", "nested"):
        assert found.images == ("0.png", "1.png")
    else:
        assert found.images == ("image 0", "image 1")


def test_one_image_needs_no_list(demo: View, folder: Path, wanted: vitrail.Explanation) -> None:
    tensor = demo.preprocess.tensor(PICTURES[0])
    for image in (PICTURES[0], str(folder / "0.png"), as_arrays()[0], tensor):
        found = vitrail.explain(demo, image, "gradcam")
        assert found.maps.shape == (1, 12, 12)
        assert close(found.maps[0], wanted.maps[0])


@pytest.mark.parametrize("batch", ["8", 2.0, True, (4,), 0, -1])
def test_a_batch_that_is_no_number_of_images(batch: Any, demo: View) -> None:
    said = "must be 1 or more" if type(batch) is int else "must be a whole number"
    with pytest.raises(vitrail.InputError, match=rf"batch {said}, but {re.escape(repr(batch))} was given"):
        vitrail.explain(demo, PICTURES[:1], "random", batch=batch)
    with pytest.raises(vitrail.InputError, match=rf"batch {said}"):
        vitrail.evaluate(demo, PICTURES[:1], "random", "sparseness", batch=batch)


def test_bytes_are_explained_and_judged_as_the_file(demo: View, tmp_path: Path) -> None:
    PICTURES[0].save(tmp_path / "cat.png")
    data = (tmp_path / "cat.png").read_bytes()
    found = vitrail.explain(demo, [data, io.BytesIO(data)], "gradcam", batch=np.int64(1))
    wanted = vitrail.explain(demo, tmp_path / "cat.png", "gradcam")
    assert torch.equal(found.maps, wanted.maps.expand(2, -1, -1))
    assert found.images == ("image 0", "image 1")
    scores = [vitrail.evaluate(demo, one, "gradcam", "sparseness") for one in (memoryview(data), tmp_path / "cat.png")]
    assert scores[0].row("sparseness", "gradcam").value == scores[1].row("sparseness", "gradcam").value


@pytest.mark.parametrize("images", [[], (), torch.zeros(0, 3, 144, 144)], ids=["list", "tuple", "batch"])
def test_no_image_is_refused(images: Any, demo: View) -> None:
    with pytest.raises(vitrail.InputError, match="no image was given"):
        vitrail.explain(demo, images)


def test_the_model_may_be_a_name_or_a_module(demo: View, wanted: vitrail.Explanation) -> None:
    by_name = vitrail.explain("demo", PICTURES[:2], "gradcam")
    assert close(by_name.maps, wanted.maps)
    assert by_name.fingerprint == wanted.fingerprint
    module = vitrail.load(scenes.classifier(), size=(144, 144))
    assert close(vitrail.explain(module, demo.preprocess.batch(PICTURES[:2]), "gradcam").maps, wanted.maps)


def test_what_is_explained(demo: View) -> None:
    predicted = vitrail.explain(demo, PICTURES[:3], "gradcam")
    assert torch.equal(predicted.classes, predicted.logits.argmax(1))
    names = ["cat", 3, "church"]
    found = vitrail.explain(demo, PICTURES[:3], "gradcam", names, batch=2)
    assert found.classes is not None
    assert found.classes.tolist() == [scenes.CLASSES.index("cat"), 3, scenes.CLASSES.index("church")]
    for i, name in enumerate(names):
        assert close(found.maps[i], vitrail.explain(demo, PICTURES[i], "gradcam", name).maps[0])
    function = vitrail.explain(demo, PICTURES[0], "gradcam", lambda logits: logits[:, 3] - logits[:, 4])
    assert function.classes is None
    assert function.explained(0) == "a function of the logits"
    with pytest.raises(vitrail.InputError, match="2 targets were given for 3 images"):
        vitrail.explain(demo, PICTURES[:3], "gradcam", [1, 2])


# ---------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    "method", ["gradcam", "decompx", "ig(steps=2)", "random(seed=3)", "smoothgrad(ixg, samples=2)"]
)
def test_a_map_is_the_same_alone_and_in_any_batch(method: str, demo: View) -> None:
    together = vitrail.explain(demo, PICTURES[:3], method, batch=16)
    singly = vitrail.explain(demo, PICTURES[:3], method, batch=1)
    assert close(together.maps, singly.maps)
    assert close(together.logits, singly.logits)
    assert close(vitrail.explain(demo, PICTURES[2], method).maps[0], together.maps[2])
    other_way = vitrail.explain(demo, PICTURES[:3][::-1], method, batch=2)
    assert close(other_way.maps.flip(0), together.maps)


def test_random_maps_depend_on_the_seed_and_the_picture(demo: View) -> None:
    maps = vitrail.explain(demo, PICTURES[:2], "random(seed=3)").maps
    assert torch.equal(maps, vitrail.explain(demo, PICTURES[:2], "random(seed=3)", batch=1).maps)
    assert not torch.equal(maps[0], maps[1])
    assert not torch.equal(maps, vitrail.explain(demo, PICTURES[:2], "random(seed=4)").maps)


@dataclass(frozen=True)
class Hungry(Method):
    """The mean colour of each cell, for as many images at a time as there is room; notes what it is asked."""

    id: ClassVar[str] = "hungry"
    needs: ClassVar[frozenset[Need]] = frozenset()
    asked: ClassVar[list[int]] = []
    finished: ClassVar[list[float]] = []

    room: int = 2

    def maps(self, view: View, batch: Batch) -> Tensor:
        self.asked.append(len(batch))
        if len(batch) > self.room:
            raise torch.OutOfMemoryError("no room")
        self.finished.extend(batch.images.double().sum((1, 2, 3)).tolist())
        return nn.functional.adaptive_avg_pool2d(batch.images, view.grid)[:, 0]


@pytest.fixture
def hungry() -> Iterator[type[Hungry]]:
    Hungry.asked.clear()
    Hungry.finished.clear()
    yield Hungry
    assert "hungry" not in METHODS


def test_when_memory_runs_out_fewer_images_are_taken(demo: View, hungry: type[Hungry]) -> None:
    images = torch.randn(9, 3, 144, 144, generator=torch.Generator().manual_seed(0))
    found = vitrail.explain(demo, images, hungry(), target=list(range(9)), batch=8)
    assert hungry.asked == [8, 4, 2, 2, 2, 2, 1], "halved, and not raised again"
    assert hungry.finished == pytest.approx(images.double().sum((1, 2, 3)).tolist()), "each image once, in order"
    assert close(found.maps, nn.functional.adaptive_avg_pool2d(images, (12, 12))[:, 0])
    assert found.classes is not None
    assert found.classes.tolist() == list(range(9))
    assert close(found.logits, vitrail.explain(demo, images, "random").logits)


def test_half_of_the_images_there_are_not_of_the_batch_asked_for(demo: View, hungry: type[Hungry]) -> None:
    vitrail.explain(demo, PICTURES[:4], hungry(), batch=64)
    assert hungry.asked == [4, 2, 2]


def test_one_image_that_does_not_fit_is_an_error_at_once(demo: View, hungry: type[Hungry]) -> None:
    with pytest.raises(vitrail.InputError, match="memory ran out on a single image"):
        vitrail.explain(demo, PICTURES[0], hungry(room=0))
    assert hungry.asked == [1]


# ------------------------------------------------------------------------------------------------------- what it says


def test_progress_is_silent_unless_asked_for(demo: View, capsys: pytest.CaptureFixture[str]) -> None:
    vitrail.explain(demo, PICTURES[:2], "gradcam")
    assert capsys.readouterr() == ("", "")
    vitrail.explain(demo, PICTURES[:2], "gradcam", progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "gradcam" in shown.err


def test_a_failure_wipes_the_progress_bar(demo: View, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(vitrail.InputError) as failure:
        vitrail.explain(demo, [PICTURES[0], "nowhere.png"], "gradcam", progress=True, batch=1)
    assert capsys.readouterr().err.endswith("\r"), "what is printed next starts at the left edge"
    assert "nowhere.png" in str(failure.value)


@pytest.mark.parametrize(
    ("method", "forwards", "backwards"),
    [
        ("gradcam", 1, 1),
        ("decompx", 1, 1),
        ("ig(steps=4)", 5, 4),
        ("rollout", 1, 0),
        ("genatt", 1, 1),
        ("random", 1, 0),
        ("smoothgrad(ixg, samples=3)", 4, 3),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_passes_an_image(method: str, forwards: int, backwards: int, batch: int, demo: View) -> None:
    found = vitrail.explain(demo, PICTURES[:2], method, batch=batch)
    assert (found.forwards, found.backwards) == (2 * forwards, 2 * backwards)
    assert found.seconds > 0


def test_auto_takes_decompx_on_transformers_and_gradcam_on_others(demo: View, cnn: View) -> None:
    assert vitrail.explain(demo, PICTURES[0]).method == "decompx"
    found = vitrail.explain(cnn, torch.randn(2, 3, 32, 32))
    assert found.method == "gradcam"
    assert found.maps.shape == (2, 8, 8)


def test_a_model_that_cannot_serve_a_method_is_told_which_ones_it_can(cnn: View) -> None:
    with pytest.raises(vitrail.InputError, match=r"rollout needs attention .* use .*gradcam"):
        vitrail.explain(cnn, torch.randn(1, 3, 32, 32), "rollout")


# --------------------------------------------------------------------------------------------------- what goes wrong


def test_weights_that_are_not_numbers(demo: View) -> None:
    broken = copy.deepcopy(demo.model)
    with torch.no_grad():
        broken.get_parameter("head.weight")[0, 0] = float("nan")
    view = vitrail.load(broken, size=demo.size)
    for method in ("gradcam", "random", "ig(steps=2)"):
        with pytest.raises(vitrail.InputError, match=r"not a number .* check its weights"):
            vitrail.explain(view, PICTURES[0], method)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("side", [31, 48])
def test_images_of_different_sizes(batch: int, side: int, cnn: View) -> None:
    images = [torch.randn(3, 32, 32), torch.randn(3, side, side)]  # 31 and 32 pixels give the same 8 x 8 maps
    with pytest.raises(vitrail.InputError, match=r"different sizes.*one size at a time"):
        vitrail.explain(cnn, images, batch=batch)
    assert vitrail.explain(cnn, images[1]).size == (side, side)


def test_pictures_of_different_sizes_are_brought_to_one(demo: View) -> None:
    pictures = [Image.new("RGB", (50, 30), "red"), Image.new("L", (300, 200), 99)]
    assert vitrail.explain(demo, pictures, "gradcam").maps.shape == (2, 12, 12)


def test_an_unknown_precision_is_refused(demo: View) -> None:
    with pytest.raises(vitrail.InputError, match="fp32, tf32, bf16, fp16, but 'half' was given"):
        vitrail.explain(demo, PICTURES[0], "gradcam", precision="half")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Failing(Method):
    """Fails, and notes in which precision."""

    id: ClassVar[str] = "failing"
    needs: ClassVar[frozenset[Need]] = frozenset()
    half: ClassVar[bool] = True
    seen: ClassVar[list[str]] = []

    def maps(self, view: View, batch: Batch) -> Tensor:
        self.seen.append(view.precision)
        raise ZeroDivisionError


def test_precision_comes_back_also_after_an_exception(demo: View) -> None:
    Failing.seen.clear()
    with pytest.raises(ZeroDivisionError):
        vitrail.explain(demo, PICTURES[0], Failing(), precision="bf16")
    assert Failing.seen == ["bf16"]
    assert demo.precision == "fp32"
    exact = vitrail.explain(demo, PICTURES[0], "rise(masks=8)")
    rough = vitrail.explain(demo, PICTURES[0], "rise(masks=8)", precision="bf16")
    assert demo.precision == "fp32"
    assert not torch.equal(rough.logits, exact.logits), "bf16 was really used"
    assert rough.maps.dtype == rough.logits.dtype == torch.float32
    assert torch.allclose(rough.logits, exact.logits, atol=0.3)


def test_a_method_that_gives_the_wrong_shape_is_caught(demo: View) -> None:
    class Crooked(Failing):
        def maps(self, view: View, batch: Batch) -> Tensor:
            return torch.zeros(len(batch), 3, 4)

    with pytest.raises(RuntimeError, match=r"\(1, 3, 4\), not \(1, 12, 12\)"):
        vitrail.explain(demo, PICTURES[0], Crooked())


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_in_training_stays_in_training_and_learns_nothing(fails: bool) -> None:
    model = small_cnn().train()
    model[3].eval()  # a part that its owner has frozen
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    view = vitrail.load(model, size=(32, 32))
    if fails:
        with pytest.raises(ZeroDivisionError):
            vitrail.explain(view, images, Failing())
    else:
        found = vitrail.explain(view, images, "gradcam")
        assert close(found.maps, vitrail.explain(view, images, "gradcam", batch=1).maps), "as in evaluation mode"
        calm = vitrail.load(copy.deepcopy(model).eval(), size=(32, 32))
        assert close(found.maps, vitrail.explain(calm, images, "gradcam").maps)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


# ------------------------------------------------------------------------------------------------- long runs


def test_the_bar_counts_passes_where_there_are_many(capsys: pytest.CaptureFixture[str]) -> None:
    pictures = [scenes.make(seed).pil for seed in (1, 2)]
    found = vitrail.explain("demo", pictures, "mda(cells=3, seed=None)", progress=True)
    said = capsys.readouterr().err
    assert "pass/s" in said
    assert f"{found.forwards}/{found.forwards}" in said.replace(".0", ""), "at the end the bar is full"
    vitrail.explain("demo", pictures, "saliency", progress=True)
    assert "image/s" in capsys.readouterr().err


def test_an_interrupt_in_the_middle_leaves_everything_as_it_was() -> None:
    view = vitrail.load("demo")
    picture = scenes.make(1).pil
    expected = vitrail.explain(view, picture, "mda(cells=3)")

    def stop(event: Event) -> None:
        if event.kind == "passes":
            raise KeyboardInterrupt

    view.model.train()
    try:
        with pytest.raises(KeyboardInterrupt):
            vitrail.explain(view, picture, "mda(cells=3)", observers=[stop])
        assert view.model.training
    finally:
        view.model.eval()
    assert torch.equal(vitrail.explain(view, picture, "mda(cells=3)").maps, expected.maps)
