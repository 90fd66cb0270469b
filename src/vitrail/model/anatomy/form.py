"""The whole form of a pre-norm block, so that it can be computed another way: for a few tokens, or by other kernels.

The pieces are found by listening to the block, as `blockparts` does, on a float64 copy of its weights, where one form
can be told from another; they are then put together from the model's own weights, and nothing is kept twice. A block
that does anything else (query-key norms, rotary embeddings, position biases) has no form, and runs as it is.

Where a head reads the prefix tokens alone, most of the last block's arithmetic is not needed: every token gives its key
and its value, but only the prefix tokens ask, and only they go on through the MLP. That is its short form.
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.anatomy.hooks import is_watched, is_watched_everywhere
from vitrail.model.anatomy.parts import Affine, BlockParts, Call, Norm, listen, parts_of, pieces
from vitrail.model.anatomy.watch import Layout
from vitrail.model.rules.tap import is_tapped
from vitrail.model.trace import first_of, full, version_of

if TYPE_CHECKING:
    from vitrail.model.view import View

PATCHES = 16
"""Patch tokens the form is looked for with: a block that minds fewer than its grid has is of another form."""

Extra = tuple[tuple[Any, ...], dict[str, Any]]
"""What a block is given besides its tokens: by place, and by name."""

EXACT = 1e-6
"""How far the form may lie from the block in float64: some models take their softmax in float32 whatever comes."""


class BlockForm(nn.Module):
    """A pre-norm block, or one that gives the first tokens only.

    It is a module because `torch.compile` takes the sizes of a module's weights for constants.

    Args:
        query: Tokens to the heads' query vectors.
        key: Tokens to their key vectors.
        parts: All the other pieces.
        heads: The number of heads.
        prefix: How many tokens are wanted; all by default.
    """

    def __init__(self, query: Affine, key: Affine, parts: BlockParts, heads: int, prefix: int | None) -> None:
        super().__init__()
        self.heads, self.prefix = heads, prefix
        self.norm1, self.norm2 = map(_norm, (parts.norm1, parts.norm2))
        self.query, self.key, self.value, self.output = map(_linear, (query, key, parts.value, parts.output))
        self.fc1, self.fc2 = map(_linear, (parts.fc1, parts.fc2))
        self.gate = None if parts.gate is None else _linear(parts.gate)
        self.activation = parts.activation
        self.scale1: nn.Parameter | None = _frozen(parts.scale1)
        self.scale2: nn.Parameter | None = _frozen(parts.scale2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) tokens that enter -> (B, prefix or T, D) tokens that leave."""
        normed = self.norm1(x)
        vectors = self.query(normed[:, : self.prefix]), self.key(normed), self.value(normed)
        query, key, value = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in vectors)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        a = x[:, : self.prefix] + _scaled(self.output(mixed), self.scale1)
        return a + _scaled(self.fc2(self._hidden(self.norm2(a))), self.scale2)

    def _hidden(self, normed: Tensor) -> Tensor:
        """The MLP's hidden vectors behind their activation."""
        if self.gate is None:
            return self.activation(self.fc1(normed))
        gated: Tensor = self.fc1(normed) * self.activation(self.gate(normed))
        return gated


def takes_tokens_alone(extras: Extra) -> bool:
    """Whether a block is given nothing that counts besides its tokens."""
    args, kwargs = extras
    return all(extra is None or isinstance(extra, bool) for extra in (*args, *kwargs.values()))


def stamp_of(block: nn.Module, extras: Extra, prefix: int) -> tuple[object, ...] | None:
    """What the form of a block rests on: it is found anew when this changes.

    None where the block has to run itself: it is given more than its tokens (a mask, a bias, a rotary embedding),
    somebody watches it, or has covered a part of it.

    Args:
        block: The block.
        extras: What it is given besides its tokens.
        prefix: How many prefix tokens there are.
    """
    if not takes_tokens_alone(extras):
        return None
    if is_watched_everywhere() or is_tapped():
        return None
    args, kwargs = extras
    stamp: list[object] = [prefix, *args, *kwargs.values()]
    modules = [block]
    for module in modules:  # it grows as it is walked: `block.modules()` takes three times as long
        if is_watched(module):
            return None
        stamp.append(module)  # itself, not its id, which another may take when it is gone
        stamp += [(w.data_ptr(), w.dtype, version_of(w)) for w in module._parameters.values() if w is not None]
        modules += [child for child in module._modules.values() if child is not None]
    return tuple(stamp)


def find_short(view: "View", layout: Layout, width: int) -> BlockForm | None:
    """The short form of a view's last block; None where it has none, or the head does not do with the prefix tokens.

    Args:
        view: A model with token blocks.
        layout: Any layout of its tokens.
        width: The channels of a token.
    """
    assert view.blocks is not None
    block, (args, kwargs) = view.blocks.modules[-1], layout.extras[-1]
    tokens = _tokens(layout.tokens, width)
    try:
        with torch.no_grad(), torch.autocast(view.device.type, enabled=False):
            last = _read(block, tokens[:, : layout.prefix + PATCHES].double(), layout.prefix, args, kwargs)
            if last is None:
                return None
            tokens = tokens.to(view.device, view.dtype)
            whole = full(view.head(first_of(block(tokens, *args, **kwargs)), layout))
            short = full(view.head(last(tokens), layout))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a block of another form minds: itself, it runs
        return None
    # A head that answers the same to everything, one of zeros, does not tell what it will read once it is trained.
    difference = float((whole[0] - whole[1]).norm())
    tolerance = 1e-2 if torch.finfo(view.dtype).bits >= 32 else 1e-1
    return last if difference > 0 and float((short - whole).norm()) <= tolerance * difference else None


def find_form(block: nn.Module, extras: Extra, prefix: int, width: int) -> BlockForm | None:
    """The form of one block that gives all its tokens; None where it has none.

    Args:
        block: The block.
        extras: What it is given besides its tokens.
        prefix: How many prefix tokens there are.
        width: The channels of a token.
    """
    try:
        with torch.no_grad():
            return _read(block, _tokens(prefix + PATCHES, width).double(), None, *extras)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a block of another form minds: itself, it runs
        return None


def _tokens(count: int, width: int) -> Tensor:
    """(2, count, width), always the same."""
    return torch.randn(2, count, width, generator=torch.Generator().manual_seed(0), device="cpu")


def _read(
    block: nn.Module, x: Tensor, prefix: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BlockForm | None:
    """The form of a block, checked on (B, T, D) float64 tokens before it is given the block's own weights."""
    copies = {
        name: weight.detach().to("cpu", torch.float64, copy=True).contiguous()
        for name, weight in block.named_parameters()
    }

    def run(*given: Any, **others: Any) -> Any:
        return torch.func.functional_call(block, copies, given, others)

    with torch.autocast("cpu", enabled=False):
        calls, out = listen(run, x, *args, **kwargs)
        parts = parts_of(calls, x, out)
        found = None if parts is None else _query_key(calls, x, parts)
        if parts is None or found is None:
            return None
        query, key, heads = found
        last = BlockForm(query, key, parts, heads, prefix)
        branch, again = (out - x)[:, :prefix], last(x) - x[:, :prefix]
    return last if _near(again, branch) and _own(last, block, copies) else None


def _query_key(calls: list[Call], x: Tensor, parts: BlockParts) -> tuple[Affine, Affine, int] | None:
    """The rows whose products, scaled and through the softmax, are the block's attention; and the number of heads."""
    attended = next(i for i, call in enumerate(calls) if call.kind == "attention")
    attention = calls[attended].out
    heads = attention.shape[1]
    entry = parts.norm1(x)
    found = list(pieces(calls[:attended], entry, len(parts.value.weight)))
    vectors = [piece(entry).unflatten(-1, (heads, -1)).transpose(1, 2) for piece in found]
    for (query, q), (key, k) in product(zip(found, vectors), repeat=2):
        if _near((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1), attention):
            return query, key, heads
    return None


def _own(last: BlockForm, block: nn.Module, copies: Mapping[str, Tensor]) -> bool:
    """Put the block's own weights where their copies are; whether the form is made of them all, and of nothing else."""
    own = dict(block.named_parameters())
    names = {copy.untyped_storage().data_ptr(): name for name, copy in copies.items()}
    used = set()
    for module in last.modules():
        for key, copy in [(key, copy) for key, copy in module._parameters.items() if copy is not None]:
            name = names.get(copy.untyped_storage().data_ptr())
            if name is not None:
                begin = copy.storage_offset() // copy.stride(0)
                setattr(module, key, _frozen(own[name][begin : begin + len(copy)]))
                used.add(name)
            elif bool((copy == (key != "bias")).all()):  # zeros or ones, which stand for nothing at all
                setattr(module, key, None)
            else:
                return False
    return used == set(own) and next(block.buffers(), None) is None


def _linear(affine: Affine) -> nn.Linear:
    linear = nn.Linear(affine.weight.shape[1], len(affine.weight), device="meta")
    linear.weight, linear.bias = _frozen(affine.weight), _frozen(affine.bias)
    return linear


def _norm(norm: Norm) -> nn.LayerNorm:
    made = nn.LayerNorm(len(norm.weight), norm.eps, device="meta")
    made.weight, made.bias = _frozen(norm.weight), _frozen(norm.bias)
    return made


def _frozen(weight: Tensor) -> nn.Parameter:
    """The same memory, and no gradient."""
    return nn.Parameter(weight.detach(), requires_grad=False)


def _scaled(branch: Tensor, scale: Tensor | None) -> Tensor:
    return branch if scale is None else branch * scale


def _near(found: Tensor, expected: Tensor) -> bool:
    return float((found - expected).norm()) <= EXACT * float(expected.norm())
