"""How alike two rows of numbers are."""

import numpy as np
import torch
from scipy.stats import rankdata
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
    """(B, N) -> (B, N): the ranks, from 1; equal values get their mean rank."""
    found: np.ndarray = rankdata(values.detach().cpu().double().numpy(), axis=1)
    return torch.from_numpy(found).to(values.device)
