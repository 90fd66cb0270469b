"""Transition attention maps as the paper writes them: whole matrices, one image, one step of the integral at a time."""

from torch import Tensor, nn

from oracles.attention import _patches, _read_rows, read


def integral(model: nn.Module, image: Tensor, target: int, steps: int) -> Tensor:
    """(T, T): the last attention's gradient averaged over the way, positive part, mean of the heads."""
    total = 0
    for k in range(steps):
        _, gradients = read(model, image * (k / (steps - 1)), target)
        total = total + gradients[-1]
    return (total / steps).clamp(min=0).mean(0)


def t_attn(model: nn.Module, image: Tensor, target: int, steps: int, start: int, last_twice: bool = False) -> Tensor:
    attention, _ = read(model, image, target)
    state = attention[-1].mean(0)
    last = len(attention) - 1 if last_twice else len(attention) - 2
    for layer in range(last, start - 1, -1):
        state = state @ attention[layer].mean(0) + state
    return _patches(_read_rows(state * integral(model, image, target, steps), model, image), model)
