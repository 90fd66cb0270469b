"""ALTI: how near the vector each token sent lies to what it helped to make."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitrail.events import Passes
from vitrail.method.base import register
from vitrail.method.batch import Batch
from vitrail.method.decomposition.norms import NEEDS, Step, steps
from vitrail.method.layered import Mixing
from vitrail.model import View

_CHUNK = 2**25
"""Numbers in one block of streamed query rows (128 MiB in float32)."""


@register("alti", paper="Ferrando et al. 2022", cost="1 forward", needs=NEEDS)
@dataclass(frozen=True)
class ALTI(Mixing):
    """Contributions by distance: a vector counts by how much nearer it lies to the result than nothing does.

    ``c_ij = max(0, ||y_i||_1 - ||y_i - T_ij||_1)``, rows made to sum to one, multiplied up over the layers. A row with
    no contribution at all is the token's own. The same for every class.

    Attributes:
        reference: What the vectors are compared with: the tokens behind the attention (``attn``, where the vectors add
            up to it but for one bias), or the tokens behind the whole block (``block``, the port of the SkipPLUS study:
            the vectors are GlobEnc's, which pass the MLP unchanged, and many lie far from the MLP's true result).
    """

    classless: ClassVar[bool] = True
    identity: ClassVar[bool] = False
    normalise: ClassVar[bool] = False
    reference: Literal["attn", "block"] = "attn"

    def passes(self, view: View, size: tuple[int, int]) -> Passes:
        return Passes(1)

    def matrices(self, view: View, batch: Batch, start: int) -> tuple[list[Tensor], Tensor]:
        trace, walk = steps(view, batch, start)
        with torch.no_grad():
            found = [self._contributions(step) for step in walk]
        return found, view.readout_weights(trace, view.layout(batch.size))

    def maps(self, view: View, batch: Batch) -> Tensor:
        return view.patch_map(self.rolled(view, batch, 0), view.layout(batch.size))

    def _contributions(self, step: Step) -> Tensor:
        """(B, T, T): one block's shares (to, from)."""
        norm2, scale2 = step.parts.norm2, step.parts.scale2
        behind = step.parts.attended(step.x, step.attention)
        deviation = norm2.deviation(behind)[:, :, None]  # (B, to, 1, 1)
        block = self.reference == "block"
        messages = step.messages(bias=not block)
        results = step.out if block else behind
        tokens, width = step.x.shape[1:]
        rows = max(1, _CHUNK // (tokens * width))
        near = torch.empty_like(step.attention[:, 0])
        for image, sent in enumerate(messages):
            for begin in range(0, tokens, rows):
                some = slice(begin, min(begin + rows, tokens))
                vectors = _vectors(step.attention[image, :, some], sent)
                index = torch.arange(len(vectors), device=vectors.device)
                vectors[index, begin + index] += step.x[image, some]
                if block:
                    vectors += scale2 * norm2.linear(vectors, deviation[image, some])
                result = results[image, some]
                # |y| - |y - t| channel by channel: two long norms would lose the digits of a short vector.
                toward = vectors * torch.ones_like(result).copysign(result)[:, None]
                near[image, some] = torch.minimum(toward, 2 * result.abs()[:, None] - toward).sum(-1).relu()
        total = near.sum(-1, keepdim=True)
        own = torch.eye(tokens, dtype=near.dtype, device=near.device).expand_as(near)
        return torch.where(total > 0, near / total.clamp_min(torch.finfo(near.dtype).tiny), own)


def _vectors(attention: Tensor, messages: Tensor) -> Tensor:
    """(rows, T, D): what each token sends to some query rows, from (H, rows, T) attention and (T, H, D) messages."""
    return (attention.permute(2, 1, 0) @ messages).transpose(0, 1).contiguous()
