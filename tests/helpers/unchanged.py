"""What must be as it was, whatever was asked of a model: the model itself, and the state of the process."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Fuse(nn.Module):
    """Passes everything on so many times, and then raises."""

    def __init__(self, holds: float = math.inf) -> None:
        super().__init__()
        self.holds, self.passed = holds, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passed += 1
        if self.passed > self.holds:
            raise RuntimeError("the fuse blew")
        return x


HOOKS = [name for name in vars(nn.Module()) if name.endswith("_hooks")]


def _state(model: nn.Module) -> dict[str, Any]:
    """Everything about a model, and about the process, that looking at a model must leave alone."""
    return {
        "weights": {key: value.clone() for key, value in model.state_dict().items()},
        "training": {key: module.training for key, module in model.named_modules()},
        "requires_grad": {key: parameter.requires_grad for key, parameter in model.named_parameters()},
        "grad": {
            key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None
        },
        "hooks": {key: [list(vars(module)[hook]) for hook in HOOKS] for key, module in model.named_modules()},
        "forward": [key for key, module in model.named_modules() if "forward" in vars(module)],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1],  # noqa: NPY002  the global state is what is watched
        "python": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
    }


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Nothing about the model, nor about the process, is otherwise behind this than before."""
    before = _state(model)
    yield
    after = _state(model)
    changed = [key for key in before if not _same(before[key], after[key])]
    assert not changed, f"changed: {changed}"
