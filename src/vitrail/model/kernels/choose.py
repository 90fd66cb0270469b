"""Blocks computed on a GPU by fewer, faster kernels than the model's own: `pairblock` in float32, else `halfblock`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vitrail.model.anatomy.form import BlockForm
from vitrail.model.kernels.half import HalfBlock
from vitrail.model.kernels.pairs import PairBlock
from vitrail.model.trace import Precision

Fused = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""A block, to be run under `at`: tokens, and what is still to be added to them -> likewise. So the next norm can do the
sum on its way."""

NEAR: dict[Precision, float] = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 5e-2}
"""The precisions there are kernels for; how far a block may lie from itself in float32, as a share of what it adds."""

ROUNDING = 1e-6
"""How far besides, as a share of the sum."""

_DTYPES: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


@cache
def can_fuse(device: torch.device) -> bool:
    """Whether a device has the tensor cores, and Triton is there for it."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def find_fused(form: BlockForm, precision: Precision, x: Tensor, own: Callable[[Tensor], Tensor]) -> Fused | None:
    """A block by our kernels; None where it does not give the block's own answer.

    Args:
        form: The block's form.
        precision: What to calculate in.
        x: (B, T, D) tokens to try it on.
        own: The block itself.
    """
    x = x.float()
    try:
        with torch.no_grad(), at(x.device):
            found: Any = PairBlock(form) if precision == "fp32" else HalfBlock(form, _DTYPES[precision])
            given, expected = settled(*found(x, None)), own(x)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a GPU too small for the kernels, weights beyond all range: the block runs itself
        return None
    added = expected - x[:, : expected.shape[1]]
    # What a faint branch adds is known only to the precision of the sum.
    allowed = NEAR[precision] * float(added.norm()) + ROUNDING * float(expected.norm())
    return found if float((given - expected).norm()) <= allowed else None


@contextmanager
def at(device: torch.device) -> Iterator[None]:
    """Where fused blocks run: on their own device, with every type as it is."""
    there = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with there, torch.autocast(device.type, enabled=False):
        yield


def settled(tokens: Tensor, branch: Tensor | None) -> Tensor:
    """Tokens with what was still to be added to them."""
    return tokens if branch is None else tokens + branch
