"""All of a model that must be as it was when vitrail is done with it."""

import torch
from torch import Tensor, nn


def state_of(model: nn.Module) -> tuple[object, ...]:
    """All that must not change."""
    hooks = tuple(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    return (
        tuple(m.training for m in model.modules()),
        tuple(p.requires_grad for p in model.parameters()),
        tuple(p.grad is None for p in model.parameters()),
        hooks,
        tuple("forward" in vars(m) for m in model.modules()),
        tuple(_numbers(p) for p in model.parameters()),
        tuple((name, id(b), _numbers(b)) for name, b in model.named_buffers()),
        bytes(torch.get_rng_state().numpy()),
        torch.is_grad_enabled(),
    )


def _numbers(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
