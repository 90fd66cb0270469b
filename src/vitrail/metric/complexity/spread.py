"""How spread out a map is, whatever it lies on. Token maps are best judged at their own grid."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.metric.base import Metric, register
from vitrail.metric.case import Case

TINY = 1e-7


def sparseness(maps: Tensor, values: Literal["absolute", "shifted"] = "absolute") -> Tensor:
    """(B, H, W) -> (B,): the Gini coefficient, 0 for an even map, towards 1 for a single point. Larger is sparser.

    Args:
        maps: The maps.
        values: ``absolute`` counts what speaks against as much as what speaks for (Chalasani et al. 2020, scaled to a
            largest value of 1 first); ``shifted`` sets the lowest value to zero (TIS).

    Example:
        >>> sparseness(torch.tensor([[[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 5.0]]])).round(decimals=3).tolist()
        [0.0, 0.75]
    """
    flat = maps.flatten(1).double()
    if values == "absolute":
        flat = flat.abs()
        flat = flat / flat.amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    else:
        flat = flat - flat.amin(1, keepdim=True)
    ordered = (flat + TINY).sort(1).values
    count = ordered.shape[1]
    places = 2 * torch.arange(1, count + 1, device=maps.device, dtype=torch.float64) - count - 1
    return ((places * ordered).sum(1) / (count * ordered.sum(1))).to(maps.dtype)


def complexity(maps: Tensor) -> Tensor:
    """(B, H, W) -> (B,): the entropy, in nats, of the shares of the absolute values (Bhatt et al. 2020).

    Log of the number of values for an even map, 0 for a single point; smaller is simpler. An empty map counts as even.

    Example:
        >>> complexity(torch.tensor([[[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 5.0]]]))
        tensor([1.3863, 0.0000])
    """
    flat = maps.flatten(1).double().abs()
    total = flat.sum(1, keepdim=True)
    shares = torch.where(total > 0, flat / total.clamp_min(torch.finfo(torch.float64).tiny), 1 / flat.shape[1])
    entropy: Tensor = torch.special.entr(shares).sum(1)
    return entropy.to(maps.dtype)


@register("sparseness", "Chalasani et al. 2020", higher_is_better=True)
@dataclass(frozen=True)
class Sparseness(Metric):
    """The Gini coefficient of the map, 0 for an even map, towards 1 for a single point.

    Attributes:
        values: Of the ``absolute`` values, or of the map ``shifted`` to a lowest value of zero (TIS).
        at: The map's own ``grid``, or the size of the ``picture``, to which TIS enlarges it first.
    """

    values: Literal["absolute", "shifted"] = "absolute"
    at: Literal["grid", "picture"] = "grid"

    def measure(self, case: Case) -> Tensor:
        return sparseness((case.maps if self.at == "grid" else case.heat()).double(), self.values)


@register("complexity", "Bhatt et al. 2020", higher_is_better=False)
@dataclass(frozen=True)
class Complexity(Metric):
    """The entropy, in nats, of the shares of the map's absolute values at its own grid; an empty map counts as even."""

    def measure(self, case: Case) -> Tensor:
        return complexity(case.maps.double())
