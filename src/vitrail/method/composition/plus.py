"""PLUS and SkipPLUS: a method's layers added up, all from one pass; and the published methods that are such sums."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.events import Passes
from vitrail.fields import value
from vitrail.method.attention.rollout import AttIxG, GenAtt
from vitrail.method.base import Gradient, Method, State, register
from vitrail.method.batch import Batch
from vitrail.method.decomposition.decompx import DecompX
from vitrail.method.gradient.pixels import InputXGradient
from vitrail.method.layered import Block, Layered, block_among, block_field, check_base
from vitrail.model import Need, View

PAPER = "Mehri et al. 2024"


@register("plus", paper=PAPER, cost="as the base", needs=(Need.TOKENS,))
@dataclass(frozen=True)
class Plus(Method):
    """A method applied to the input of every block, and the maps added up.

    All layers are read from one forward and backward pass; no layer is normalised.

    Attributes:
        base: Any method with a value for every token at every layer.
    """

    base: Layered = DecompX()

    def __post_init__(self) -> None:
        check_base("plus", self.base, Layered, "a value for every token")

    def check_evidence(self, view: View) -> None:
        self.base.check_layers(view, 0, self.spec)

    def tells_classes(self) -> bool:
        return self.base.tells_classes()

    @property
    def signed(self) -> bool:
        return self.base.layers_signed

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return self.base.passes(view, size)

    def maps(self, view: View, batch: Batch) -> Tensor:
        return view.patch_map(self.base.accumulate(view, batch, 0), view.layout(batch.size))


@register("skipplus", paper=PAPER, cost="as the base", needs=(Need.TOKENS,))
@dataclass(frozen=True)
class SkipPlus(Method):
    """PLUS over the later half of the blocks only, where attributions are cleaner.

    Attributes:
        base: Any method with a value for every token at every layer.
        start: The first block taken in: counted from 0, from the end when negative, ``middle`` or ``last``; by default
            the middle one.
        compat: For an odd number of blocks the middle is rounded up (``paper``) or down (``authors``).
    """

    base: Layered = DecompX()
    start: Block | None = block_field(None, stage="render")
    compat: Literal["paper", "authors"] = value("paper", stage="render")

    def __post_init__(self) -> None:
        check_base("skipplus", self.base, Layered, "a value for every token")

    def check_evidence(self, view: View) -> None:
        self.base.check_layers(view, self._first(view.depth, view.name), self.spec)

    def tells_classes(self) -> bool:
        return self.base.tells_classes()

    @property
    def signed(self) -> bool:
        return self.base.layers_signed

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return self.base.passes(view, size)

    def search(self, view: View, batch: Batch) -> State:
        """What every block adds, from the first one taken in: `render` can begin later, not earlier."""
        first = self._first(view.depth, view.name)
        added = view.patch_map(self.base.increments(view, batch, first), view.layout(batch.size)).transpose(0, 1)
        return {"layers": added, "first": torch.full((len(batch),), first, device=added.device)}

    def search_spec(self) -> str:
        return self.spec  # where the search begins is a part of it

    def render(self, state: State) -> Tensor:
        layers, first = state["layers"], int(state["first"][0])
        start = self._first(first + layers.shape[1], "this model")
        if start < first:
            raise InputError(
                f"{self.spec} begins at block {start}, but this search began at block {first}; search with "
                f"skipplus({self.base.spec}, start={start}) or an earlier start"
            )
        return layers[:, start - first :].sum(1)

    def _first(self, depth: int, name: str) -> int:
        middle: Block = "middle" if self.compat == "paper" else depth // 2
        return block_among(middle if self.start is None else self.start, depth, name)


@register("cat", paper="Qiang et al. 2022", cost="1 forward, 1 backward", needs=(Need.TOKENS, Need.GRADIENTS))
@dataclass(frozen=True)
class CAT(Method):
    """Input x gradient of the tokens, added up over all blocks: ``plus(ixg)``.

    Attributes:
        gradient: The model's own gradient, or the frozen one.
    """

    gradient: Gradient = "true"

    @property
    def signed(self) -> bool:
        return True

    def maps(self, view: View, batch: Batch) -> Tensor:
        return Plus(InputXGradient(gradient=self.gradient)).maps(view, batch)


@register("attcat", paper="Qiang et al. 2022", cost="1 forward, 1 backward", needs=(Need.ATTENTION, Need.GRADIENTS))
@dataclass(frozen=True)
class AttCAT(Method):
    """CAT with every block weighted by the attention its tokens receive: ``plus(att_ixg)``.

    Attributes:
        compat: ``paper`` takes tokens behind each block, ``authors`` those in front of it.
        gradient: The model's own gradient, or the frozen one.
    """

    compat: Literal["paper", "authors"] = "paper"
    gradient: Gradient = "true"

    @property
    def signed(self) -> bool:
        return True

    def maps(self, view: View, batch: Batch) -> Tensor:
        return Plus(AttIxG(compat=self.compat, gradient=self.gradient)).maps(view, batch)


@register("gradsam", paper="Barkan et al. 2021", cost="1 forward, 1 backward", needs=(Need.ATTENTION, Need.GRADIENTS))
@dataclass(frozen=True)
class GradSAM(Method):
    """Attention times its positive gradient, added up over all blocks: ``plus(genatt)`` in the readout's row.

    Attributes:
        rows: Read the row of the ``readout``, or the ``mean`` over all query rows as the paper does.
        gradient: The model's own gradient, or the frozen one.
    """

    rows: Literal["readout", "mean"] = "readout"
    gradient: Gradient = "true"

    def maps(self, view: View, batch: Batch) -> Tensor:
        base = GenAtt(gradient=self.gradient)
        if self.rows == "readout":
            return Plus(base).maps(view, batch)
        matrices, _ = base.matrices(view, batch, 0)
        mean = sum(matrix.mean(1) for matrix in matrices) / len(matrices)
        assert isinstance(mean, Tensor)
        return view.patch_map(mean, view.layout(batch.size))
