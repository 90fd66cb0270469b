"""InFlow as a product of whole matrices, on timm's open attention: one image, one block at a time."""

import copy

import torch
from torch import Tensor, nn

from oracles.attention import _patches, _read_rows, pooled, read
from oracles.biattn import head_shares
from oracles.legrad import opened


def _parts(model: nn.Module, image: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(T,) lengths of a block's input, its attention branch, the sum of both, and its MLP branch."""
    model = copy.deepcopy(model)
    block, seen = model.blocks[layer], {}
    block.register_forward_pre_hook(lambda _, args: seen.update(z=args[0][0]))
    block.ls1.register_forward_hook(lambda _, __, output: seen.update(a=output[0]))
    block.ls2.register_forward_hook(lambda _, __, output: seen.update(m=output[0]))
    with torch.no_grad():
        model(image[None])
    z, a, m = seen["z"], seen["a"], seen["m"]
    return z.norm(dim=-1), a.norm(dim=-1), (z + a).norm(dim=-1), m.norm(dim=-1)


def inflow(model: nn.Module, image: Tensor, target: int) -> Tensor:
    attention, gradients = read(model, image, target)
    open_model, live, outputs = opened(model, image)
    product = torch.eye(attention[0].shape[-1]).to(attention[0])
    for layer, (a, g) in enumerate(zip(attention, gradients)):
        q = torch.stack([share * head for share, head in zip(head_shares(a, g), a)]).max(0).values
        state = outputs[layer]
        if model.global_pool == "map":
            logits = pooled(open_model, state)[1][None]
        elif model.global_pool == "avg":
            logits = open_model.head(open_model.fc_norm(state[:, model.num_prefix_tokens :].mean(1)))
        elif hasattr(model, "head_dist"):
            mean = open_model.norm(state).mean(1)
            logits = (open_model.head(mean) + open_model.head_dist(mean)) / 2
        else:
            logits = open_model.head(open_model.norm(state).mean(1))
        (own,) = torch.autograd.grad(logits[0, target], live[layer], retain_graph=True)
        q = (own[0].mean(0) * q).clamp(min=0)
        z, branch, r, m = _parts(model, image, layer)
        first = q @ torch.diag(branch / (z + branch)) + torch.diag(z / (z + branch))
        w_m, w_r = m / (r + m), r / (r + m)
        rho = (w_m / w_r) / (w_m / w_r).sum()
        flow = first @ torch.diag(rho * w_m + w_r)
        product = (flow / flow.sum(-1, keepdim=True)) @ product
    return _patches(_read_rows(product, model, image), model)
