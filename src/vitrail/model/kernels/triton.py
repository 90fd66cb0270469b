"""GPU kernels for the parts of a transformer block, in Triton: float32 products on half-precision tensor cores.

A float32 number is the sum of two half-precision ones, its upper and its lower half, to 22 bits. Three products of
halves (lower upper, upper lower, upper upper) give the product of two numbers; the fourth is below the last bit. Tensor
cores add up by cutting off, so a sum stays in them for one step of ``BK`` only, and is rounded where it leaves.

`pairblock` and `halfblock` put the kernels together, and say what powers of two the tensors are scaled by.
"""
# ruff: noqa: N803 -- what is fixed when a kernel is compiled is written in capitals

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

Halves = tuple[Tensor, Tensor]
"""A matrix's upper and lower halves, float16."""

LOG2_E = 1.4426950408889634


@triton.jit
def _put(x, out, lower_out, at, there):
    """Store both halves."""
    upper = x.to(tl.float16)
    tl.store(out + at, upper, mask=there)
    tl.store(lower_out + at, (x - upper.to(tl.float32)).to(tl.float16), mask=there)


@triton.jit
def _gelu(x):
    """By Abramowitz and Stegun's 7.1.26: as near to the exact one as float32's own error function, at half its cost."""
    size = tl.abs(x) * 0.7071067811865476
    t = 1 / (1 + 0.3275911 * size)
    curve = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * curve * tl.exp(-size * size)
    return x * tl.where(x < 0, tail, 1 - tail)


@triton.jit
def _linear(
    x, x_low, w, w_low, bias, residual, out, lower_out,
    rows, outs, ins, unscale, scale,
    GELU: tl.constexpr, RESIDUAL: tl.constexpr, SINGLE: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    # Neighbours share their rows of x, which come from memory; the weights stay in the cache.
    across = tl.cdiv(outs, BN)
    row = (tl.program_id(0) // across).to(tl.int64) * BM + tl.arange(0, BM)
    column = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    mine, weight_row = row[:, None] < rows, (column % outs)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, ins, BK):
        place = begin + tl.arange(0, BK)
        x_at, w_at = row[:, None] * ins + place[None, :], weight_row * ins + place[:, None]
        x_there = mine if EVEN else mine & (place[None, :] < ins)
        w_there = None if EVEN else place[:, None] < ins
        filler = None if EVEN else 0.0
        a, a_low = tl.load(x + x_at, mask=x_there, other=0.0), tl.load(x_low + x_at, mask=x_there, other=0.0)
        b, b_low = (
            tl.load(w + w_at, mask=w_there, other=filler),
            tl.load(w_low + w_at, mask=w_there, other=filler),
        )
        part = tl.dot(a_low, b)  # the small ones first
        part = tl.dot(a, b_low, part)
        total += tl.dot(a, b, part)
    total = total * unscale + tl.load(bias + column % outs)[None, :]
    if GELU:
        total = _gelu(total)
    at, mine = row[:, None] * outs + column[None, :], mine & (column[None, :] < outs)
    if RESIDUAL:
        total += tl.load(residual + at, mask=mine, other=0.0)
    if SINGLE:
        tl.store(out + at, total, mask=mine)
    else:
        _put(total * scale, out, lower_out, at, mine)


@triton.jit
def _norm(
    x, branch, weight, bias, summed, out, lower_out, rows, width, eps,
    ADD: tl.constexpr, PAIR: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = column < width
    at, mine = row[:, None] * width + column[None, :], (row[:, None] < rows) & inside[None, :]
    given = tl.load(x + at, mask=mine, other=0.0)
    if ADD:
        given += tl.load(branch + at, mask=mine, other=0.0).to(tl.float32)
        tl.store(summed + at, given, mask=mine)
    centred = tl.where(inside[None, :], given - (tl.sum(given, 1) / width)[:, None], 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    scaled = centred / deviation[:, None] * tl.load(weight + column, mask=inside, other=0.0)[None, :]
    found = scaled + tl.load(bias + column, mask=inside, other=0.0)[None, :]
    if PAIR:
        _put(found, out, lower_out, at, mine)
    else:
        tl.store(out + at, found.to(out.dtype.element_ty), mask=mine)


@triton.jit
def _attention(
    x, x_low, out, lower_out,
    tokens, queries, heads, scale,
    D: tl.constexpr, WIDE: tl.constexpr, BQ: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(queries, BQ)
    image, head = (tl.program_id(0) // tiles // heads).to(tl.int64), tl.program_id(0) // tiles % heads
    query, channel = (tl.program_id(0) % tiles) * BQ + tl.arange(0, BQ), tl.arange(0, WIDE)
    width = heads * D
    first = image * tokens * 3 * width + head * D
    asks = (query[:, None] < queries) & (channel[None, :] < D)
    q_at = first + query[:, None] * (3 * width) + channel[None, :]
    q, q_low = tl.load(x + q_at, mask=asks, other=0.0), tl.load(x_low + q_at, mask=asks, other=0.0)
    highest = tl.full((BQ,), float("-inf"), tl.float32)
    sums, mixed = tl.zeros((BQ,), tl.float32), tl.zeros((BQ, WIDE), tl.float32)
    for begin in range(0, tokens, BT):
        token = begin + tl.arange(0, BT)
        there = token < tokens
        k_there, v_there = there[None, :] & (channel[:, None] < D), there[:, None] & (channel[None, :] < D)
        k_at = first + width + token[None, :] * (3 * width) + channel[:, None]
        k, k_low = tl.load(x + k_at, mask=k_there, other=0.0), tl.load(x_low + k_at, mask=k_there, other=0.0)
        score = tl.dot(q_low, k)
        score = tl.dot(q, k_low, score)
        score = tl.where(there[None, :], tl.dot(q, k, score) * scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        share, before = tl.exp2(score - higher[:, None]), tl.exp2(highest - higher)
        highest, sums = higher, sums * before + tl.sum(share, 1)
        p = share.to(tl.float16)
        v_at = first + 2 * width + token[:, None] * (3 * width) + channel[None, :]
        v, v_low = tl.load(x + v_at, mask=v_there, other=0.0), tl.load(x_low + v_at, mask=v_there, other=0.0)
        part = tl.dot((share - p.to(tl.float32)).to(tl.float16), v)
        part = tl.dot(p, v_low, part)
        mixed = mixed * before[:, None] + tl.dot(p, v, part)
    at = image * queries * width + query[:, None] * width + head * D + channel[None, :]
    _put(mixed / sums[:, None], out, lower_out, at, asks)


def linear(
    x: Halves,
    weight: Halves,
    bias: Tensor,
    unscale: float,
    *,
    gelu: bool = False,
    residual: Tensor | None = None,
    scale: float | None = None,
) -> Tensor | Halves:
    """``x W^T unscale + bias``, through GELU if asked for, plus a residual.

    Args:
        x: (rows, ins).
        weight: (outs, ins).
        bias: (outs,) float32.
        unscale: What undoes the scales of both factors.
        gelu: Whether the exact GELU follows.
        residual: (rows, outs) float32.
        scale: Give the halves of the result times this; else the result itself.
    """
    (rows, ins), outs = x[0].shape, len(bias)
    out = bias.new_empty(rows, outs) if scale is None else x[0].new_empty(rows, outs)
    lower = out if scale is None else torch.empty_like(out)
    tile = _tile(ins, outs, gelu, _roomy(bias.device))
    grid = (triton.cdiv(rows, tile["BM"]) * triton.cdiv(outs, tile["BN"]),)
    _linear[grid](
        *x, *weight, bias, bias if residual is None else residual, out, lower,
        rows, outs, ins, unscale, 1.0 if scale is None else scale,
        GELU=gelu, RESIDUAL=residual is not None, SINGLE=scale is None, EVEN=ins % tile["BK"] == 0, **tile,
    )  # fmt: skip
    return out if scale is None else (out, lower)


def norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    half: torch.dtype | None = None,
    branch: Tensor | None = None,
) -> tuple[Tensor, Halves]:
    """A LayerNorm of (rows, width) float32 vectors, after what a branch adds to them.

    Args:
        x: The vectors.
        weight: (width,), the scale of the results in it.
        bias: Likewise.
        eps: LayerNorm's.
        half: Give the results in this type, twice the same tensor; else their halves.
        branch: (rows, width), of any type.

    Returns:
        The sums, float32, and the results.
    """
    rows, width = x.shape
    out = x.new_empty(rows, width, dtype=half or torch.float16)
    lower = torch.empty_like(out) if half is None else out
    summed = x if branch is None else torch.empty_like(x)
    wide = triton.next_power_of_2(width)
    at_once = max(1, 2048 // wide)
    _norm[(triton.cdiv(rows, at_once),)](
        x, x if branch is None else branch, weight, bias, summed, out, lower, rows, width, eps,
        ADD=branch is not None, PAIR=half is None, WIDTH=wide, ROWS=at_once, num_warps=4,
    )  # fmt: skip
    return summed, (out, lower)


def attention(x: Halves, tokens: int, heads: int, queries: int, unscale: float) -> Halves:
    """Softmax attention.

    Args:
        x: (images * tokens, 3 width), queries, keys and values side by side, head by head in each.
        tokens: Tokens an image.
        heads: The number of heads.
        queries: How many tokens of each image ask, the first ones.
        unscale: What undoes the scale of a query times that of a key.

    Returns:
        (images * queries, width), scaled as the values are.
    """
    images, width = len(x[0]) // tokens, x[0].shape[1] // 3
    channels = width // heads
    out = x[0].new_empty(images * queries, width)
    lower = torch.empty_like(out)
    few = queries <= 16
    tile = {"BQ": 16 if few else 128, "BT": 32, "num_warps": 4 if few else 8, "num_stages": 3}
    _attention[(images * heads * triton.cdiv(queries, tile["BQ"]),)](
        *x, out, lower, tokens, queries, heads, unscale * channels**-0.5 * LOG2_E,
        D=channels, WIDE=max(16, triton.next_power_of_2(channels)), **tile,
    )  # fmt: skip
    return out, lower


def _tile(ins: int, outs: int, gelu: bool, roomy: bool) -> dict[str, int]:
    """What each program computes, by measurement on an H200. It does not depend on the batch, so neither do results."""
    if roomy and ins >= 512 and outs % 128 == 0:
        return {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}
    return {"BM": 128, "BN": 64, "BK": 64, "num_warps": 8 if gelu else 4, "num_stages": 2}


@cache
def _roomy(device: torch.device) -> bool:
    """Whether a device's programs have room for large tiles."""
    return device.type == "cuda" and torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 200_000
