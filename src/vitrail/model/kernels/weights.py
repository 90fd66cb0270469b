"""The weights of a block, and how large what runs through it can become: its weights bound it, whatever tokens come."""

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.anatomy.form import BlockForm

Weights = tuple[Tensor, Tensor]
"""Weight and bias in float64."""


@dataclass(frozen=True)
class BlockWeights:
    """A block's weights in float64, LayerScale in those of its branches, and the largest magnitudes they allow for.

    Attributes:
        norm1: Of the norm in front of the attention.
        qkv: Of queries, keys and values as one layer.
        output: Of the projection behind the attention.
        norm2: Of the norm in front of the MLP.
        fc1: Of the MLP's first layer.
        gate: Of a gated unit's other half, else None.
        fc2: Of the MLP's second layer.
        exact_gelu: Whether the activation is the exact GELU, and there is no gate.
        normed: The largest magnitudes behind the two norms.
        mixed: The largest of queries, keys and values, and so of what attention makes of the values.
        hidden: The largest of the MLP's hidden vectors behind their activation.
    """

    norm1: Weights
    qkv: Weights
    output: Weights
    norm2: Weights
    fc1: Weights
    gate: Weights | None
    fc2: Weights
    exact_gelu: bool
    normed: tuple[float, float]
    mixed: float
    hidden: float


def weights_of(form: BlockForm) -> BlockWeights:
    """A block's weights."""
    norm1, norm2 = _norm(form.norm1), _norm(form.norm2)
    vectors, biases = zip(*map(_wide, (form.query, form.key, form.value)))
    qkv, fc1 = (torch.cat(vectors), torch.cat(biases)), _wide(form.fc1)
    gate = None if form.gate is None else _wide(form.gate)
    # An activation is no larger than what it is given.
    hidden = _largest(norm2, fc1) * (1.0 if gate is None else _largest(norm2, gate))
    return BlockWeights(
        norm1=norm1,
        qkv=qkv,
        output=_wide(form.output, form.scale1),
        norm2=norm2,
        fc1=fc1,
        gate=gate,
        fc2=_wide(form.fc2, form.scale2),
        exact_gelu=gate is None and _is_gelu(form.activation),
        normed=(_largest_normed(norm1), _largest_normed(norm2)),
        mixed=_largest(norm1, qkv),
        hidden=hidden,
    )


def single(x: Tensor) -> Tensor:
    """In float32."""
    return x.detach().float().contiguous()


def _norm(norm: nn.LayerNorm) -> Weights:
    """A norm's weight and bias; ones and zeros where it has none."""
    plain = torch.ones(norm.normalized_shape, dtype=torch.float64, device=next(iter(norm.parameters())).device)
    weight = plain if norm.weight is None else norm.weight.detach().double()
    return weight, torch.zeros_like(plain) if norm.bias is None else norm.bias.detach().double()


def _wide(linear: nn.Linear, scale: Tensor | None = None) -> Weights:
    """A layer's weight and bias, zeros where it has none, with a LayerScale in them."""
    weight = linear.weight.detach().double()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach().double()
    return (weight, bias) if scale is None else (weight * scale.double()[:, None], bias * scale.double())


def _largest_normed(norm: Weights) -> float:
    """The largest magnitude that a norm can give: a centred vector over its deviation has a known length."""
    weight, bias = norm
    return float((weight.abs() * math.sqrt(len(weight)) + bias.abs()).max())


def _largest(norm: Weights, linear: Weights) -> float:
    """The largest magnitude that a linear layer behind a norm can give."""
    (scale, shift), (weight, bias) = norm, linear
    lengths = (weight * scale).norm(dim=1) * math.sqrt(len(scale))
    return float((lengths + (weight @ shift + bias).abs()).max())


def _is_gelu(activation: object) -> bool:
    return (
        isinstance(activation, partial)
        and activation.func is F.gelu
        and activation.keywords.get("approximate", "none") == "none"
        and not activation.args
    )
