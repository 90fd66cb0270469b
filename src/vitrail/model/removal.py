"""What a model answers when patches are taken away: two forms that agree, one fast, one that works on every model."""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.model.anatomy import Layout
from vitrail.model.tap import Tap

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
        keep: (B, N) boolean, True for the patches that stay.
        layout: The layout the tokens were embedded with.
        form: How the tokens are taken away.

    Returns:
        (B, classes) float32.
    """
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
    view.meter.forwards += len(tokens)
    if form == "mask":
        with Tap(hidden=~stays):
            tokens = view.encode(tokens, layout)[-1]
    logits = torch.empty(len(tokens), view.num_classes, device=tokens.device, dtype=torch.float32)
    for count in counts.unique().tolist():  # images with as many tokens left go together
        rows = (counts == count).nonzero().squeeze(1)
        index = stays[rows].nonzero()[:, 1].view(len(rows), count, 1)
        left = tokens[rows].gather(1, index.expand(-1, -1, tokens.shape[-1]))
        if form == "gather":
            left = view.encode(left, layout)[-1]
        logits[rows] = view.head(left, layout).float()
    return logits


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
