"""Methods that speak at every layer: what PLUS, SkipPLUS and rollout are built from."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.fields import Stage, number, value
from vitrail.method.base import METHODS, Method
from vitrail.method.batch import Batch
from vitrail.model import Rule, View, full

Block = int | Literal["middle", "last"]
"""A block of a model of any depth: counted from 0, from the end when negative, or by a word."""


DEEPEST = 1000
"""Blocks that no model has more of."""


def alone(default: Any, *but: str, stage: Stage = "search") -> Any:
    """A field that counts where a method speaks alone; compositions read its layers without it, and refuse it.

    Args:
        default: The field's default.
        but: Compositions that read it all the same.
        stage: ``render`` for what only the cheap half of the method reads.
    """
    return value(default, alone=True, but=but, stage=stage)


def block_field(default: Block | None, *, alone: bool = False, stage: Stage = "search") -> Any:
    """A field that names a block.

    Args:
        default: The field's default.
        alone: Whether it counts only where a method speaks alone, as with `alone`.
        stage: Which half of a method reads it.
    """
    return number(default, low=-DEEPEST, high=DEEPEST - 1, alone=alone, but=(), stage=stage)


def check_base(name: str, base: Method, kind: type, what: str) -> None:
    """Refuse a base method that lacks what a composition builds on, or that sets a field which is not read there.

    Args:
        name: The composition.
        base: What it holds.
        kind: What that must be.
        what: The same in words.
    """
    if not isinstance(base, kind):
        able = [other for other, cls in sorted(METHODS.items()) if issubclass(cls, kind)]
        raise InputError(
            f"{name} needs a method with {what} at every layer, which {base.id} is not; use {', '.join(able)}"
        )
    for field in dataclasses.fields(base):
        said = getattr(base, field.name)
        if field.metadata.get("alone") and said != field.default and name not in field.metadata["but"]:
            taker = "rollout" if name == "rollout" else "skipplus"
            other = f", or write {taker}({base.id}, start={said!r})" if field.name == "start" else ""
            raise InputError(
                f"{name} reads {base.id} at every layer, where {field.name}={said!r} says nothing; leave it out{other}"
            )


def block_of(block: Block, view: View, field: str = "start") -> int:
    """The block a field means, counted from 0.

    Args:
        block: What the field says; ``middle`` is half of the depth, rounded up.
        view: The model.
        field: Its name, for the error message.
    """
    return block_among(block, view.depth, view.name, field)


def block_among(block: Block, depth: int, name: str, field: str = "start") -> int:
    """The same, of a model of so many blocks that is called so."""
    words = {"middle": min(math.ceil(depth / 2), depth - 1), "last": depth - 1}
    found = words.get(block, depth) if isinstance(block, str) else block
    if not -depth <= found < depth:
        raise InputError(
            f"{field} must be 0 to {depth - 1}, -{depth} to -1 (counted from the end), middle or last on "
            f"{name}, which has {depth} blocks, but {block} was given"
        )
    return found % depth


def check_start(start: int, view: View) -> None:
    """Refuse a start layer the model does not have; those that count from the end are resolved by `block_of`."""
    if not 0 <= start < view.depth:
        raise InputError(f"the start layer must be 0 to {view.depth - 1} on {view.name}, but {start} was given")


def states_and_gradients(
    view: View, batch: Batch, start: int, rule: Rule, *, wide: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """The (B, T, D) tokens from block ``start``'s input to the last block's output, and their gradients."""
    check_start(start, view)
    trace = view.trace(batch.images, rule=rule, start=start, wide=wide)
    states = trace.states[start:]
    gradients = view.gradient(batch.learn(trace.logits).score(trace.logits), states)
    return [full(state.detach()) for state in states], [full(gradient) for gradient in gradients]


def products(view: View, batch: Batch, states: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """(layers, B, T): tokens times what they are weighted with, their channels added up; what cancels is remembered."""
    patches, found = view.layout(batch.size).patches, []
    for state, gradient in zip(states, gradients):
        terms = state * gradient
        batch.rounded(terms[:, -patches:])
        found.append(terms.sum(-1))
    return torch.stack(found)


def ignores(view: View, block: int, change: Callable[[Tensor], Tensor]) -> bool:
    """Whether a change of the patch tokens that enter a block changes no answer: asked about one picture of noise."""
    layout = view.layout(view.size)
    noise = torch.randn(1, 3, *view.size, generator=torch.Generator().manual_seed(0))
    with view.still(), torch.no_grad(), torch.autocast(view.device.type, enabled=False):
        tokens = view.encode(view.embed(noise.to(view.device, view.dtype)), layout, stop=block)[-1]
        changed = torch.cat([tokens[:, : layout.prefix], change(tokens[:, layout.prefix :])], 1)
        before, after = (full(view.head(view.encode(x, layout, start=block)[-1], layout)) for x in (tokens, changed))
    return bool((before - after).abs().max() <= 1e-3 * before.std())


def check_length(view: View, block: int, asked: str, base: str) -> None:
    """Refuse products of tokens and their true gradients from the block on that patches enter by a norm alone.

    There the answer does not depend on how long a patch's vector is: its products with its gradient add up to zero.
    """
    if block == view.depth - 1 and ignores(view, block, lambda patches: 1.5 * patches):
        raise InputError(
            f"{asked} is zero on {view.name}, whatever the picture: the head reads no patch, and patches enter the "
            f"last block through a norm alone, which ignores their length; begin earlier, or use "
            f"{base}(gradient=frozen)"
        )


def weighted(weights: Tensor, matrix: Tensor) -> Tensor:
    """(B, K) weights of (B, K, T) rows -> (B, T)."""
    return (weights[:, None].to(matrix) @ matrix)[:, 0]


@dataclass(frozen=True)
class Layered(Method):
    """A method with a value for every token at every layer, all read from one pass."""

    @property
    def layers_signed(self) -> bool:
        """The same as `signed`, of the values of its layers."""
        return self.signed

    @abstractmethod
    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        """(layers, B, T): the token values of the blocks from ``start`` on; A(f_l)(x_l) in the notation of PLUS."""

    def check_layers(self, view: View, start: int, composition: str) -> None:
        """Refuse layers that are zero by construction, whatever the picture; most methods have none."""

    def increments(self, view: View, batch: Batch, start: int) -> Tensor:
        """(layers, B, T): what each block from ``start`` on adds to the sum of PLUS; no layer is normalised."""
        return self.layers(view, batch, start)

    def accumulate(self, view: View, batch: Batch, start: int) -> Tensor:
        """(B, T): the sum PLUS takes over the blocks from ``start`` on."""
        return self.increments(view, batch, start).sum(0)


@dataclass(frozen=True)
class Mixing(Layered):
    """A method with a (to, from) matrix for every layer: what each token took from each other one.

    Attributes:
        identity: Whether rollout must add the skip connection, because the matrix does not hold it.
        normalise: Whether rollout makes the rows sum to one.
    """

    identity: ClassVar[bool]
    normalise: ClassVar[bool]

    @abstractmethod
    def matrices(self, view: View, batch: Batch, start: int) -> tuple[list[Tensor], Tensor]:
        """One (B, T, T) matrix for each block from ``start`` on, and the readout's (B, T) row."""

    def layers(self, view: View, batch: Batch, start: int) -> Tensor:
        matrices, row = self.matrices(view, batch, start)
        return torch.stack([weighted(row, matrix) for matrix in matrices])

    def rolled(self, view: View, batch: Batch, start: int) -> Tensor:
        """(B, T): the readout's row of the product over the layers."""
        matrices, row = self.matrices(view, batch, start)
        # Only one row of the product is wanted: multiply a vector through, last layer first.
        for matrix in reversed(matrices):
            if self.normalise:
                row = row / (matrix.sum(-1) + float(self.identity))
            taken = weighted(row, matrix)
            row = taken + row if self.identity else taken
        return row
