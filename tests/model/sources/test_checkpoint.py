"""Checkpoints that torch reads and no model can take: a sentence that names the weight, and a model as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.model.sources.checkpoint import load_weights, read_checkpoint

State = dict[Any, Tensor]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2))


def weight(change: Callable[[Tensor], Tensor]) -> Callable[[State], State]:
    return lambda state: {**state, "0.weight": change(state["0.weight"])}


ODD: dict[str, tuple[Callable[[State], Any], str]] = {
    "integer keys": (lambda state: dict(enumerate(state.values())), "one is called 0, which is no text"),
    "a key is None": (lambda state: {**state, None: state["0.bias"]}, "one is called None, which is no text"),
    "a key is a tuple": (lambda state: {("a", 1): state["0.bias"]}, r"one is called \('a', 1\), which is no text"),
    "integer keys inside": (lambda state: {"model": {1: state["0.bias"]}}, "one is called 1, which is no text"),
    "sparse": (weight(Tensor.to_sparse), r"holds 0\.weight as a tensor that is sparse; save tensor\.to_dense"),
    "compressed": (weight(Tensor.to_sparse_csr), r"holds 0\.weight as a tensor that is sparse"),
    "quantised": (
        weight(lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)),
        r"holds 0\.weight as a tensor that is quantised; save tensor\.dequantize",
    ),
    "meta": (weight(lambda w: w.to("meta")), r"holds 0\.weight as a tensor that is on the device meta"),
    "complex": (weight(lambda w: w + 1j), r"0\.weight is torch\.complex64 in the file but torch\.float32 in the model"),
    "whole numbers": (weight(lambda w: w.to(torch.int8)), r"0\.weight is torch\.int8 in the file but torch\.float32"),
    "truths": (weight(lambda w: w > 0), r"0\.weight is torch\.bool in the file but torch\.float32"),
    "empty": (lambda state: {}, r"it has no 0\.weight"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
def test_odd_weights_are_refused_by_name(name: str, tmp_path: Path) -> None:
    change, sentence = ODD[name]
    torch.save(change(model().state_dict()), tmp_path / "odd.pth")
    given = model()
    with pytest.raises(InputError, match=rf"the checkpoint .*odd\.pth .*{sentence}"):
        load_weights(given, read_checkpoint(tmp_path / "odd.pth"), str(tmp_path / "odd.pth"))
    assert all(torch.equal(one, other) for one, other in zip(given.parameters(), model().parameters()))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_taken(kind: torch.dtype, tmp_path: Path) -> None:
    torch.save({key: value.to(kind) for key, value in model().state_dict().items()}, tmp_path / "weights.pth")
    given = model()
    load_weights(given, read_checkpoint(tmp_path / "weights.pth"), "weights.pth")
    expected = model()[0].weight.to(kind).float()
    assert torch.equal(given[0].weight, expected)
