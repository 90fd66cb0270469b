"""Attention methods as the papers write them: whole matrices, one layer after the other, one image, one head at a time.

The attention comes from timm's own open path (``fused_attn = False``), read by a hook, so nothing here shares code with
vitrail's tap.
"""

import copy
import math

import torch
from torch import Tensor, nn


def read(model: nn.Module, image: Tensor, target: int) -> tuple[list[Tensor], list[Tensor]]:
    """(heads, T, T) attention of every block and the logit's gradient with respect to it, for a timm ViT."""
    model = copy.deepcopy(model)
    kept: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False

        def hook(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
            output.retain_grad()
            kept.append(output)

        block.attn.attn_drop.register_forward_hook(hook)
    model(image[None])[0, target].backward()
    return [a[0].detach() for a in kept], [a.grad[0] for a in kept]


def _patches(row: Tensor, model: nn.Module) -> Tensor:
    return row[model.num_prefix_tokens :]


def pooled(model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """An attention pool's (heads, T) attention to (1, T, D) tokens behind any block, and the (classes,) logits."""
    pool = model.attn_pool
    query = pool.q(pool.latent[0, 0])
    keys, values = pool.kv(model.norm(tokens)[0]).chunk(2, -1)
    size = len(query) // pool.num_heads
    heads = [slice(begin, begin + size) for begin in range(0, len(query), size)]
    attention = torch.stack([(keys[:, own] @ query[own] / math.sqrt(size)).softmax(0) for own in heads])
    y = pool.proj(torch.cat([a @ values[:, own] for a, own in zip(attention, heads)]))
    return attention, model.head(model.fc_norm(y + pool.mlp(pool.norm(y))))


def _read_rows(matrix: Tensor, model: nn.Module, image: Tensor) -> Tensor:
    """The class token's row, the mean of both for a distilled model, the mean of the patches' for an average-pooled
    one, the mean weighted by the pool's attention (all heads alike) for one that pools by attention."""
    if model.global_pool == "map":
        tokens = model.blocks(model.norm_pre(model._pos_embed(model.patch_embed(image[None]))))
        attention, _ = pooled(model, tokens)
        return sum(weight * row for weight, row in zip(attention.mean(0).detach(), matrix))
    if model.global_pool == "avg":
        return matrix[model.num_prefix_tokens :].mean(0)
    return matrix[:2].mean(0) if hasattr(model, "head_dist") else matrix[0]


def raw_attention(model: nn.Module, image: Tensor, target: int) -> Tensor:
    attention, _ = read(model, image, target)
    return _patches(_read_rows(attention[-1].mean(0), model, image), model)


def rollout(model: nn.Module, image: Tensor, target: int) -> Tensor:
    attention, _ = read(model, image, target)
    product = torch.eye(attention[0].shape[-1]).to(attention[0])
    for layer in attention:
        mixing = layer.mean(0) + torch.eye(layer.shape[-1]).to(layer)
        product = (mixing / mixing.sum(-1, keepdim=True)) @ product
    return _patches(_read_rows(product, model, image), model)


def genatt(model: nn.Module, image: Tensor, target: int) -> Tensor:
    attention, gradients = read(model, image, target)
    relevance = torch.eye(attention[0].shape[-1]).to(attention[0])
    for layer, gradient in zip(attention, gradients):
        step = torch.zeros_like(layer[0])
        for head in range(len(layer)):
            step += (layer[head] * gradient[head]).clamp(min=0) / len(layer)
        relevance = relevance + step @ relevance
    return _patches(_read_rows(relevance, model, image), model)
