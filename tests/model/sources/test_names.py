"""Names, files and modules become views, and whatever does not fit is refused with a sentence."""

import io
import json
import sys
import time
from pathlib import Path

import open_clip
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from helpers.loaded import TINY, Small, same
from vitrail.data import dataset
from vitrail.errors import InputError
from vitrail.model import Need, load
from vitrail.model.inputs import IMAGENET_MEAN, IMAGENET_STD
from vitrail.model.sources import source as sources


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory) -> str:
    """The name of a very small CLIP architecture."""
    config = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    folder = tmp_path_factory.mktemp("clip")
    (folder / "vitrail-tiny.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    return "vitrail-tiny"


# ------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("timm/vit_tiny_patch16_244", r"timm has no model called 'vit_tiny_patch16_244'; did you mean vit_tiny_patch"),
        ("vit_tiny_patch16_244", r"timm has no model called .* did you mean vit_tiny_patch16_224 or"),
        ("zzzz", r"timm has no model called 'zzzz'; timm has no name like it"),
        ("", r"the model has no name"),
        ("vit_tiny_patch16_224.nonsense", r"timm has no weights called 'vit_tiny_patch16_224.nonsense'; see"),
        ("torchvison/resnet50", r"there is no source of models called 'torchvison'; did you mean torchvision\?"),
        ("nowhere/resnet50", r"timm has no model called 'nowhere/resnet50'"),
        ("demo/other", r"there is no demo model called 'other'; give demo or demo/shortcut"),
        ("torchvision/resnet5o", r"torchvision has no classifier called 'resnet5o'; did you mean resnet50 or"),
        ("torchvision/fcn_resnet50", r"torchvision has no classifier called 'fcn_resnet50'"),
        ("open_clip/ViT-B32", r"open_clip has no model called 'ViT-B32'; did you mean ViT-B-32 or"),
    ],
)
def test_unknown_names(name, sentence):
    with pytest.raises(InputError, match=sentence):
        load(name, pretrained=False, classes=["a cat"])


def test_what_is_no_model():
    with pytest.raises(InputError, match="must be a name, a torch module, a view or a function, but a int was given"):
        load(3)


def test_weights_that_cannot_be_fetched(monkeypatch, tiny_clip):
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host\nmore words")

    sentence = r"could not be fetched \(.+\); without a network, pass them as a file: checkpoint="
    start = time.perf_counter()
    with pytest.raises(InputError, match=f"the weights of timm/vit_tiny_patch16_224 {sentence}"):
        load("timm/vit_tiny_patch16_224")
    with pytest.raises(InputError, match=f"the weights of hf/nobody/nothing {sentence}"):
        load("hf/nobody/nothing")
    assert time.perf_counter() - start < 20
    with pytest.raises(InputError, match=f"the weights of timm/hf-hub:timm/nothing {sentence}"):
        load("hf-hub:timm/nothing")
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", unreachable)
    with pytest.raises(
        InputError, match=r"weights of torchvision/squeezenet1_1 could .* \(no route to host\); without"
    ):
        load("torchvision/squeezenet1_1")
    monkeypatch.setattr(open_clip, "create_model", unreachable)
    with pytest.raises(InputError, match=f"the weights of open_clip/{tiny_clip} {sentence}"):
        load(f"open_clip/{tiny_clip}", classes=["a cat"])


def test_timm_by_name():
    view = load("test_vit", pretrained=False)
    assert (view.name, view.size, view.grid, view.depth) == (TINY, (160, 160), (10, 10), 6)
    config = timm.get_pretrained_cfg("test_vit")
    assert (view.preprocess.mean, view.preprocess.std) == (config.mean, config.std)
    assert (view.preprocess.crop, view.preprocess.interpolation) == (config.crop_pct, config.interpolation)
    assert not view.model.training
    assert load(view) is view


@pytest.mark.parametrize(("name", "grid"), [("test_vit", (6, 8)), ("test_resnet", (3, 4))])
def test_timm_at_another_size(name, grid):
    view = load(name, pretrained=False, size=(96, 128))
    assert (view.size, view.grid) == ((96, 128), grid)


def test_normalisation_can_be_given():
    view = load("test_vit", pretrained=False, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])
    assert (view.preprocess.mean, view.preprocess.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_torchvision_by_name():
    view = load("torchvision/squeezenet1_1", pretrained=False)
    assert (view.name, view.size, view.num_classes) == ("torchvision/squeezenet1_1", (224, 224), 1000)
    assert (view.preprocess.mean, view.preprocess.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert (view.preprocess.crop, view.preprocess.interpolation) == (224 / 256, "bilinear")
    assert view.class_name(207) == "golden retriever"


# ------------------------------------------------------------------------------------------------------- a user's file

OWN = """
import dataclasses
import torch
import vitrail

@dataclasses.dataclass  # looks its own file up in sys.modules
class Facts:
    classes: int = 4

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, Facts().classes, 8, 8), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

def viewed():
    names = ["a", "b", "c", "d"]
    return vitrail.load(Net(), size=(32, 48), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), classes=names)

def broken():
    raise KeyError("no such layer")

def wanting(width):
    return Net()

def text():
    return "timm/resnet50"

number = 3
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine.py").write_text(OWN)
    return tmp_path / "folder/mine.py"


def test_a_model_of_a_users_file(own, monkeypatch):
    before = set(sys.modules)
    view = load(f"{own}:viewed")
    assert (view.name, view.size, view.classes) == ("mine.py:viewed", (32, 48), ("a", "b", "c", "d"))
    assert (view.preprocess.mean, view.preprocess.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert not view.model.training
    assert "mine" not in sys.modules
    assert [name for name in set(sys.modules) - before if "mine" in name] == [type(view.model).__module__]
    assert load(f"{own}:viewed", size=(64, 64), classes=list("wxyz")).classes == ("w", "x", "y", "z")
    monkeypatch.chdir(own.parent)
    plain = load("mine.py:Net", pretrained=False)
    assert (plain.name, plain.size, plain.classes) == ("mine.py:Net", (224, 224), None)


def test_a_checkpoint_for_a_users_file(own, tmp_path):
    weights = {key: torch.full_like(value, 0.5) for key, value in load(f"{own}:Net").model.state_dict().items()}
    save_file(weights, tmp_path / "weights.safetensors")
    view = load(f"{own}:viewed", tmp_path / "weights.safetensors", device="cpu")
    assert same(view, weights)
    assert view.device.type == "cpu"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("yours.py:net", r"there is no file .*yours.py; a model of your own is given as FILE.py:FUNCTION"),
        ("mine.py:net", r"mine.py has no function called 'net'; a model of your own"),
        ("mine.py:number", r"mine.py has no function called 'number'"),
        ("mine.py:", r"mine.py is given without a function; a model of your own is given as FILE.py:FUNCTION"),
        ("mine.py:broken", r"broken\(\) in .*mine.py raised KeyError: 'no such layer'"),
        ("mine.py:wanting", r"wanting\(\) in .*mine.py raised TypeError: .*'width'"),
        ("mine.py:text", r"text\(\) in .*mine.py must return a torch module .* but it returned a str"),
        ("odd.py:net", r"odd.py cannot be imported: it raised SyntaxError"),
        ("bare.py:net", r"bare.py cannot be imported: it raised ValueError: without a word"),
    ],
)
def test_users_files_that_cannot_be(own, name, sentence):
    (own.parent / "odd.py").write_text("def net(:")
    (own.parent / "bare.py").write_text("raise ValueError")
    with pytest.raises(InputError, match=sentence):
        load(str(own.parent / name))
    assert not any("odd_py" in name or "bare_py" in name for name in sys.modules)


def test_the_resnet_of_keras(assets):
    file = Path(__file__).parents[3] / "benchmarks/models.py"
    view = load(f"{file}:resnet50_keras", assets / "weights/resnet50_keras_v1.safetensors", device="cpu")
    assert (view.name, view.size, view.grid) == ("models.py:resnet50_keras", (224, 224), (7, 7))
    assert view.preprocess.crop == 224 / 256
    items = dataset("assets:imagenet_val").limit(8)
    with torch.no_grad():
        found = view.logits(view.preprocess.batch([item.picture() for item in items])).argmax(1)
    assert (found == torch.tensor([item.label for item in items])).float().mean() > 0.5


def test_names_can_be_loaded_in_inference_mode():
    with torch.inference_mode():
        view = load("test_vit", pretrained=False)
        assert view.logits(torch.zeros(1, 3, 160, 160)).shape == (1, 1000)
    assert all(not p.is_inference() for p in view.model.parameters())


# ------------------------------------------------------------------------------------------------------- Hugging Face


@pytest.fixture
def folder(tmp_path):
    from transformers import ViTConfig, ViTForImageClassification

    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
    names = {0: "cat", 1: "dog", 2: "boat"}
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(image_size=64, id2label=names, **shape))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_hugging_face_models_without_names(folder):
    from transformers import ViTForImageClassification

    model = ViTForImageClassification.from_pretrained(folder)
    model.config.id2label = None
    assert load(model.eval()).classes is None


def test_hugging_face_folder(folder):
    from transformers import ViTImageProcessor

    how = ViTImageProcessor(size={"height": 64, "width": 64}, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
    how.save_pretrained(folder)
    view = load(f"hf/{folder}")
    assert view.classes == ("cat", "dog", "boat")
    assert (view.size, view.grid, view.depth) == ((64, 64), (4, 4), 2)
    assert view.offers == set(Need) - {Need.RELU}
    assert (view.preprocess.mean, view.preprocess.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (view.preprocess.crop, view.preprocess.interpolation) == (1.0, "bilinear")


def test_hugging_face_folder_with_a_crop(folder):
    from transformers import BitImageProcessor

    how = BitImageProcessor(size={"shortest_edge": 72}, crop_size={"height": 64, "width": 64}, resample=3)
    how.save_pretrained(folder)
    view = load(f"hf/{folder}")
    assert view.size == (64, 64)
    assert (view.preprocess.crop, view.preprocess.interpolation) == (64 / 72, "bicubic")


def test_hugging_face_folder_without_a_processor(folder):
    view = load(f"hf/{folder}")
    assert (view.size, view.preprocess.mean) == ((64, 64), (0.5, 0.5, 0.5))
    assert view.classes == ("cat", "dog", "boat")


# ------------------------------------------------------------------------------------------------------- open_clip


def test_open_clip_chooses_between_prompts(tiny_clip):
    prompts = ["a cat", "a dog", "a boat"]
    view = load(f"open_clip/{tiny_clip}", classes=prompts, pretrained=False)
    assert view.classes == tuple(prompts)
    assert (view.size, view.grid, view.depth, view.offers) == ((64, 64), (4, 4), 2, set(Need) - {Need.RELU})
    clip, tokenizer = view.model._text
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        seen, read, scale = clip(image, tokenizer(prompts))[:3]
        assert torch.allclose(view.logits(image), scale * seen @ read.T, atol=1e-4)


@pytest.mark.parametrize("classes", [None, []])
def test_open_clip_without_prompts(tiny_clip, classes):
    with pytest.raises(InputError, match=r"chooses between texts: say which, for example classes=\["):
        load(f"open_clip/{tiny_clip}", classes=classes, pretrained=False)


def test_open_clip_checkpoint(tmp_path, tiny_clip):
    """The file has both towers; the prompts must be read with its weights, too."""
    torch.manual_seed(5)
    clip = open_clip.create_model(tiny_clip, pretrained=None).eval()
    save_file(clip.state_dict(), tmp_path / "clip.safetensors")
    view = load(f"open_clip/{tiny_clip}", tmp_path / "clip.safetensors", classes=["a cat", "a dog"])
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        seen, read, scale = clip(image, open_clip.get_tokenizer(tiny_clip)(["a cat", "a dog"]))[:3]
        assert torch.allclose(view.logits(image), scale * seen @ read.T, atol=1e-4)
    save_file({"logit_scale": torch.zeros(())}, tmp_path / "part.safetensors")
    with pytest.raises(InputError, match=r"part\.safetensors does not fit the model: it has no"):
        load(f"open_clip/{tiny_clip}", tmp_path / "part.safetensors", classes=["a cat", "a dog"])


# ------------------------------------------------------------------------------------------------------- modules


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        torch.compile,
        lambda model: nn.DataParallel(torch.compile(model)),
        lambda model: torch.compile(nn.DataParallel(model)),
    ],
    ids=["DataParallel", "compile", "compile in DataParallel", "DataParallel in compile"],
)
def test_wrapped_modules_are_unwrapped(wrap):
    model = Small()
    view = load(wrap(model), size=(32, 32))
    assert view.model is model
    assert view.name == "Small"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchscript_is_refused():
    model = Small().eval()
    for scripted in (torch.jit.script(model), torch.jit.trace(model, torch.zeros(1, 3, 32, 32))):
        with pytest.raises(InputError, match="TorchScript model hides its parts; give the Python module"):
            load(scripted, size=(32, 32))
    stored = io.BytesIO()
    torch.jit.save(torch.jit.script(model), stored)
    stored.seek(0)
    with pytest.raises(InputError, match="TorchScript"):
        load(torch.jit.load(stored), size=(32, 32))


@pytest.mark.parametrize("device", ["gpu", "cuda:97", "nonsense"])
def test_a_device_that_cannot_be_used(device):
    with pytest.raises(InputError, match=f"the device '{device}' cannot be used here"):
        load(Small(), size=(32, 32), device=device)


def test_imagenet_names_go_with_a_thousand_classes():
    assert load(Small(1000), size=(32, 32)).class_name(0) == "tench, Tinca tinca"
    assert load(Small(999), size=(32, 32)).classes is None
    assert load(torchvision.models.VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=1000)).size == (32, 32)


def test_names_that_were_guessed_wrong_are_left_out():
    class Projected(Small):
        def __init__(self) -> None:
            super().__init__(5)
            self.extra = nn.Linear(5, 1000)  # registered last, but not what the model answers

    assert load(Projected(), size=(32, 32)).classes is None


def test_class_names_of_another_number():
    with pytest.raises(InputError, match="Small answers 4 classes, but 3 class names were given"):
        load(Small(), size=(32, 32), classes=["a", "b", "c"])


def test_load_leaves_the_users_module_in_its_mode():
    model = Small().train()
    load(model, size=(32, 32))
    assert all(part.training for part in model.modules())
    assert all(p.requires_grad for p in model.parameters())


def test_missing_extras_say_what_to_install():
    with pytest.raises(InputError, match=r"this model needs no_such_module: pip install 'vitrail\[clip\]'"):
        sources.extra("no_such_module", "clip")
