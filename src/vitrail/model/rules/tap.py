"""Read attention, hide or weaken tokens and change backward rules while a model runs, without touching the model.

A `Tap` is a ``TorchFunctionMode``: it sees the functional calls of the model's own forward pass, in this thread only.
Fused attention is computed openly there, so its probabilities can be kept, with their gradients.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.errors import InputError
from vitrail.model.rules.backward import TRUE, Rule

_SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax)
_MATMUL = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


class Tap(TorchFunctionMode):
    """Sees every attention call made inside the ``with`` block.

    Args:
        rule: The backward rule (`rules.TRUE` or `rules.FROZEN`).
        read: Keep the attention probabilities in `attention`, one (batch, heads, queries, keys) tensor a call, and the
            (batch, heads, keys, channels) vectors they mix in `values` (not where a model writes its softmax by hand).
        hidden: (batch, tokens) boolean, True where a key is hidden from every query.
        scaled: (batch, tokens) factors by which a key's scores before the softmax are multiplied, counted from the
            lowest score of the query: at 0 a key is as uninteresting as the least interesting one.
    """

    def __init__(
        self, *, rule: Rule = TRUE, read: bool = False, hidden: Tensor | None = None, scaled: Tensor | None = None
    ) -> None:
        super().__init__()
        self.rule = rule
        self.read = read
        self.hidden = hidden
        self.scaled = scaled
        self.attention: list[Tensor] = []
        self.values: list[Tensor] = []
        self._open = read or rule is not TRUE or scaled is not None
        self._written: tuple[int, Tensor | None] = (
            0,
            None,
        )  # softmaxes by hand that have mixed no values yet, the last

    def __enter__(self) -> Self:
        _running.taps = _running.taps + 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        _running.taps = _running.taps - 1
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._fused_attention(*args, **kwargs)
        if func is F.multi_head_attention_forward and (self._open or self.hidden is not None):
            return self._multi_head_attention(*args, **kwargs)
        if func in _SOFTMAX:
            return self._softmax(func, *args, **kwargs)
        if func in _MATMUL and len(args) == 2:
            self._mixing(*args)
        return self._call(func, *args, **kwargs)

    def _call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The function, or what the rule puts in its place."""
        ruled: Callable[..., Any] = self.rule.calls.get(func, func)
        return ruled(*args, **kwargs)

    def keep(self, probabilities: Tensor) -> Tensor:
        """Note one call's probabilities and return what the values are multiplied with."""
        probabilities = self.rule.attention(probabilities)
        if self.read:
            if torch.is_grad_enabled():
                probabilities.requires_grad_()  # also as a constant it can be asked for its own gradient
            self.attention.append(probabilities)
        return probabilities

    def written(self, probabilities: Tensor) -> None:
        """Remember a softmax written out by hand until values are mixed."""
        count, last = self._written
        again = last is not None and last.shape == probabilities.shape
        self._written = (count + 1 if again else 1, probabilities)

    def merge(self, mixed: Tensor) -> None:
        """Note one matrix in the place of the last two, which it was made of."""
        if torch.is_grad_enabled():
            mixed.requires_grad_()
        self.attention[-2:] = [mixed]

    def _mixing(self, left: Tensor, right: Tensor) -> None:
        """A product behind two blended softmaxes (ConViT: of contents and of positions): their blend counts."""
        count, last = self._written
        if last is None or left.shape != last.shape or right.ndim != 4 or right.shape[-2] != last.shape[-1]:
            return
        if count == 2 and left is not last and self.read:
            self.merge(left)
        self._written = (0, None)

    def _hides(self, batch: int, keys: int) -> bool:
        return self.hidden is not None and self.hidden.shape == (batch, keys)

    def _scale(self, scores: Tensor) -> Tensor:
        """(batch, heads, queries, keys) scores, those of some keys made smaller."""
        if self.scaled is None or self.scaled.shape != (scores.shape[0], scores.shape[-1]):
            return scores
        lowest = scores.amin(-1, keepdim=True)
        return (scores - lowest) * self.scaled[:, None, None, :].to(scores.dtype)

    def _fused_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """``scaled_dot_product_attention``, computed openly where its probabilities are wanted."""
        rows, keys = query.shape[-2], key.shape[-2]
        hides = self._hides(query.shape[0], keys)
        if not self._open and not hides:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        bias = torch.zeros((), dtype=query.dtype, device=query.device)
        if is_causal:
            bias = _blocked(~torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril(), query.dtype)
        if attn_mask is not None:
            bias = bias + (_blocked(~attn_mask, query.dtype) if attn_mask.dtype == torch.bool else attn_mask)
        if hides:
            assert self.hidden is not None
            bias = bias + _blocked(self.hidden[:, None, None, :], query.dtype)
        if not self._open:
            # The fused kernels want the mask's last two dimensions spelled out.
            bias = bias.expand(*bias.shape[:-2], rows, keys)
            return F.scaled_dot_product_attention(
                query, key, value, bias, dropout_p, scale=scale, enable_gqa=enable_gqa
            )
        if self.rule.attention is Tensor.detach and not self.read and self.scaled is None:
            # Constant probabilities: the kernel computes them, and a gradient comes back through the values alone.
            mask = None if bias.ndim == 0 else bias.expand(*bias.shape[:-2], rows, keys)
            return F.scaled_dot_product_attention(
                query.detach(), key.detach(), value, mask, dropout_p, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale) + bias
        if self.read:
            self.values.append(value)
        return self.keep(self._scale(scores).softmax(-1)).to(value.dtype) @ value

    def _multi_head_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim_to_check: int,  # noqa: ARG002  part of the signature
        num_heads: int,
        in_proj_weight: Tensor | None,
        in_proj_bias: Tensor | None,
        bias_k: Tensor | None,
        bias_v: Tensor | None,
        add_zero_attn: bool,
        dropout_p: float,
        out_proj_weight: Tensor,
        out_proj_bias: Tensor | None,
        training: bool = True,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        use_separate_proj_weight: bool = False,
        q_proj_weight: Tensor | None = None,
        k_proj_weight: Tensor | None = None,
        v_proj_weight: Tensor | None = None,
        static_k: Tensor | None = None,
        static_v: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """``torch.nn.MultiheadAttention``'s functional form, on (tokens, batch, channels).

        Its inner calls are out of the mode's sight, so the whole call is computed here.
        """
        rare = (bias_k, bias_v, key_padding_mask, static_k, static_v)
        if add_zero_attn or any(x is not None for x in rare) or query.ndim != 3:
            raise InputError(
                "this model calls torch.nn.MultiheadAttention with extra keys or padding, which vitrail cannot read; "
                "use a method that needs gradients or features only"
            )
        if use_separate_proj_weight:
            weights = [q_proj_weight, k_proj_weight, v_proj_weight]
        else:
            assert in_proj_weight is not None
            weights = list(in_proj_weight.chunk(3))
        biases = [None] * 3 if in_proj_bias is None else list(in_proj_bias.chunk(3))
        q, k, v = (
            self._call(F.linear, x, w, b).unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)
            for x, w, b in zip((query, key, value), weights, biases)
        )
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = ~attn_mask  # True hides a key here, and shows it to scaled_dot_product_attention
        if attn_mask is not None and attn_mask.ndim == 3:
            attn_mask = attn_mask.unflatten(0, (-1, num_heads))
        before = len(self.attention)
        causal = is_causal and attn_mask is None
        mixed = self._fused_attention(q, k, v, attn_mask, dropout_p if training else 0.0, causal)
        out = self._call(F.linear, mixed.permute(2, 0, 1, 3).flatten(-2), out_proj_weight, out_proj_bias)
        if not need_weights or len(self.attention) == before:
            return out, None
        shown = self.attention[-1]
        return out, shown.mean(1) if average_attn_weights else shown

    def _softmax(self, func: Callable[..., Any], x: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """A softmax written out by hand counts as attention when it runs over the keys of (batch, heads, i, j)."""
        if x.ndim != 4 or dim not in (-1, 3):
            return func(x, dim, *args, **kwargs)
        if self._hides(x.shape[0], x.shape[-1]):
            assert self.hidden is not None
            x = x.masked_fill(self.hidden[:, None, None, :], -math.inf)
        probabilities = self.keep(func(self._scale(x), dim, *args, **kwargs))
        self.written(probabilities)
        return probabilities


class _Running(threading.local):
    """How many taps there are around what a thread does at the moment."""

    taps = 0


_running = _Running()


def is_tapped() -> bool:
    """Whether this thread runs under a `Tap`."""
    return _running.taps > 0


@contextmanager
def tapped(rule: Rule, read: bool) -> Iterator[Tap]:
    """Run under a `Tap`; where nothing is asked of it, the model runs undisturbed."""
    tap = Tap(rule=rule, read=read)
    with tap if read or rule is not TRUE else nullcontext():
        yield tap


def _blocked(where: Tensor, dtype: torch.dtype) -> Tensor:
    """Minus infinity where True, zero elsewhere."""
    return torch.zeros(where.shape, dtype=dtype, device=where.device).masked_fill_(where, -math.inf)
