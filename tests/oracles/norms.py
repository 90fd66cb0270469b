"""AttIN, N-Res, GlobEnc and ALTI from explicit vectors, written to be obvious.

Every layer's T[i, j], the vector token j sends to token i, is made as a whole (N, N, D) tensor, one head at a time, for
a timm VisionTransformer.
"""

import math

import torch
from torch import Tensor, nn


def _vectors(block: nn.Module, x: Tensor, bias: bool) -> Tensor:
    """(N, N, D): T[i, j] = sum over heads of alpha_ij (LN1(x_j) W_V + b_V) W_O; without biases, none of beta, b_V."""
    tokens, width = x.shape
    layer = block.attn
    heads, size = layer.num_heads, width // layer.num_heads
    normed = block.norm1(x)
    qkv = layer.qkv(normed).view(tokens, 3, heads, size)
    query, key = layer.q_norm(qkv[:, 0]), layer.k_norm(qkv[:, 1])
    weight, offset = layer.qkv.weight[2 * width :], layer.qkv.bias[2 * width :]
    if bias:
        values = normed @ weight.T + offset
    else:
        deviation = (x.var(-1, unbiased=False, keepdim=True) + block.norm1.eps).sqrt()
        values = ((x - x.mean(-1, keepdim=True)) / deviation * block.norm1.weight) @ weight.T
    found = torch.zeros(tokens, tokens, width, dtype=x.dtype)
    for h in range(heads):
        alpha = (query[:, h] @ key[:, h].T / math.sqrt(size)).softmax(-1)
        sent = values[:, h * size : (h + 1) * size] @ layer.proj.weight[:, h * size : (h + 1) * size].T
        found += alpha[:, :, None] * sent[None]
    return found


def _with_skip(block: nn.Module, x: Tensor, bias: bool) -> Tensor:
    """The vectors behind the attention: scaled, and each token's own vector added to what it sends itself."""
    parts = getattr(block.ls1, "gamma", 1.0) * _vectors(block, x, bias)
    for i in range(len(x)):
        parts[i, i] += x[i]
    return parts


def _behind_attention(block: nn.Module, x: Tensor) -> Tensor:
    return x + block.ls1(block.attn(block.norm1(x)[None])[0])


def _through_block(block: nn.Module, x: Tensor) -> Tensor:
    """GlobEnc's vectors: through LN2 with the true deviation, the MLP as the identity, LayerScale, skip connection."""
    parts = _with_skip(block, x, bias=False)
    a = _behind_attention(block, x)
    found = torch.empty_like(parts)
    for i in range(len(x)):
        deviation = (a[i].var(unbiased=False) + block.norm2.eps).sqrt()
        centred = parts[i] - parts[i].mean(-1, keepdim=True)
        found[i] = parts[i] + getattr(block.ls2, "gamma", 1.0) * (block.norm2.weight * centred / deviation)
    return found


def _alti(result: Tensor, parts: Tensor) -> Tensor:
    near = torch.zeros(parts.shape[:2], dtype=parts.dtype)
    for i in range(len(near)):
        near[i] = (result[i].abs().sum() - (result[i] - parts[i]).abs().sum(-1)).clamp_min(0)
        if near[i].sum() == 0:
            near[i, i] = 1
    return near / near.sum(-1, keepdim=True)


def matrix(name: str, block: nn.Module, x: Tensor) -> Tensor:
    """(N, N): one block's map, for (N, D) tokens that enter it."""
    if name == "attin":
        return _vectors(block, x, bias=True).norm(dim=-1)
    if name == "n_res":
        return _with_skip(block, x, bias=True).norm(dim=-1)
    if name == "globenc":
        return _through_block(block, x).norm(dim=-1)
    if name == "alti(attn)":
        return _alti(_behind_attention(block, x), _with_skip(block, x, bias=True))
    assert name == "alti(block)"
    return _alti(block(x[None])[0], _through_block(block, x))


@torch.no_grad()
def matrices(name: str, model: nn.Module, image: Tensor) -> list[Tensor]:
    """Every block's map for one (3, H, W) image."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(image[None])))[0]
    found = []
    for block in model.blocks:
        found.append(matrix(name, block, x))
        x = block(x[None])[0]
    return found


def readout(model: nn.Module, matrix: Tensor) -> Tensor:
    """(patches,): the rows the head reads, averaged."""
    prefix = model.num_prefix_tokens
    rows = matrix[prefix:].mean(0) if model.global_pool == "avg" else matrix[0]
    return rows[prefix:]


@torch.no_grad()
def rolled(name: str, model: nn.Module, image: Tensor) -> Tensor:
    """(patches,): the maps multiplied up, first layer rightmost, with AttIN's rows summing to one and half identity."""
    product = None
    for layer in matrices(name, model, image):
        if name == "attin":
            layer = 0.5 * layer / layer.sum(-1, keepdim=True) + 0.5 * torch.eye(len(layer), dtype=layer.dtype)
        product = layer if product is None else layer @ product
    return readout(model, product)
