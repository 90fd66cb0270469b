"""Weights from files, without unpickling anything but tensors."""

import difflib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.model.pictures import oddity


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file, by name. Nothing is unpickled but tensors and plain containers."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"the checkpoint {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"the checkpoint {path} cannot be read ({type(error).__name__}); "
            "give a safetensors file, or one saved by torch.save(model.state_dict(), ...)"
        ) from error
    for key in ("state_dict", "model", "model_state", "module"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"the checkpoint {path} holds no weights by name; save model.state_dict() instead")
    nameless = next((key for key in state if not isinstance(key, str)), "")
    if nameless != "":
        raise InputError(
            f"the checkpoint {path} holds no weights by name: one is called {nameless!r}, which is no text; "
            "save model.state_dict() instead"
        )
    for key, value in state.items():
        odd = oddity(value)
        if odd is not None:
            raise InputError(f"the checkpoint {path} holds {key} as a tensor that is {odd[0]}; save {odd[1]} instead")
    return {key.removeprefix("module."): value for key, value in state.items()}


def load_weights(module: nn.Module, weights: dict[str, Tensor], path: str) -> None:
    """Copy a checkpoint into a module, or say which weight does not fit."""
    wanted = module.state_dict()
    for key, value in wanted.items():
        if key.endswith("num_batches_tracked"):  # a counter that plays no part in the answers
            continue
        if key not in weights:
            near = difflib.get_close_matches(key, weights, n=1, cutoff=0.8)
            hint = f"; it has {near[0]}" if near else ""
            raise InputError(f"the checkpoint {path} does not fit the model: it has no {key}{hint}")
        if weights[key].shape != value.shape:
            raise InputError(
                f"the checkpoint {path} does not fit the model: {key} is {tuple(weights[key].shape)} in the file "
                f"but {tuple(value.shape)} in the model"
            )
        if weights[key].is_floating_point() != value.is_floating_point():
            raise InputError(
                f"the checkpoint {path} does not fit the model: {key} is {weights[key].dtype} in the file "
                f"but {value.dtype} in the model"
            )
    extra = [key for key in weights if key not in wanted]
    if extra:
        raise InputError(f"the checkpoint {path} does not fit the model: the model has no {extra[0]}")
    module.load_state_dict(weights, strict=False)
