"""Weights from files of every kind, into models of every kind; what does not fit is named, and no code is run."""

import os

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from helpers.loaded import TINY, Small, same
from vitrail.errors import InputError
from vitrail.model import load


@pytest.fixture(scope="module")
def tuned() -> dict[str, Tensor]:
    """The weights of a model fine-tuned to 37 classes."""
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=37).state_dict()


def packed(weights: dict[str, Tensor], how: str) -> object:
    return {
        "plain": weights,
        "state_dict": {"state_dict": weights, "epoch": 3},
        "model": {"model": weights, "args": {"lr": 0.1}},
        "module.": {f"module.{key}": value for key, value in weights.items()},
        "both": {"state_dict": {f"module.{key}": value for key, value in weights.items()}},
    }[how]


@pytest.mark.parametrize("how", ["plain", "state_dict", "model", "module.", "both"])
def test_checkpoints_of_torch(tmp_path, tuned, how):
    torch.save(packed(tuned, how), tmp_path / "weights.pth")
    view = load(TINY, tmp_path / "weights.pth")
    assert same(view, tuned)
    assert view.num_classes == 37
    assert view.classes is None
    assert view.class_name(36) == "class 36"


@pytest.mark.parametrize("how", ["plain", "module."])
def test_checkpoints_of_safetensors(tmp_path, tuned, how):
    save_file(packed(tuned, how), tmp_path / "weights.safetensors")
    view = load(TINY, str(tmp_path / "weights.safetensors"))
    assert same(view, tuned)


def test_half_precision_checkpoint(tmp_path, tuned):
    save_file({key: value.half() for key, value in tuned.items()}, tmp_path / "half.safetensors")
    view = load(TINY, tmp_path / "half.safetensors")
    assert view.dtype == torch.float32
    assert same(view, {key: value.half().float() for key, value in tuned.items()})


def test_checkpoint_into_a_module(tmp_path, tuned):
    torch.save(tuned, tmp_path / "weights.pth")
    assert same(load(timm.create_model("test_vit", num_classes=37), tmp_path / "weights.pth"), tuned)


def test_class_names_of_a_fine_tuned_model(tmp_path, tuned):
    torch.save(tuned, tmp_path / "weights.pth")
    names = [f"breed {i}" for i in range(37)]
    assert load(TINY, tmp_path / "weights.pth", classes=names).class_name(5) == "breed 5"
    with pytest.raises(InputError, match="answers 37 classes, but 36 class names were given"):
        load(TINY, tmp_path / "weights.pth", classes=names[1:])


def test_counters_may_be_absent(tmp_path):
    weights = {key: value for key, value in Small().state_dict().items() if "num_batches" not in key}
    torch.save(weights, tmp_path / "weights.pth")
    view = load(Small(), tmp_path / "weights.pth", size=(32, 32))
    assert torch.equal(view.model.head.weight, weights["head.weight"])


def without(weights: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {k: v for k, v in weights.items() if k != key}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: without(w, "body.1.running_mean"), "it has no body.1.running_mean"),
        (
            lambda w: {**without(w, "head.weight"), "heads.weight": w["head.weight"]},
            "it has no head.weight; it has heads.weight",
        ),
        (
            lambda w: {**w, "body.0.weight": torch.zeros(8, 3, 2, 2)},
            r"body.0.weight is \(8, 3, 2, 2\) in the file but \(8, 3, 4, 4\) in the model",
        ),
        (lambda w: {**w, "tail.weight": torch.zeros(2)}, "the model has no tail.weight"),
    ],
    ids=["missing", "renamed", "shape", "unexpected"],
)
def test_checkpoints_that_do_not_fit(tmp_path, change, sentence):
    path, model = tmp_path / "weights.pth", Small()
    before = model.head.weight.clone()
    torch.save(change(Small().state_dict()), path)
    with pytest.raises(InputError, match=rf"the checkpoint .*weights\.pth does not fit the model: {sentence}"):
        load(model, path, size=(32, 32))
    assert torch.equal(model.head.weight, before)


class Trap:
    """A pickle that runs code when it is opened."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    torch.save({"state_dict": Trap(str(tmp_path / "sprung"))}, tmp_path / "trap.pth")
    with pytest.raises(InputError, match=r"trap\.pth cannot be read \(UnpicklingError\); give a safetensors file"):
        load(TINY, tmp_path / "trap.pth")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["text.pth", "text.safetensors"])
def test_a_file_that_is_no_checkpoint(tmp_path, name):
    (tmp_path / name).write_text("these are no weights")
    with pytest.raises(InputError, match=rf"the checkpoint .*{name} cannot be read"):
        load(TINY, tmp_path / name)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.zeros(3)])
def test_a_checkpoint_without_names(tmp_path, content):
    torch.save(content, tmp_path / "odd.pth")
    with pytest.raises(InputError, match=r"holds no weights by name; save model\.state_dict"):
        load(TINY, tmp_path / "odd.pth")


def test_a_checkpoint_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"the checkpoint .*nowhere\.pth does not exist"):
        load(TINY, tmp_path / "nowhere.pth")
