"""The yardstick of everything that asks a model often: how fast it can answer at all."""

import time

import torch

from vitrail.model import View

SHARE = 0.5
"""Seconds that each setting is measured for, at least."""


def roofline(view: View, *, tokens: int | None = None, compile_too: bool = False) -> float:
    """Plain forward passes a second through a transformer's blocks and head, at the view's precision; the best found.

    ``passes made / seconds taken / roofline`` is the share of what the hardware can do that a method reaches.

    Args:
        view: A model with token blocks.
        tokens: Tokens an image, prefix included, where fewer than the model's own are asked about.
        compile_too: Also try the model's own blocks compiled, which takes a minute.

    Example:
        >>> from vitrail import load
        >>> roofline(load("demo"), tokens=19) > 1
        True
    """
    layout = view.layout(view.size)
    count = tokens or layout.tokens
    sizes = (512, 2048) if view.device.type == "cuda" else (32,)
    best = 0.0
    ways = [(view.fused, view.compiled), *([(False, True)] if compile_too else [])]
    for fused, compiled in ways:
        with view.using(None, compiled, fused), view.still(), torch.no_grad():
            width = view.embed(view.blank(view.size)).shape[-1]
            for size in sizes:
                given = torch.randn(size, count, width, device=view.device, dtype=view.dtype)
                view.answer(given, layout, plain=True)  # warms up, and compiles
                _wait(view.device)
                made, start = 0, time.perf_counter()
                while time.perf_counter() - start < SHARE:
                    view.answer(given, layout, plain=True)
                    _wait(view.device)
                    made += size
                best = max(best, made / (time.perf_counter() - start))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
