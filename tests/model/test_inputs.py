"""Pictures become the tensor that torchvision's transforms would make, and come back as what the model saw."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from vitrail.errors import InputError
from vitrail.model import Preprocess, pictures, sources_of

SHAPES = {"wide": (400, 251), "tall": (251, 401), "square": (300, 300), "exact": (256, 300), "small": (40, 31)}


def photo(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def tiny(value: int = 9) -> Image.Image:
    return Image.new("RGB", (4, 4), (value, value, value))


# ------------------------------------------------------------------------------------------------------- to a tensor


@pytest.mark.parametrize(
    ("size", "resize", "interpolation"),
    [
        (224, 256, "bicubic"),
        (224, 232, "bilinear"),
        (224, 224, "bicubic"),
        (192, 225, "nearest"),  # 192 / (192 / 225) falls just short of 225
        (64, 72, "lanczos"),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_square_inputs_are_those_of_torchvision(shape, size, resize, interpolation):
    picture = photo(*SHAPES[shape])
    preprocess = Preprocess((size, size), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), size / resize, interpolation)
    expected = transforms.Compose(
        [
            transforms.Resize(resize, InterpolationMode(interpolation)),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
        ]
    )
    assert torch.equal(preprocess.tensor(picture), expected(picture))


def test_a_share_that_leaves_a_broken_pixel_is_rounded_down_as_timm_does():
    expected = transforms.Compose([transforms.Resize(248, InterpolationMode.BICUBIC), transforms.CenterCrop(224)])
    picture = photo(300, 260)
    assert np.array_equal(Preprocess(crop=0.9).picture(picture), expected(picture))  # 224 / 0.9 = 248.9


@pytest.mark.parametrize("shape", [*SHAPES.values(), (1, 1), (1, 30), (30, 1)])
@pytest.mark.parametrize("size", [(96, 160), (160, 96), (32, 33)])
def test_non_square_inputs_are_covered_and_centred(size, shape):
    """A picture that says where each pixel came from: the crop must be centred, undistorted and as large as can be."""
    width, height = shape
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    picture = Image.fromarray(np.stack([across, down, 0 * down], -1).round().astype(np.uint8))
    tensor = Preprocess(size, (0, 0, 0), (1, 1, 1), 1.0, "bilinear").tensor(picture)
    assert tensor.shape == (3, *size)
    if min(shape) < 200:
        return
    left, right = tensor[0, :, 0].mean(), tensor[0, :, -1].mean()
    top, bottom = tensor[1, 0].mean(), tensor[1, -1].mean()
    assert abs(left + right - 1) < 0.03
    assert abs(top + bottom - 1) < 0.03
    scale = max(size[0] / height, size[1] / width)
    assert abs((right - left) - size[1] / (scale * width)) < 0.04
    assert abs((bottom - top) - size[0] / (scale * height)) < 0.04


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 7)])
def test_tiny_pictures(shape):
    tensor = Preprocess().tensor(Image.new("RGB", shape, (255, 0, 255)))
    assert tensor.shape == (3, 224, 224)
    expected = (torch.tensor([1.0, 0, 1]) - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(tensor, expected.view(3, 1, 1).expand(3, 224, 224))


@pytest.mark.parametrize("shape", SHAPES)
def test_restore_is_the_way_back(shape):
    preprocess, picture = Preprocess((96, 80)), photo(*SHAPES[shape])
    seen = np.asarray(preprocess.picture(picture), dtype=int)
    restored = preprocess.restore(preprocess.tensor(picture))
    assert restored.size == (80, 96)
    assert np.abs(np.asarray(restored, dtype=int) - seen).max() <= 1
    assert np.array_equal(preprocess.picture(preprocess.tensor(picture)), restored)


def test_restore_stays_within_colours():
    assert np.asarray(Preprocess().restore(torch.full((3, 4, 4), 90.0))).min() == 255
    assert np.asarray(Preprocess().restore(torch.full((3, 4, 4), -90.0))).max() == 0


def test_a_model_input_is_taken_as_it_is():
    given = torch.randn(3, 30, 50)
    assert Preprocess().tensor(given) is given
    assert Preprocess().batch([given, given + 1]).shape == (2, 3, 30, 50)


# ------------------------------------------------------------------------------------------------------- refusals


def test_inputs_of_different_sizes():
    with pytest.raises(InputError, match=r"different sizes, \[\(30, 40\), \(224, 224\)\]"):
        Preprocess().batch([torch.zeros(3, 30, 40), photo(50, 60)])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_inputs_that_are_not_finite(value):
    tensor = torch.zeros(3, 8, 8)
    tensor[1, 2, 3] = value
    for ask in (Preprocess().tensor, Preprocess().picture, Preprocess().restore):
        with pytest.raises(InputError, match="must be finite"):
            ask(tensor)


@pytest.mark.parametrize("shape", [(1, 8, 8), (4, 8, 8), (8, 8, 3), (8, 8), (1, 3, 8, 8)])
def test_inputs_of_wrong_channels(shape):
    with pytest.raises(InputError, match=r"must be a \(3, height, width\) tensor, but .* was given"):
        Preprocess().tensor(torch.zeros(shape))


# ------------------------------------------------------------------------------------------------------- sources_of


def test_one_source_of_every_kind(tmp_path):
    path = tmp_path / "a.png"
    tiny().save(path)
    for source in (path, str(path), tiny(), np.zeros((4, 4, 3), np.uint8), torch.zeros(3, 4, 4), np.zeros((4, 4))):
        found = sources_of(source)
        assert len(found) == 1
        assert found[0] is source


def test_many_sources(tmp_path):
    for name in ("b.png", "a.jpg"):
        tiny().save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    assert [path.name for path in sources_of(tmp_path)] == ["a.jpg", "b.png"]
    assert [path.name for path in sources_of(str(tmp_path))] == ["a.jpg", "b.png"]
    assert len(sources_of([tmp_path, tmp_path / "b.png"])) == 3
    assert [tuple(x.shape) for x in sources_of(torch.zeros(5, 3, 4, 4))] == [(3, 4, 4)] * 5
    assert [x.shape for x in sources_of(np.zeros((5, 4, 4, 3), np.uint8))] == [(4, 4, 3)] * 5
    assert len(sources_of((torch.zeros(2, 3, 4, 4), torch.zeros(3, 4, 4), tiny()))) == 4
    assert len(sources_of(tiny(value) for value in range(3))) == 3
    assert len(sources_of([[tiny()], (tiny(), [tiny()])])) == 3


def test_files_are_not_opened_yet():
    assert sources_of(["missing.png"]) == ["missing.png"]


@pytest.mark.parametrize("nothing", [[], (), [[]], torch.zeros(0, 3, 4, 4), np.zeros((0, 4, 4, 3), np.uint8)])
def test_no_image(nothing):
    with pytest.raises(InputError, match="no image was given"):
        sources_of(nothing)


@pytest.mark.parametrize("thing", [3, None, 2.5, [None], [[[3]]]])
def test_what_is_no_image(thing):
    with pytest.raises(InputError, match="A picture must be"):
        sources_of(thing)


def test_bytes_are_one_source_each():
    content = io.BytesIO()
    tiny().save(content, "PNG")
    data = content.getvalue()
    for source in (data, bytearray(data), memoryview(data), io.BytesIO(data)):
        assert sources_of(source) == [source]
        assert sources_of([source, [source]]) == [source, source]
        assert np.array_equal(Preprocess().tensor(source), Preprocess().tensor(tiny()))


def nested(levels: int) -> object:
    inner: object = tiny()
    for _ in range(levels):
        inner = [inner]
    return inner


def test_lists_in_lists():
    assert len(sources_of(nested(20))) == 1
    endless: list[object] = []
    endless += [endless, endless]
    for images in (nested(50), nested(2_000), nested(20_000), endless, (one for one in [nested(2_000)])):
        with pytest.raises(InputError, match="give them in one list"):
            sources_of(images)


ODD = {
    "sparse": (lambda x: x.to_sparse(), "to_dense"),
    "compressed": (lambda x: x[0].to_sparse_csr(), "to_dense"),
    "quantised": (lambda x: torch.quantize_per_tensor(x.float(), 1.0, 0, torch.quint8), "dequantize"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x]), "a list of tensors"),
    "meta": (lambda x: x.to("meta"), "one on the cpu"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("kind", ODD)
def test_tensors_whose_numbers_lie_elsewhere(kind, dtype):
    make, remedy = ODD[kind]
    odd = make(torch.ones(3, 4, 4, dtype=dtype))
    for ask in (sources_of, Preprocess().tensor, Preprocess().picture, pictures.read):
        if kind == "nested" and ask is not sources_of:
            odd = odd.unbind()[0].to_sparse()  # of a batch, the first
            remedy = "to_dense"
        with pytest.raises(InputError, match=f"must be a plain tensor, .*{remedy}"):
            ask(odd)
    with pytest.raises(InputError, match=r"must be a plain tensor"):
        sources_of([tiny(), [odd]])
    if kind == "sparse":
        with pytest.raises(InputError, match="must be a plain tensor"):
            sources_of(torch.ones(2, 3, 4, 4, dtype=dtype).to_sparse())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_inputs_of_types_that_nothing_calculates_in(dtype):
    with pytest.raises(InputError, match=r"must be of float32, float64, float16 or bfloat16, but is torch\.float8"):
        Preprocess().tensor(torch.zeros(3, 4, 4).to(dtype))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"size": (144,)}, r"size must be two whole numbers, height and width, but \(144,\) was given"),
        ({"size": 144}, "size must be two whole numbers"),
        ({"size": "144"}, "size must be two whole numbers"),
        ({"size": (144.0, 144.0)}, "size must be two whole numbers"),
        ({"size": (True, 3)}, "size must be two whole numbers"),
        ({"size": (3, 3, 3)}, "size must be two whole numbers"),
        ({"size": (0, 3)}, "size must be 1 pixel or more"),
        ({"mean": (0.5, 0.5)}, r"mean must be three numbers, one a channel, but \(0.5, 0.5\) was given"),
        ({"mean": 0.5}, "mean must be three numbers"),
        ({"mean": "abc"}, "mean must be three numbers"),
        ({"mean": (0.1, float("nan"), 0.1)}, "mean must be three numbers"),
        ({"mean": (0.1, 10**400, 0.1)}, "mean must be three numbers"),
        ({"std": (0.5, 0.5, 0)}, "std must be three numbers above 0"),
        ({"std": None}, "std must be three numbers above 0"),
        ({"crop": 0}, "crop must be a number above 0"),
        ({"crop": "all"}, "crop must be a number above 0"),
        ({"interpolation": "cubic"}, "interpolation must be nearest .*bicubic.* but 'cubic' was given"),
    ],
)
def test_settings_that_are_none(wrong, said):
    with pytest.raises(InputError, match=said):
        Preprocess(**wrong)


def test_settings_may_come_from_numpy():
    given = Preprocess(
        tuple(np.array([30, 40])), np.array([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.2, 0.3]), np.float32(1)
    )
    expected = Preprocess((30, 40), (0.1, 0.2, 0.3), (0.1, 0.2, 0.3), 1.0)
    assert torch.allclose(given.tensor(photo(50, 60)), expected.tensor(photo(50, 60)))


def test_squash_takes_the_whole_picture():
    picture = Image.fromarray(np.arange(20 * 60 * 3, dtype=np.uint8).reshape(20, 60, 3))
    squashed = Preprocess((30, 30), interpolation="bilinear", squash=True).picture(picture)
    assert squashed.size == (30, 30)
    assert np.array_equal(squashed, picture.resize((30, 30), Image.Resampling.BILINEAR))
