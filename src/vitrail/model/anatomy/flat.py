"""A block that takes its tokens as a square, (batch, rows, columns, channels), seen as one that takes them in a row."""

from typing import Any

from torch import Tensor, nn

from vitrail.model.trace import first_of


class Flat(nn.Module):
    """The block itself, called with (batch, tokens, channels) and the grid.

    Args:
        block: A block from (batch, rows, columns, channels) to the same.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, tokens: Tensor, *args: Any, grid: tuple[int, int], **kwargs: Any) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return in_a_row(first_of(self.block(tokens.unflatten(1, grid), *args, **kwargs)))


def own(block: nn.Module) -> nn.Module:
    """The model's own module."""
    return block.block if isinstance(block, Flat) else block


def in_a_row(tokens: Tensor) -> Tensor:
    """(B, rows, columns, D) -> (B, T, D); what is in a row stays as it is."""
    return tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
