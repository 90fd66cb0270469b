"""Orders: which cell comes first. Ties are broken by place, so that an order never depends on a sorting routine."""

import math

import torch
from torch import Tensor


def order_of(values: Tensor) -> Tensor:
    """(..., N) values -> (..., N) indices, the largest first; of equal ones the smaller index.

    Example:
        >>> order_of(torch.tensor([1.0, 3.0, 3.0, 2.0])).tolist()
        [1, 2, 3, 0]
    """
    return values.argsort(dim=-1, descending=True, stable=True)


def ranks_of(order: Tensor) -> Tensor:
    """(..., N) an order -> (..., N) the place of every index in it, 0 for the first.

    Example:
        >>> ranks_of(torch.tensor([1, 2, 3, 0])).tolist()
        [3, 0, 1, 2]
    """
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def counted(share: float, of: int) -> int:
    """How many of so many cells a share is, rounded down; 99 of 196 are 99, although 99 / 196 * 196 is 98.99....

    Example:
        >>> int(99 / 196 * 196), counted(99 / 196, 196)
        (98, 99)
    """
    return math.floor(share * of * (1 + 1e-12) + 1e-12)
