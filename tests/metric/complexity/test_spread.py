"""How spread out a map is: closed forms."""

import math

import pytest
import torch

import vitrail
from helpers.oracle import oracle
from vitrail.metric import Case, parse
from vitrail.metric.complexity.spread import complexity, sparseness


def measured(name: str, values: torch.Tensor) -> float:
    return float(parse(name).measure(Case(vitrail.load("demo"), torch.zeros(1, 3, 16, 16), values)))


def maps(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64).view(1, 2, -1)


@oracle("sparseness")
def test_gini() -> None:
    """The mean difference between all pairs, over twice the mean."""
    values = torch.rand(1, 4, 6, generator=torch.Generator().manual_seed(0)).double()
    flat = values.flatten()
    expected = (flat[:, None] - flat).abs().mean() / (2 * flat.mean())
    assert float(sparseness(values)) == pytest.approx(float(expected), abs=1e-6)
    assert measured("sparseness", values) == pytest.approx(float(expected), abs=1e-6)
    assert float(sparseness(values * 1e-9)) == pytest.approx(float(expected), abs=1e-6), "whatever the scale"
    assert float(sparseness(-values)) == pytest.approx(float(expected), abs=1e-6)
    shifted = sparseness(values - 5, values="shifted")
    assert float(shifted) == pytest.approx(float(sparseness(values - flat.min())), abs=1e-6)
    assert float(sparseness(maps(0, 0, 0, 0))) == pytest.approx(0)


@oracle("complexity")
def test_entropy() -> None:
    assert float(complexity(maps(1, 1, 1, 1))) == pytest.approx(math.log(4))
    assert float(complexity(maps(0, -3, 0, 0))) == pytest.approx(0)
    assert float(complexity(maps(1, 3, 0, 0))) == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert float(complexity(maps(0, 0, 0, 0))) == pytest.approx(math.log(4)), "an empty map is even"
    assert measured("complexity", maps(1, 3, 0, 0)) == float(complexity(maps(1, 3, 0, 0)))
