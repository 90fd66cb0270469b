"""Bi-Attn as the paper writes it: whole matrices, one image, one head at a time."""

import copy

import torch
from torch import Tensor, nn

from oracles.attention import _patches, _read_rows, read
from oracles.transition import integral


def head_shares(attention: Tensor, gradient: Tensor) -> list[float]:
    importance = [float((a.T @ g).abs().mean()) for a, g in zip(attention, gradient)]
    return [i / sum(importance) for i in importance]


def bt_h(model: nn.Module, image: Tensor, target: int, steps: int, start: int) -> Tensor:
    attention, gradients = read(model, image, target)
    relevance = torch.eye(attention[0].shape[-1]).to(attention[0])
    for layer, gradient in list(zip(attention, gradients))[start:]:
        mixing = sum(share * head for share, head in zip(head_shares(layer, gradient), layer))
        relevance = relevance + mixing @ relevance
    return _patches(_read_rows(relevance * integral(model, image, target, steps), model, image), model)


def bt_t(model: nn.Module, image: Tensor, target: int, steps: int, start: int) -> Tensor:
    attention, _ = read(model, image, target)
    relevance = torch.eye(attention[0].shape[-1]).to(attention[0])
    for layer in range(start, len(attention)):
        entering, projected = _projected_values(model, image, layer)
        m = torch.diag(projected.norm(dim=-1) / entering.norm(dim=-1))
        relevance = relevance + attention[layer].mean(0) @ m @ relevance
    return _patches(_read_rows(relevance.abs() * integral(model, image, target, steps), model, image), model)


def _projected_values(model: nn.Module, image: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """(T, D) tokens that enter a block, and their values behind the projection's weight."""
    model = copy.deepcopy(model)
    seen = {}
    block = model.blocks[layer]
    block.register_forward_pre_hook(lambda _, args: seen.update(z=args[0][0]))
    block.attn.qkv.register_forward_hook(lambda _, __, output: seen.update(qkv=output[0]))
    with torch.no_grad():
        model(image[None])
        values = seen["qkv"].chunk(3, -1)[2]  # heads side by side, as the projection reads them
        return seen["z"], values @ block.attn.proj.weight.T
