"""A block in float32 on half-precision tensor cores: every factor of a product as a pair of halves.

A float32 matrix is kept as two float16 ones, its upper and lower halves, and a product takes three of theirs (see
`triton`): its errors are no larger than those of a float32 sum, and it takes less than half of the time.

float16 has few magnitudes, but what runs through a pre-norm block is bounded by its weights: a normalised vector has a
known length, an attended value is a mean of values, an activation is no larger than what it is given. So every tensor
has its own power of two, nothing can overflow, and nothing small is lost.
"""

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitrail.model.anatomy.form import BlockForm
from vitrail.model.kernels.weights import Weights, single, weights_of

if TYPE_CHECKING:
    from vitrail.model.kernels.triton import Halves

TOP = 2.0**15
"""What a tensor's largest possible value is scaled to, at most; float16 ends at twice that."""


class PairBlock:
    """A block computed in pairs of halves; it keeps what it needs of the weights, as they are now.

    Args:
        form: A block of float32 weights.

    Raises:
        ValueError: Its weights are not numbers.
    """

    def __init__(self, form: BlockForm) -> None:
        self.heads, self.prefix, self.activation = form.heads, form.prefix, form.activation
        weights = weights_of(form)
        one, two = map(power, weights.normed)
        # One scale for queries, keys and values, so that one product gives them.
        self.qkv_scale, self.hidden_scale = power(weights.mixed), power(weights.hidden)
        self.norm1, self.norm2 = _Norm(weights.norm1, one, form.norm1.eps), _Norm(weights.norm2, two, form.norm2.eps)
        self.qkv, self.output = _Linear(weights.qkv, one), _Linear(weights.output, self.qkv_scale)
        self.fc1, self.fc2 = _Linear(weights.fc1, two), _Linear(weights.fc2, self.hidden_scale)
        self.gate = None if weights.gate is None else _Linear(weights.gate, two)
        self.fused = weights.exact_gelu

    def __call__(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, None]:
        """(B, T, D) tokens that enter, what is still to be added -> (B, prefix or T, D) float32 tokens that leave."""
        from vitrail.model.kernels import triton  # Triton is loaded when it is first needed

        images, tokens, width = x.shape
        queries = min(self.prefix or tokens, tokens)
        x = (x if branch is None else x + branch).float().contiguous()
        rows = x.view(-1, width)
        qkv = self.qkv(self.norm1(rows), scale=self.qkv_scale)
        mixed = triton.attention(qkv, tokens, self.heads, queries, self.qkv_scale**-2)
        del qkv
        asked = rows if queries == tokens else x[:, :queries].contiguous().view(-1, width)
        a = self.output(mixed, residual=asked)
        left: Tensor = self.fc2(self._hidden(self.norm2(a)), residual=a)
        return left.view(images, queries, width), None

    def _hidden(self, normed: "Halves") -> "Halves":
        """The MLP's hidden vectors behind their activation."""
        if self.fused:
            found: Halves = self.fc1(normed, gelu=True, scale=self.hidden_scale)
            return found
        if self.gate is None:
            return halves(self.activation(self.fc1(normed)) * self.hidden_scale)
        return halves(self.fc1(normed) * self.activation(self.gate(normed)) * self.hidden_scale)


class _Norm:
    """A LayerNorm whose results are scaled, and given in halves."""

    def __init__(self, weights: Weights, scale: float, eps: float) -> None:
        weight, bias = weights
        self.weight, self.bias, self.eps = single(weight * scale), single(bias * scale), eps

    def __call__(self, x: Tensor) -> "Halves":
        from vitrail.model.kernels import triton

        return triton.norm(x, self.weight, self.bias, self.eps)[1]


class _Linear:
    """A linear layer whose weights are kept in halves.

    Args:
        weights: The layer's.
        scale: What its inputs are scaled by.
    """

    def __init__(self, weights: Weights, scale: float) -> None:
        weight, bias = weights
        own = power(float(weight.abs().max()))
        self.weight, self.bias, self.unscale = halves(single(weight * own)), single(bias), 1 / (scale * own)

    def __call__(self, x: "Halves", **options: Any) -> Any:
        from vitrail.model.kernels import triton

        return triton.linear(x, self.weight, self.bias, self.unscale, **options)


def halves(x: Tensor) -> "Halves":
    """A float32 tensor's upper and lower halves."""
    upper = x.half()
    return upper, (x - upper.float()).half()


def power(most: float) -> float:
    """The power of two that brings a magnitude below `TOP`, or as near as float32 has numbers for."""
    if not math.isfinite(most):
        raise ValueError(f"weights that allow for {most}")
    return 2.0 ** max(-60, min(60, math.floor(math.log2(TOP / most)))) if most > 0 else 1.0
