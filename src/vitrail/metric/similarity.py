"""How alike two rows of numbers are."""

import torch
from torch import Tensor


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """(B, N), (B, N) -> (B,): 0 where one of them is all zeros."""
    one, other = one.double(), other.double()
    norms = one.norm(dim=1) * other.norm(dim=1)
    return torch.where(norms > 0, (one * other).sum(1) / norms.clamp_min(torch.finfo(norms.dtype).tiny), 0)


def pearson(one: Tensor, other: Tensor) -> Tensor:
    """(B, N), (B, N) -> (B,): 0 where one of them is constant."""
    one, other = one.double(), other.double()
    # What rounding leaves of a constant row must not count as variation.
    flat = (one.amax(1) == one.amin(1)) | (other.amax(1) == other.amin(1))
    found = cosine(one - one.mean(1, keepdim=True), other - other.mean(1, keepdim=True))
    return torch.where(flat, 0, found)


def spearman(one: Tensor, other: Tensor) -> Tensor:
    """(B, N), (B, N) -> (B,): Pearson's correlation of the ranks; equal values share their mean rank."""
    return pearson(ranked(one), ranked(other))


def ranked(values: Tensor) -> Tensor:
    """(B, N) -> (B, N): the ranks, from 1; equal values get their mean rank, and rows with NaN are NaN."""
    values = values.detach().double()
    order = _order(values)
    ordered = values.gather(1, order)
    first = torch.ones_like(ordered, dtype=torch.bool)  # of a run of equal values
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = first.flatten().nonzero().squeeze(1)
    lengths = starts.diff(append=starts.new_tensor([values.numel()]))
    means = (starts % values.shape[1]).double() + (lengths.double() + 1) / 2
    found = torch.empty_like(values).scatter_(1, order, means.repeat_interleave(lengths).view_as(values))
    return found.masked_fill_(values.isnan().any(1, keepdim=True), torch.nan)


def _order(values: Tensor) -> Tensor:
    """The order of each row. On a CPU NumPy sorts several times as fast as torch; a GPU does it itself."""
    if values.device.type != "cpu":
        return values.argsort(1)
    return torch.from_numpy(values.numpy().argsort(1))
