"""What a model answers when patches are taken away: two forms that agree, one fast, one that works on every model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.model.anatomy.watch import Layout
from vitrail.model.rules.tap import Tap
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
        view.meter.begin(len(tokens))
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


def chosen(view: "View", token: Tensor, layout: Layout) -> Form:
    """The form that suits the model, tried at the first use; a model that suits neither is refused in a sentence."""
    if view.removes is False:
        gathers = can_gather(view, token, layout)
        view.removes = "gather" if gathers else "mask" if _can_mask(view, token, layout) else None
    if view.removes is None:
        raise InputError(
            f"patches cannot be taken away from {view.name}: its blocks mix them in other ways than by attention, or "
            "need all of them; use a method that changes pixels, such as rise or occlusion, or one that reads gradients"
        )
    return view.removes


def can_gather(view: "View", token: Tensor, layout: Layout) -> bool:
    """Whether the blocks do not mind missing tokens: tried on one image and not counted.

    What is left must answer as behind a mask. Where a mask leaves traces (talking heads add a little of every value),
    the order of the tokens must not matter.
    """
    keep = torch.arange(layout.patches, device=token.device)[None] % 2 == 0
    if _can_mask(view, token, layout):
        return _agree(view, lambda: respond(view, token, keep, layout, "mask"), _gathered(view, token, keep, layout))
    places = keep[0].nonzero()[:, 0]
    moved = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(0)).to(places.device)]
    patches = token[:, layout.prefix :]
    shuffled = torch.cat([token[:, : layout.prefix], patches.index_copy(1, places, patches[:, moved])], 1)
    return _agree(view, _gathered(view, token, keep, layout), _gathered(view, shuffled, keep, layout))


def _gathered(view: "View", token: Tensor, keep: Tensor, layout: Layout) -> Callable[[], Tensor]:
    return lambda: respond(view, token, keep, layout, "gather")


def _can_mask(view: "View", token: Tensor, layout: Layout) -> bool:
    """Whether hidden tokens leave no trace: whatever they hold, the answer must be the same."""
    keep = torch.arange(layout.patches, device=token.device)[None] % 2 == 0
    away = torch.cat([keep.new_zeros(1, layout.prefix), ~keep], 1)[..., None]
    other = torch.where(away, token.flip(2) * 2, token)
    return _agree(
        view,
        lambda: respond(view, token, keep, layout, "mask"),
        lambda: respond(view, other, keep, layout, "mask"),
    )


def _agree(view: "View", one: Callable[[], Tensor], other: Callable[[], Tensor]) -> bool:
    """Whether both ways run and give the same logits; the passes are not counted."""
    try:
        with torch.no_grad(), view.meter.apart():
            a, b = one(), other()
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, IndexError, RuntimeError, ValueError, TypeError):
        return False
    tolerance = 1e-3 if view.precision == "fp32" and view.dtype == torch.float32 else 5e-2
    return bool(torch.allclose(a, b, tolerance, tolerance))
