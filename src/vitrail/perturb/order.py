"""Orders: which cell comes first. Ties are broken by place, so that an order never depends on a sorting routine."""

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
