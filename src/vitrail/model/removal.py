"""What a model answers when patches are taken away: two forms that agree, one fast, one that works on every model."""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.model.anatomy import Layout
from vitrail.model.tap import Tap
from vitrail.model.trace import full

if TYPE_CHECKING:
    from vitrail.model.view import View

Form = Literal["gather", "mask"]
"""``gather`` drops the tokens; ``mask`` hides their keys from attention, which works with position biases and rotary
embeddings too, at the price of full-length passes."""


def respond(view: "View", tokens: Tensor, keep: Tensor, layout: Layout, form: Form) -> Tensor:
    """The logits when only some patches are left; prefix tokens always stay, pooling leaves the dropped ones out.

    Args:
        view: The model.
        tokens: (B, T, D) from `View.embed`.
        keep: (B, N) boolean, True for the patches that stay; or (B, n) whole numbers, the n < N patches that stay, each
            once: as many for every image, so that nothing waits for the device to count them.
        layout: The layout the tokens were embedded with.
        form: How the tokens are taken away.

    Returns:
        (B, classes) float32 (float64 from a float64 model).
    """
    if keep.dtype == torch.long and keep.ndim == 2 and len(keep) == len(tokens) and 0 < keep.shape[1] < layout.patches:
        if form == "gather":
            return full(view.answer(_taken(tokens, keep, layout.prefix), layout))
        keep = torch.zeros(len(keep), layout.patches, dtype=torch.bool, device=keep.device).scatter_(1, keep, True)
    if keep.shape != (len(tokens), layout.patches) or keep.dtype != torch.bool:
        raise InputError(
            f"keep must be a boolean ({len(tokens)}, {layout.patches}) tensor, "
            f"but a {keep.dtype} {tuple(keep.shape)} tensor was given"
        )
    stays = torch.cat([keep.new_ones(len(keep), layout.prefix), keep], 1)
    counts = stays.sum(1)
    fewest = layout.prefix if view.readout.prefix and not view.readout.patches else layout.prefix + 1
    if int(counts.min()) < fewest:
        raise InputError(f"{view.name} pools over its patches: at least one patch must be kept for every image")
    if form == "mask":
        view.meter.forwards += len(tokens)
        with Tap(hidden=~stays):
            tokens = view.encode(tokens, layout)[-1]
    logits = torch.empty(len(tokens), view.num_classes, device=tokens.device, dtype=full(tokens).dtype)
    for count in counts.unique().tolist():  # images with as many tokens left go together
        rows = (counts == count).nonzero().squeeze(1)
        index = stays[rows].nonzero()[:, 1].view(len(rows), count, 1)
        left = tokens[rows].gather(1, index.expand(-1, -1, tokens.shape[-1]))
        logits[rows] = full(view.answer(left, layout) if form == "gather" else view.head(left, layout))
    return logits


def _taken(tokens: Tensor, patches: Tensor, prefix: int) -> Tensor:
    """(B, T, D) tokens, (B, n) patches -> (B, prefix + n, D): the prefix tokens and those patches."""
    places = torch.cat([torch.arange(prefix, device=patches.device).expand(len(patches), -1), patches + prefix], 1)
    return tokens.gather(1, places[:, :, None].expand(-1, -1, tokens.shape[-1]))


def can_gather(view: "View", token: Tensor, layout: Layout) -> bool:
    """Whether the blocks do not mind missing tokens: tried on one image, against the masked form, and not counted."""
    keep = torch.arange(layout.patches, device=token.device)[None] % 2 == 0
    forwards = view.meter.forwards
    try:
        with torch.no_grad():
            masked = respond(view, token, keep, layout, "mask")
            gathered = respond(view, token, keep, layout, "gather")
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, IndexError, RuntimeError, ValueError):
        return False
    finally:
        view.meter.forwards = forwards
    tolerance = 1e-3 if view.precision == "fp32" and view.dtype == torch.float32 else 5e-2
    return bool(torch.allclose(gathered, masked, tolerance, tolerance))
