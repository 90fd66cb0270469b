"""A block in half precision: torch's products, with weights converted once, and norms that add on their way.

Between the blocks tokens stay float32. Nothing is scaled: bfloat16 has float32's magnitudes, and a block whose weights
allow for more than float16 can hold has no such form in it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.blockform import BlockForm
from vitrail.model.blockweights import (
    Weights,
    is_gelu,
    joined,
    largest,
    largest_hidden,
    largest_normed,
    single,
    weights_of,
    wide,
)


class HalfBlock:
    """A block computed in half precision; it keeps what it needs of the weights, as they are now.

    Args:
        form: A block of float32 weights.
        dtype: What the factors of products are kept in.

    Raises:
        ValueError: Its weights allow for values beyond that type.
    """

    def __init__(self, form: BlockForm, dtype: torch.dtype) -> None:
        self.heads, self.prefix, self.dtype = form.heads, form.prefix, dtype
        self.norm1, self.norm2 = _norm(form.norm1), _norm(form.norm2)
        joint, output, fc2 = joined(form), wide(form.output, form.scale1), wide(form.fc2, form.scale2)
        mixed, hidden = largest(form.norm1, joint), largest_hidden(form)
        normed = map(largest_normed, (form.norm1, form.norm2))
        self._check(max(*normed, mixed, _passed_on(mixed, output), hidden, _passed_on(hidden, fc2)))
        self.qkv, self.output, self.fc1, self.fc2 = map(self._half, (joint, output, wide(form.fc1), fc2))
        self.gate = None if form.gate is None else self._half(wide(form.gate))
        self.activation = form.activation
        # The product's own GELU is the one by tanh, which lies within 5e-4 of the exact one: bfloat16 cannot tell.
        self.fused = self.gate is None and is_gelu(form.activation) and dtype == torch.bfloat16

    def __call__(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, D) tokens that enter, what is still to be added -> (B, prefix or T, D) of both."""
        from vitrail.model import fusedkernels  # Triton is loaded when it is first needed

        images, tokens, width = x.shape
        queries = min(self.prefix or tokens, tokens)
        rows = x.float().contiguous().view(-1, width)
        added = None if branch is None else branch.contiguous().view(-1, width)
        rows, (normed, _) = fusedkernels.norm(rows, *self.norm1, half=self.dtype, branch=added)
        qkv = F.linear(normed, *self.qkv).view(images, tokens, 3, self.heads, -1)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        mixed = F.scaled_dot_product_attention(query[:, :, :queries], key, value).transpose(1, 2)
        del qkv, query, key, value
        if queries < tokens:
            rows = rows.view(images, tokens, width)[:, :queries].contiguous().view(-1, width)
        attended = F.linear(mixed.reshape(-1, width), *self.output)
        rows, (normed, _) = fusedkernels.norm(rows, *self.norm2, half=self.dtype, branch=attended)
        left = F.linear(self._hidden(normed), *self.fc2)
        return rows.view(images, queries, width), left.view(images, queries, width)

    def _hidden(self, normed: Tensor) -> Tensor:
        """The MLP's hidden vectors behind their activation."""
        if self.fused:
            weight, bias = self.fc1
            return torch._addmm_activation(bias, normed, weight.T, use_gelu=True)
        hidden = F.linear(normed, *self.fc1)
        if self.gate is None:
            return self.activation(hidden)
        return hidden * self.activation(F.linear(normed, *self.gate))

    def _check(self, most: float) -> None:
        if not most < torch.finfo(self.dtype).max / 2:
            raise ValueError(f"weights that allow for {most} in {self.dtype}")

    def _half(self, weights: Weights) -> tuple[Tensor, Tensor]:
        weight, bias = weights
        return weight.to(self.dtype), bias.to(self.dtype)


def _norm(norm: nn.LayerNorm) -> tuple[Tensor, Tensor, float]:
    weight, bias = weights_of(norm)
    return single(weight), single(bias), norm.eps


def _passed_on(most: float, weights: Weights) -> float:
    """The largest magnitude that a linear layer gives for inputs up to ``most``."""
    weight, bias = weights
    return float((weight.abs().sum(1) * most + bias.abs()).max())
