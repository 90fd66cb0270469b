"""DecompX with its biases shared out (Modarressi et al. 2023), row by row, for a timm VisionTransformer.

The order of a pre-norm block: beta1 behind LN1; the attention's whole bias behind LayerScale and skip connection; beta2
behind LN2; b1 behind fc1; the tangent's offset behind the activation; b2 behind fc2 and LayerScale, before the skip
connection. What the norms and the head behind the blocks add is shared out last, as one number.
"""

import math

import torch
from torch import Tensor, nn


def _weights(parts: Tensor, bias: Tensor, mode: str) -> Tensor:
    """(N,) weights for the (N, D) parts of one token."""
    lengths = [float(part.norm()) for part in parts]
    dots = [float(part @ bias) for part in parts]
    if mode == "cls":
        return torch.eye(len(parts), dtype=parts.dtype)[0]
    found = {
        "absdot": [abs(dot) for dot in dots],
        "dot": dots,
        "abssim": [abs(dot) / length / float(bias.norm()) if length else 0.0 for dot, length in zip(dots, lengths)],
        "norm": lengths,
        "equal": [1.0 if length else 0.0 for length in lengths],
    }[mode]
    weights = torch.tensor(found, dtype=parts.dtype)
    return weights / weights.sum()


def _share(parts: Tensor, bias: Tensor, mode: str) -> Tensor:
    """(N, N, D) parts with a (D,) bias, or one a row, added in proportion."""
    if mode == "none":
        return parts
    rows = bias if bias.ndim == 2 else bias.expand(len(parts), -1)
    return torch.stack([row + _weights(row, b, mode)[:, None] * b[None] for row, b in zip(parts, rows)])


def _norm(parts: Tensor, true: Tensor, layer: nn.Module) -> Tensor:
    if isinstance(layer, nn.Identity):
        return parts
    deviation = (true.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt()
    return (parts - parts.mean(-1, keepdim=True)) / deviation[:, None] * layer.weight


def _attention(parts: Tensor, normed: Tensor, layer: nn.Module) -> Tensor:
    tokens, width = normed.shape
    heads, size = layer.num_heads, width // layer.num_heads
    qkv = layer.qkv(normed).view(tokens, 3, heads, size)
    query, key = layer.q_norm(qkv[:, 0]), layer.k_norm(qkv[:, 1])
    mixed = torch.zeros_like(parts)
    for h in range(heads):
        alpha = (query[:, h] @ key[:, h].T / math.sqrt(size)).softmax(-1)
        piece = slice(h * size, (h + 1) * size)
        values = parts @ layer.qkv.weight[2 * width :][piece].T @ layer.proj.weight[:, piece].T
        mixed += torch.einsum("ik,kjd->ijd", alpha, values)
    return mixed


def _mlp(parts: Tensor, normed: Tensor, layer: nn.Module, mode: str, activation: str) -> Tensor:
    h = layer.fc1(normed)
    parts = _share(parts @ layer.fc1.weight.T, layer.fc1.bias, mode)
    phi = 0.5 * (1 + torch.erf(h / math.sqrt(2)))
    if activation == "zo":
        return parts * phi[:, None] @ layer.fc2.weight.T
    slope = phi + h * torch.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    return _share(parts * slope[:, None], h * phi - h * slope, mode) @ layer.fc2.weight.T


@torch.no_grad()
def decompx(model: nn.Module, image: Tensor, target: int, start: int, mode: str, activation: str) -> Tensor:
    """(tokens,) shares in the logit of ``target``, prefix tokens included, for one (3, H, W) image."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(image[None])))[0]
    for block in model.blocks[:start]:
        x = block(x[None])[0]
    parts = torch.diag_embed(x.T).permute(1, 2, 0).contiguous()
    for block in model.blocks[start:]:
        gamma1, gamma2 = getattr(block.ls1, "gamma", 1.0), getattr(block.ls2, "gamma", 1.0)
        normed = block.norm1(x)
        inner = _share(_norm(parts, x, block.norm1), block.norm1.bias, mode)
        width = x.shape[1]
        bias = gamma1 * (block.attn.qkv.bias[2 * width :] @ block.attn.proj.weight.T + block.attn.proj.bias)
        parts = _share(parts + gamma1 * _attention(inner, normed, block.attn), bias, mode)
        x = x + block.ls1(block.attn(normed[None])[0])
        inner = _share(_norm(parts, x, block.norm2), block.norm2.bias, mode)
        branch = gamma2 * _mlp(inner, block.norm2(x), block.mlp, mode, activation)
        parts = parts + _share(branch, gamma2 * block.mlp.fc2.bias, mode)
        x = x + block.ls2(block.mlp(block.norm2(x)[None])[0])
    prefix = model.num_prefix_tokens
    parts, x = _norm(parts, x, model.norm), model.norm(x)
    if model.global_pool == "avg":
        pooled, true = parts[prefix:].mean(0), x[prefix:].mean(0)
    else:
        pooled, true = parts[0], x[0]
    pooled = _norm(pooled[None], true[None], model.fc_norm)[0]
    shares = pooled @ model.head.weight[target]
    rest = model(image[None])[0, target] - shares.sum()
    return _share(shares[None, :, None], rest[None], mode)[0, :, 0]
