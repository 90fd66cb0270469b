"""The way through the blocks: as the model has them, compiled, or by kernels of our own.

The last block is computed for the tokens that the head reads alone, where that is possible.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitrail.model.anatomy import form as blockform
from vitrail.model.anatomy.form import BlockForm
from vitrail.model.anatomy.watch import Layout
from vitrail.model.kernels import choose
from vitrail.model.kernels.choose import Fused
from vitrail.model.trace import Precision, first_of

if TYPE_CHECKING:
    from vitrail.model.view import View

Extras = Sequence[tuple[tuple[Any, ...], dict[str, Any]]]


class Passage:
    """What is known of a view's blocks, found at their first use and anew when they change.

    The view is given at each call and not kept: it has this, and would hold itself in memory otherwise.

    Attributes:
        fused: The blocks that our kernels were tried on, by number, whether whole, and precision; None where they
            do not fit.
    """

    def __init__(self) -> None:
        self.fused: dict[tuple[object, ...], tuple[object, Fused | None]] = {}
        self._short: tuple[object, BlockForm | None] = (None, None)
        self._whole: Callable[..., Any] | None = None

    def whole(self, model: nn.Module) -> Callable[..., Any]:
        """A model without blocks, compiled in one piece; for passes without gradients."""
        if self._whole is None:
            self._whole = torch.compile(model)
        return self._whole

    def through(self, view: "View", blocks: Sequence[nn.Module], tokens: Tensor, layout: Layout, plain: bool) -> Tensor:
        """(B, T, D) tokens that enter the first block -> those that leave the last, or those of them the head reads.

        Args:
            view: The view, not yet held still: inside, gradients are possible again.
            blocks: Its blocks.
            tokens: All of the layout's, or fewer.
            layout: The layout they were embedded with.
            plain: Let the last block give every token.
        """
        fuses = self.fuses(view)
        with view.still():
            last = None if plain else self.last_block(view, blocks[-1], tokens.shape[-1], layout)
            if fuses:
                return self._fused_chain(view, blocks, tokens, layout, last)
            run: Callable[..., Tensor] = chain if last is None else short_chain
            run = compiled(run) if view.compiled else run
            return run(tokens, blocks, layout.extras) if last is None else run(tokens, blocks[:-1], layout.extras, last)

    def last_block(self, view: "View", block: nn.Module, width: int, layout: Layout) -> BlockForm | None:
        """The last block for the prefix tokens alone, where that is all the head reads."""
        if view.readout.patches or view.readout.attention or layout.prefix == 0:
            return None
        stamp = blockform.stamp_of(block, layout.extras[-1], layout.prefix)
        if stamp is None:
            return None
        if self._short[0] != stamp:
            self._short = (stamp, blockform.find_short(view, layout, width))
        return self._short[1]

    def fuses(self, view: "View") -> bool:
        """Whether blocks are computed by our kernels at the moment, see `vitrail.model.kernels.choose`."""
        foreign = view.precision == "fp32" and torch.is_autocast_enabled(view.device.type)  # the user's own autocast
        allowed = view.fused and view.precision in choose.NEAR and not foreign and not torch.is_grad_enabled()
        if not allowed or view.dtype != torch.float32 or view.blocks is None or not choose.can_fuse(view.device):
            return False
        if not all(map(blockform.takes_tokens_alone, view.layout(view.size).extras)):
            return False
        tried = [found for (*_, precision), (_, found) in self.fused.items() if precision == view.precision]
        return not tried or any(found is not None for found in tried)  # else the blocks are of another form

    @torch.no_grad()
    def _fused_chain(
        self, view: "View", blocks: Sequence[nn.Module], tokens: Tensor, layout: Layout, last: BlockForm | None
    ) -> Tensor:
        """The blocks one after another, each by our kernels if it can be, else as it is."""
        branch = None
        with choose.at(view.device):
            for i, (block, extras) in enumerate(zip(blocks, layout.extras)):
                short = last if i == len(blocks) - 1 else None
                fast = self._fused_block(i, block, view.precision, tokens, layout, short)
                if fast is not None:
                    tokens, branch = fast(tokens, branch)
                    continue
                tokens, branch = choose.settled(tokens, branch), None
                with view.calculating():
                    tokens = chain(tokens, [block], [extras]) if short is None else short(tokens)
        return choose.settled(tokens, branch)

    def _fused_block(
        self, i: int, block: nn.Module, precision: Precision, tokens: Tensor, layout: Layout, short: BlockForm | None
    ) -> Fused | None:
        """A block, or its short form, by our kernels."""
        extras = layout.extras[i]
        stamp = blockform.stamp_of(block, extras, layout.prefix)
        if stamp is None:
            return None
        key = (i, short is None, precision)
        if self.fused.get(key, (None,))[0] != stamp:
            form = short or blockform.find_form(block, extras, layout.prefix, tokens.shape[-1])
            own = short or partial(chain, blocks=[block], extras=[extras])
            found = None if form is None else choose.find_fused(form, precision, tokens[:2], own)
            self.fused[key] = (stamp, found)
        return self.fused[key][1]


def chain(tokens: Tensor, blocks: Sequence[nn.Module], extras: Extras) -> Tensor:
    """The blocks one after another."""
    for block, (args, kwargs) in zip(blocks, extras):
        tokens = first_of(block(tokens, *args, **kwargs))
    return tokens


def short_chain(tokens: Tensor, blocks: Sequence[nn.Module], extras: Extras, last: BlockForm) -> Tensor:
    """All blocks but the last, and that one for the prefix tokens alone.

    A function of its own, because torch compiles each for a few cases only before it gives up.
    """
    found: Tensor = last(chain(tokens, blocks, extras))
    return found


@cache
def compiled(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same, through `torch.compile`: worth its minute of compiling for many thousand passes."""
    found: Callable[..., Tensor] = torch.compile(run)
    return found
