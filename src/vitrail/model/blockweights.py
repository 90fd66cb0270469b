"""The weights of a block, and how large what runs through it can become: its weights bound it, whatever tokens come."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.blockform import BlockForm

Weights = tuple[Tensor, Tensor]
"""Weight and bias in float64."""


def weights_of(norm: nn.LayerNorm) -> Weights:
    """A norm's weight and bias; ones and zeros where it has none."""
    plain = torch.ones(norm.normalized_shape, dtype=torch.float64, device=next(iter(norm.parameters())).device)
    weight = plain if norm.weight is None else norm.weight.detach().double()
    return weight, torch.zeros_like(plain) if norm.bias is None else norm.bias.detach().double()


def wide(linear: nn.Linear, scale: Tensor | None = None) -> Weights:
    """A layer's weight and bias, zeros where it has none, with a LayerScale in them."""
    weight = linear.weight.detach().double()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach().double()
    return (weight, bias) if scale is None else (weight * scale.double()[:, None], bias * scale.double())


def joined(form: BlockForm) -> Weights:
    """Queries, keys and values as one layer."""
    weights, biases = zip(*map(wide, (form.query, form.key, form.value)))
    return torch.cat(weights), torch.cat(biases)


def single(x: Tensor) -> Tensor:
    """In float32."""
    return x.detach().float().contiguous()


def largest_normed(norm: nn.LayerNorm) -> float:
    """The largest magnitude that a norm can give, whatever tokens come."""
    weight, bias = weights_of(norm)
    return float((weight.abs() * math.sqrt(len(weight)) + bias.abs()).max())


def largest(norm: nn.LayerNorm, weights: Weights) -> float:
    """The largest magnitude that a linear layer behind a norm can give, whatever tokens come."""
    (scale, shift), (weight, bias) = weights_of(norm), weights
    lengths = (weight * scale).norm(dim=1) * math.sqrt(len(scale))
    return float((lengths + (weight @ shift + bias).abs()).max())


def largest_hidden(form: BlockForm) -> float:
    """The largest magnitude of the MLP's hidden vectors behind their activation."""
    most = largest(form.norm2, wide(form.fc1))
    return most if form.gate is None else most * largest(form.norm2, wide(form.gate))


def is_gelu(activation: object) -> bool:
    """Whether an activation is the exact GELU."""
    return (
        isinstance(activation, partial)
        and activation.func is F.gelu
        and activation.keywords.get("approximate", "none") == "none"
        and not activation.args
    )
