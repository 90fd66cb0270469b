"""A block in half precision: torch's products, with weights converted once, and norms that add on their way.

Between the blocks tokens stay float32. Nothing is scaled: bfloat16 has float32's magnitudes, and a block whose weights
allow for more than float16 can hold has no such form in it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.model.anatomy.form import BlockForm
from vitrail.model.kernels.weights import Weights, single, weights_of


class HalfBlock:
    """A block computed in half precision; it keeps what it needs of the weights, as they are now.

    Args:
        form: A block of float32 weights.
        dtype: What the factors of products are kept in.

    Raises:
        ValueError: Its weights allow for values beyond that type.
    """

    def __init__(self, form: BlockForm, dtype: torch.dtype) -> None:
        self.heads, self.prefix, self.dtype, self.activation = form.heads, form.prefix, dtype, form.activation
        weights = weights_of(form)
        branches = _passed_on(weights.mixed, weights.output), _passed_on(weights.hidden, weights.fc2)
        most = max(*weights.normed, weights.mixed, weights.hidden, *branches)
        if not most < torch.finfo(dtype).max / 2:
            raise ValueError(f"weights that allow for {most} in {dtype}")
        self.norm1, self.norm2 = _singles(weights.norm1), _singles(weights.norm2)
        self.eps1, self.eps2 = form.norm1.eps, form.norm2.eps
        self.qkv, self.output, self.fc1, self.fc2 = map(
            self._half, (weights.qkv, weights.output, weights.fc1, weights.fc2)
        )
        self.gate = None if weights.gate is None else self._half(weights.gate)
        # The product's own GELU is the one by tanh, which lies within 5e-4 of the exact one: bfloat16 cannot tell.
        self.fused = weights.exact_gelu and dtype == torch.bfloat16 and hasattr(torch, "_addmm_activation")

    def __call__(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, D) tokens that enter, what is still to be added -> (B, prefix or T, D) of both."""
        from vitrail.model.kernels import triton  # Triton is loaded when it is first needed

        images, tokens, width = x.shape
        queries = min(self.prefix or tokens, tokens)
        rows = x.float().contiguous().view(-1, width)
        added = None if branch is None else branch.contiguous().view(-1, width)
        rows, (normed, _) = triton.norm(rows, *self.norm1, self.eps1, half=self.dtype, branch=added)
        qkv = F.linear(normed, *self.qkv).view(images, tokens, 3, self.heads, -1)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        mixed = F.scaled_dot_product_attention(query[:, :, :queries], key, value).transpose(1, 2)
        del qkv, query, key, value
        if queries < tokens:
            rows = rows.view(images, tokens, width)[:, :queries].contiguous().view(-1, width)
        attended = F.linear(mixed.reshape(-1, width), *self.output)
        rows, (normed, _) = triton.norm(rows, *self.norm2, self.eps2, half=self.dtype, branch=attended)
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

    def _half(self, weights: Weights) -> tuple[Tensor, Tensor]:
        weight, bias = weights
        return weight.to(self.dtype), bias.to(self.dtype)


def _singles(weights: Weights) -> tuple[Tensor, Tensor]:
    weight, bias = weights
    return single(weight), single(bias)


def _passed_on(most: float, weights: Weights) -> float:
    """The largest magnitude that a linear layer gives for inputs up to ``most``."""
    weight, bias = weights
    return float((weight.abs().sum(1) * most + bias.abs()).max())
