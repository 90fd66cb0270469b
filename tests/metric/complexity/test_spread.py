"""How spread out a map is: closed forms."""

import math

import pytest
import torch

from vitrail.metric.complexity.spread import complexity, sparseness


def maps(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64).view(1, 2, -1)


def test_gini() -> None:
    """The mean difference between all pairs, over twice the mean."""
    values = torch.rand(1, 4, 6, generator=torch.Generator().manual_seed(0)).double()
    flat = values.flatten()
    expected = (flat[:, None] - flat).abs().mean() / (2 * flat.mean())
    assert float(sparseness(values)) == pytest.approx(float(expected), abs=1e-6)
    assert float(sparseness(values * 1e-9)) == pytest.approx(float(expected), abs=1e-6), "whatever the scale"
    assert float(sparseness(-values)) == pytest.approx(float(expected), abs=1e-6)
    shifted = sparseness(values - 5, values="shifted")
    assert float(shifted) == pytest.approx(float(sparseness(values - flat.min())), abs=1e-6)
    assert float(sparseness(maps(0, 0, 0, 0))) == pytest.approx(0)


def test_entropy() -> None:
    assert float(complexity(maps(1, 1, 1, 1))) == pytest.approx(math.log(4))
    assert float(complexity(maps(0, -3, 0, 0))) == pytest.approx(0)
    assert float(complexity(maps(1, 3, 0, 0))) == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert float(complexity(maps(0, 0, 0, 0))) == pytest.approx(math.log(4)), "an empty map is even"
