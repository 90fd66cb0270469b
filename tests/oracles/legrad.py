"""LeGrad for a classifier, on timm's open attention: one image, one block at a time."""

import copy

import torch
from torch import Tensor, nn

from oracles.attention import pooled


def opened(model: nn.Module, image: Tensor) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    """A copy of the model, every block's (1, heads, T, T) attention and (1, T, D) output, all in one graph."""
    model = copy.deepcopy(model)
    attention: list[Tensor] = []
    outputs: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, output: attention.append(output))
        block.register_forward_hook(lambda _, __, output: outputs.append(output))
    model(image[None])
    return model, attention, outputs


def legrad(model: nn.Module, image: Tensor, target: int, layers: int) -> Tensor:
    model, attention, outputs = opened(model, image)
    total = 0
    for a, z in list(zip(attention, outputs))[-layers:]:
        if model.global_pool == "map":
            a, logits = pooled(model, z)
            (gradient,) = torch.autograd.grad(logits[target], a, retain_graph=True)
            total = total + gradient.clamp(min=0).mean(0)
            continue
        if model.global_pool == "avg":
            mean = z[:, model.num_prefix_tokens :].mean(1)
            logits = model.head(model.fc_norm(mean))
        elif hasattr(model, "head_dist"):
            mean = model.norm(z.mean(1))
            logits = (model.head(mean) + model.head_dist(mean)) / 2
        else:
            logits = model.head(model.norm(z.mean(1)))
        (gradient,) = torch.autograd.grad(logits[0, target], a, retain_graph=True)
        total = total + gradient[0].clamp(min=0).mean((0, 1))
    return total[model.num_prefix_tokens :]
