"""A patch embedding as one product, for which a GPU has better kernels than for the convolution it is written as."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

FEWEST = 4
"""Pixels along a side of a patch, at least: smaller kernels belong to other models."""


class Patchwise(TorchFunctionMode):
    """Convolutions over patches that do not overlap are computed as linear layers inside the ``with`` block."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = _embedded(*args, **(kwargs or {})) if func is F.conv2d else None
        return func(*args, **(kwargs or {})) if found is None else found


def _embedded(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """What the convolution gives, or None where patches overlap, leave something out or reach beyond the picture."""
    rows, columns = weight.shape[2:]
    plain = groups == 1 and _pair(dilation) == (1, 1) and padding in (0, "valid", (0, 0), [0, 0])
    if not plain or _pair(stride) != (rows, columns) or min(rows, columns) < FEWEST or input.ndim != 4:
        return None
    images, channels, height, width = input.shape
    if height % rows or width % columns:
        return None
    device = input.device.type
    half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
    grid = height // rows, width // columns
    patches = torch.empty(images, *grid, channels, rows, columns, dtype=half, device=input.device)
    # One copy brings a patch's pixels together, and into the type that is multiplied.
    patches.copy_(input.view(images, channels, grid[0], rows, grid[1], columns).permute(0, 2, 4, 1, 3, 5))
    return F.linear(patches.flatten(3), weight.flatten(1), bias).permute(0, 3, 1, 2)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
