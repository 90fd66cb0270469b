"""Relevance propagation as the papers write it: cached activations, one layer after the other, one image.

Relevance itself is handed from layer to layer here, by a formula for each layer; vitrail sends a changed gradient
through the model's own graph instead. The two share nothing but the mathematics.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles.attention import _patches, _read_rows, read


def divide(a: Tensor, b: Tensor) -> Tensor:
    shifted = b + 1e-9
    shifted = torch.where(shifted == 0, torch.full_like(b, 1e-9), shifted)
    return a / shifted * (b != 0)


def linear(layer: nn.Linear, x: Tensor, relevance: Tensor, split: bool) -> Tensor:
    """Positive parts times positive weights and negative parts times negative weights, the bias left out."""
    xp, xn = x.clamp(min=0), x.clamp(max=0)
    wp, wn = layer.weight.clamp(min=0), layer.weight.clamp(max=0)
    zp, zn = xp @ wp.T, xn @ wn.T
    if split:
        return xp * (divide(relevance, zp) @ wp) + xn * (divide(relevance, zn) @ wn)
    s = divide(relevance, zp + zn)
    return xp * (s @ wp) + xn * (s @ wn)


def add(a: Tensor, b: Tensor, relevance: Tensor, renormalise: bool) -> tuple[Tensor, Tensor]:
    s = divide(relevance, a + b)
    ra, rb = a * s, b * s
    if not renormalise:
        return ra, rb
    size, total = ra.sum().abs() + rb.sum().abs(), relevance.sum()
    return (
        ra * divide(divide(ra.sum().abs(), size) * total, ra.sum()),
        rb * divide(divide(rb.sum().abs(), size) * total, rb.sum()),
    )


def clone(x: Tensor, r1: Tensor, r2: Tensor) -> Tensor:
    return x * (divide(r1, x) + divide(r2, x))


def _inputs(model: nn.Module, image: Tensor) -> dict[nn.Module, Tensor]:
    """The input of every submodule for one image, the batch axis dropped."""
    seen: dict[nn.Module, Tensor] = {}
    handles = [
        module.register_forward_pre_hook(lambda m, args: seen.__setitem__(m, args[0][0].detach()))
        for module in model.modules()
    ]
    with torch.no_grad():
        model(image[None])
    for handle in handles:
        handle.remove()
    return seen


def _head(model: nn.Module, seen: dict[nn.Module, Tensor], target: int, split: bool) -> Tensor:
    """(T, D) relevance of the tokens that leave the last block of a timm ViT."""
    start = torch.zeros(model.num_classes, dtype=torch.float64)
    start[target] = 1
    tokens = seen[model.norm]
    out = torch.zeros_like(tokens)
    if hasattr(model, "head_dist"):
        logits = [head(seen[head]) for head in (model.head, model.head_dist)]
        for i, head in enumerate((model.head, model.head_dist)):
            out[i] = linear(head, seen[head], logits[i] * divide(start, logits[0] + logits[1]), split)
        return out
    pooled = linear(model.head, seen[model.head], start, split)
    if model.global_pool == "avg":
        patches = tokens[model.num_prefix_tokens :]
        out[model.num_prefix_tokens :] = patches / len(patches) * pooled / patches.mean(0)
    else:
        out[0] = pooled
    return out


def propagate(model: nn.Module, image: Tensor, target: int, rules: str) -> tuple[list[Tensor], list[Tensor]]:
    """(heads, T, T) attention relevance of every block, and the (T, D) relevance of every block's input tokens."""
    model = copy.deepcopy(model)
    for block in model.blocks:
        block.attn.fused_attn = False
    split, renormalise = rules == "original", rules == "conserving"
    seen = _inputs(model, image)
    relevance = _head(model, seen, target, split)
    # The stabiliser of 1e-9 is part of the result (up to 8e-6 of it): here it also stands behind the last block's sum.
    relevance = clone(seen[model.norm], relevance, torch.zeros_like(relevance))
    attentions, tokens = [], []
    for block in reversed(model.blocks):
        x, middle, attn, mlp = seen[block], seen[block.norm2], block.attn, block.mlp
        branch = block.ls2(mlp(block.norm2(middle[None])))[0]
        skip, r = add(middle, branch, relevance, renormalise)
        r = linear(mlp.fc2, seen[mlp.fc2], r, split)
        r = linear(mlp.fc1, seen[mlp.fc1], r, split)
        relevance = clone(middle, skip, r)

        skip, r = add(x, middle - x, relevance, renormalise)
        r = linear(attn.proj, seen[attn.proj], r, split)
        count, heads = len(x), attn.num_heads
        mixed = r.view(count, heads, -1).permute(1, 0, 2)
        q, k, v = attn.qkv(seen[attn.qkv]).view(count, 3, heads, -1).permute(1, 2, 0, 3)
        probabilities = seen[attn.attn_drop]
        s = divide(mixed, probabilities @ v)
        ra, rv = probabilities * (s @ v.transpose(1, 2)) / 2, v * (probabilities.transpose(1, 2) @ s) / 2
        s = divide(ra, q @ k.transpose(1, 2))
        rq, rk = q * (s @ k) / 2, k * (s.transpose(1, 2) @ q) / 2
        r = torch.stack([rq, rk, rv]).permute(2, 0, 1, 3).reshape(count, -1)
        relevance = clone(x, skip, linear(attn.qkv, seen[attn.qkv], r, split))
        attentions.insert(0, ra.detach())
        tokens.insert(0, relevance.detach())
    return attentions, tokens


def t_attr(model: nn.Module, image: Tensor, target: int, normalise: bool = False) -> Tensor:
    relevances, _ = propagate(model, image, target, "conserving")
    _, gradients = read(model, image, target)
    eye = torch.eye(relevances[0].shape[-1], dtype=torch.float64)
    product = eye
    for relevance, gradient in zip(relevances, gradients):
        mixing = (gradient * relevance).clamp(min=0).mean(0) + eye
        product = (mixing / mixing.sum(-1, keepdim=True) if normalise else mixing) @ product
    return _patches(_read_rows(product if normalise else product - eye, model, image), model)


def partial_lrp(model: nn.Module, image: Tensor, target: int) -> Tensor:
    relevances, _ = propagate(model, image, target, "original")
    return _patches(_read_rows(relevances[-1].clamp(min=0).mean(0), model, image), model)


def lrp_tokens(model: nn.Module, image: Tensor, target: int, rules: str = "original") -> Tensor:
    return _patches(propagate(model, image, target, rules)[1][0].sum(-1), model)


def lrp_pixels(model: nn.Module, image: Tensor, target: int) -> Tensor:
    """From the tokens of a plain ViT, past the position embedding, through the patch embedding by z^B."""
    tokens = propagate(model, image, target, "original")[1][0]
    conv = model.patch_embed.proj
    patches = conv(image[None])
    flat = patches.flatten(2)[0].T
    _, relevance = add(model.pos_embed[0, 1:], flat, tokens[1:], renormalise=False)
    return box(conv, conv.weight, image, relevance.T.view_as(patches[0]))


def box(conv: nn.Conv2d, weight: Tensor, image: Tensor, relevance: Tensor) -> Tensor:
    """(H, W) by z^B, written as a gradient of the three convolutions."""
    plus, minus = weight.clamp(min=0), weight.clamp(max=0)
    x = image[None]
    low, high = torch.full_like(x, float(x.min())), torch.full_like(x, float(x.max()))
    settings = {"stride": conv.stride, "padding": conv.padding}
    z = F.conv2d(x, weight, **settings) - F.conv2d(low, plus, **settings) - F.conv2d(high, minus, **settings) + 1e-9
    s = relevance[None] / z

    def back(kernel: Tensor) -> Tensor:
        return torch.nn.grad.conv2d_input(x.shape, kernel, s, **settings)

    return (x * back(weight) - low * back(plus) - high * back(minus))[0].sum(0).detach()


def cnn(model: nn.Sequential, image: Tensor, target: int, entry: str, epsilon: float) -> Tensor:
    """Composite LRP of conv, norm, relu, conv, norm, relu, pool, flatten, dense: matrices, no convolutions."""
    seen = _inputs(model, image)
    conv1, norm1, _, conv2, norm2, _, _, _, dense = model
    x = seen[dense]
    z = dense(x)
    s = torch.zeros_like(z)
    s[target] = 1 / (z[target] + epsilon * torch.sign(z[target]))
    pooled = x * (s @ dense.weight)
    maps = seen[model[6]]
    relevance = maps / maps[0].numel() * (pooled / torch.where(x == 0, 1, x))[:, None, None]

    def folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
        return conv.weight * (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None, None, None]

    def matrix(conv: nn.Conv2d, weight: Tensor, shape: torch.Size) -> Tensor:
        """The convolution as one (outputs, inputs) matrix."""
        units = torch.eye(shape.numel(), dtype=torch.float64).view(-1, *shape)
        return F.conv2d(units, weight, None, conv.stride, conv.padding).flatten(1).T

    inner = seen[conv2]
    w = matrix(conv2, folded(conv2, norm2), inner.shape)
    x, wp, wn = inner.flatten(), w.clamp(min=0), w.clamp(max=0)
    xp, xn = x.clamp(min=0), x.clamp(max=0)
    s = divide(relevance.flatten(), wp @ xp + wn @ xn)
    relevance = (xp * (wp.T @ s) + xn * (wn.T @ s)).view(inner.shape)
    if entry == "box":
        return box(conv1, folded(conv1, norm1), image, relevance)
    w = matrix(conv1, folded(conv1, norm1), image.shape)
    x = image.flatten()
    if entry == "flat":
        w = matrix(conv1, torch.ones_like(conv1.weight), image.shape)
        found = w.T @ divide(relevance.flatten(), w.sum(1))
    else:
        wp, wn, xp, xn = w.clamp(min=0), w.clamp(max=0), x.clamp(min=0), x.clamp(max=0)
        s = divide(relevance.flatten(), wp @ xp + wn @ xn)
        found = xp * (wp.T @ s) + xn * (wn.T @ s)
    return found.view(image.shape).sum(0).detach()
