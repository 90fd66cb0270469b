"""What a model can give to methods: gradients, blocks in parts, activations. Found out when it is first asked for."""

from typing import TYPE_CHECKING

import torch

from vitrail.model.anatomy import check
from vitrail.model.anatomy.activations import Activations, activations
from vitrail.model.anatomy.parts import BlockParts, find_parts
from vitrail.model.trace import Need, version_of

if TYPE_CHECKING:
    from vitrail.model.view import View


class Offers:
    """What is known of a view's model. The view is given at each call and not kept: it has this."""

    def __init__(self) -> None:
        self._differentiable: bool | None = None
        self._parts: tuple[object, tuple[BlockParts, ...] | None] = (None, None)
        self._activations: Activations | None = None

    def __reduce__(self) -> tuple[type["Offers"], tuple[()]]:
        return Offers, ()  # a copy's weights lie elsewhere

    def gives(self, view: "View", need: Need) -> bool:
        """Whether a method can have what it needs; the blocks' parts are looked for only where they are asked for."""
        if need is Need.GRADIENTS:
            return self.differentiable(view)
        if need is Need.PARTS:
            return self.parts(view) is not None
        if need is Need.ATTENTION:
            return view.blocks is not None and view.blocks.attention
        if need is Need.TOKENS:
            return view.blocks is not None
        if need is Need.RELU:
            seen = self.activations(view)
            return seen.rectifiers > 0 and not seen.foreign
        return view.blocks is not None or view.features is not None

    def differentiable(self, view: "View") -> bool:
        """Whether a gradient comes back from the answer."""
        if self._differentiable is None:
            with view.still():
                self._differentiable = check.gives_gradient(view)
        return self._differentiable

    def parts(self, view: "View") -> tuple[BlockParts, ...] | None:
        """The linear pieces of the blocks; found anew when weights change."""
        if view.blocks is None or not view.blocks.attention:
            return None
        weights = (weight for block in view.blocks.modules for weight in block.parameters())
        stamp = [(weight.data_ptr(), weight.dtype, version_of(weight)) for weight in weights]
        if self._parts[0] != stamp:
            with view.still(), torch.no_grad(), torch.autocast(view.device.type, enabled=False):
                tokens = view.embed(torch.randn(2, 3, *view.size, generator=torch.Generator().manual_seed(0)))
                found = find_parts(view.blocks.modules, tokens, view.layout(view.size).extras)
            self._parts = (stamp, found)
        return self._parts[1]

    def activations(self, view: "View") -> Activations:
        """The activations of the forward pass; none are seen where no gradient tells what comes from the picture."""
        if self._activations is None:
            with view.still():
                seen = self.differentiable(view)
                self._activations = activations(view.model, view.blank(view.size)) if seen else Activations()
        return self._activations
