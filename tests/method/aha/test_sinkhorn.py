"""Soft ranks against the plain loop, differentiated by autograd; and what doubly stochastic matrices promise."""

import pytest
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.method.aha.sinkhorn import hard_top, sinkhorn, soft_top

SCHEDULE = [0.1 * 0.1 ** (i / 4) for i in range(5)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(logits: Tensor, iterations: int, relax: float = 1.0) -> Tensor:
    """The unrolled loop. Its longer steps are those of the library only where no move is large."""
    f = g = torch.zeros_like(logits[:, 0])
    for turn in range(iterations):
        step = relax if turn else 1.0
        f = f + step * (-torch.logsumexp(logits + g[:, None], 2) - f)
        g = g + step * (-torch.logsumexp(logits + f[:, :, None], 1) - g)
    return (logits + f[:, :, None]).softmax(1)


def costs(scores: Tensor, temperature: float) -> Tensor:
    regions = scores.shape[1]
    places = torch.arange(regions, 0, -1, dtype=scores.dtype) / regions
    return -((scores[:, :, None] - places) ** 2) / temperature


# ------------------------------------------------------------------------------------------------------ the gradient


# At 0.1 all turns share one matrix; at 1e-3 the first are too far from the last, and at 1e-4 nothing ever settles.
@pytest.mark.parametrize(("temperature", "relax"), [(0.1, 1.0), (0.1, 1.4), (0.01, 1.0), (0.001, 1.0), (0.0001, 1.0)])
@pytest.mark.parametrize("iterations", [1, 2, 30])
def test_is_the_unrolled_loop_and_its_gradient(temperature: float, relax: float, iterations: int) -> None:
    logits = costs(torch.rand(3, 12, dtype=torch.float64, generator=seeded()), temperature).requires_grad_()
    weights = torch.randn(3, 12, 12, dtype=torch.float64, generator=seeded(1))
    found = sinkhorn(logits, iterations, tolerance=0, relax=relax)
    expected = plain(logits, iterations, relax)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    slope, truth = (torch.autograd.grad((one * weights).sum(), logits)[0] for one in (found, expected))
    torch.testing.assert_close(slope, truth, atol=1e-10, rtol=0)


def test_gradcheck() -> None:
    logits = 2 * torch.randn(1, 4, 4, dtype=torch.float64, generator=seeded())
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 7, tolerance=0, relax=1.0), logits.requires_grad_())
    # With longer steps, whose length depends on the logits, the gradient is exact where the algorithm has converged.
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 300, tolerance=1e-12), logits)
    scores, counts = torch.rand(2, 5, dtype=torch.float64, generator=seeded()), torch.tensor([1, 3, 5])
    assert torch.autograd.gradcheck(lambda x: soft_top(x, counts, 0.1), scores.requires_grad_(), atol=1e-4)


@pytest.mark.parametrize("temperature", [0.1, 0.01])
def test_single_precision_has_the_gradient_of_double(temperature: float) -> None:
    scores, counts = torch.rand(2, 49, generator=seeded(), dtype=torch.float64), torch.tensor([3, 20, 40])
    weights = torch.randn(2, 3, 49, generator=seeded(1), dtype=torch.float64)
    slopes = []
    for dtype in (torch.float64, torch.float32):
        leaf = scores.detach().to(dtype).clone().requires_grad_()
        (soft_top(leaf, counts, temperature) * weights.to(dtype)).sum().backward()
        assert leaf.grad is not None
        slopes.append(leaf.grad.double())
    torch.testing.assert_close(slopes[1], slopes[0], rtol=0, atol=2e-3 * float(slopes[0].abs().max()))


def test_keeps_vectors_and_not_matrices() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    scores = torch.rand(2, 784, generator=seeded()).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        masks = soft_top(scores, torch.tensor([100, 700]), 0.03)
    matrices = {tensor.data_ptr() for tensor in kept if tensor.numel() >= 2 * 784 * 784}
    assert len(matrices) == 1
    assert sum(tensor.numel() for tensor in kept) < 2 * 2 * 784 * 784
    masks.square().sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


# ------------------------------------------------------------------------------------------------------- the matrices


def spread_out(kind: str, regions: int) -> Tensor:
    """(1, K) scores as explainers give them: at first, later, and at their worst."""
    noise, generator = torch.randn(1, regions, generator=seeded(1)), seeded(2)
    if kind == "even":
        return torch.rand(1, regions, generator=generator)
    if kind == "untrained":
        return torch.sigmoid(0.1 * noise)
    if kind == "saturated":
        return torch.sigmoid(6 * noise)
    if kind == "equal":
        return torch.full((1, regions), 0.9)
    if kind == "two values":
        return (torch.arange(regions)[None] < regions // 2).float()
    if kind == "few":
        return (torch.arange(regions)[None] < regions // 20).float()
    return (torch.tensor([0.1, 0.5, 0.9])[torch.randint(3, (1, regions), generator=generator)] + 0.02 * noise).clamp(
        0, 1
    )


KINDS = ["even", "untrained", "saturated", "equal", "two values", "few", "clustered"]


@pytest.mark.parametrize("cells", [7, 14, 20, 28])
def test_rows_and_columns_sum_to_one(cells: int) -> None:
    scores = torch.cat([spread_out(kind, cells**2) for kind in KINDS])
    for temperature in SCHEDULE if cells < 28 else SCHEDULE[::2]:
        found = sinkhorn(costs(scores, temperature)).double()
        assert found.min() >= 0
        assert (found.sum(1) - 1).abs().max() < 2e-6, temperature
        assert (found.sum(2) - 1).abs().max() < 1e-4, temperature


def test_rows_and_columns_with_noise_that_fades_like_the_temperature() -> None:
    scores = torch.cat([spread_out(kind, 400) for kind in KINDS])
    for i, temperature in enumerate(SCHEDULE):
        noise = -torch.empty(len(scores), 400, 400).exponential_(generator=seeded(i)).log()
        found = sinkhorn(costs(scores, temperature) + 0.05 * (1 - i / 4) / temperature * noise).double()
        assert (found.sum(2) - 1).abs().max() < 1e-4, temperature


@pytest.mark.parametrize("temperature", [10, 1e-3, 1e-6])
def test_any_temperature_is_stable(temperature: float) -> None:
    scores = torch.cat([spread_out(kind, 49) for kind in KINDS]).requires_grad_()
    masks = soft_top(scores, torch.arange(1, 50), temperature)
    masks.square().sum().backward()
    assert scores.grad is not None
    assert masks.isfinite().all()
    assert scores.grad.isfinite().all()
    torch.testing.assert_close(masks.sum(2), torch.arange(1.0, 50).expand(len(KINDS), 49), rtol=1e-5, atol=0)


def test_an_image_is_treated_alike_in_any_company() -> None:
    scores = torch.cat([spread_out(kind, 100) for kind in KINDS]).double()
    together = sinkhorn(costs(scores, 0.02))
    alone = torch.cat([sinkhorn(costs(one[None], 0.02)) for one in scores])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------- the masks


def test_masks_sum_to_their_counts_and_grow() -> None:
    scores = torch.rand(3, 64, generator=seeded())
    masks = soft_top(scores, torch.arange(1, 65), 0.02, noise=0.01, generator=seeded())
    torch.testing.assert_close(masks.sum(2), torch.arange(1.0, 65).expand(3, 64), rtol=1e-5, atol=0)
    assert (masks.diff(dim=1) >= -1e-6).all()
    assert (masks[:, -1] - 1).abs().max() < 1e-4
    every = soft_top(scores, torch.tensor([5, 40]), 0.02, noise=0.01, generator=seeded())
    torch.testing.assert_close(every, masks[:, [4, 39]])


def test_masks_are_those_of_the_definition() -> None:
    scores = torch.rand(2, 20, generator=seeded(), dtype=torch.float64)
    found = soft_top(scores, torch.tensor([4, 11]), 0.05)
    ranks = plain(costs(scores, 0.05), 500)
    torch.testing.assert_close(
        found, torch.stack([ranks[:, :, :4].sum(2), ranks[:, :, :11].sum(2)], 1), atol=1e-4, rtol=0
    )


def test_hard_masks_are_the_limit() -> None:
    # Scores 1/K apart: the gap between neighbours costs 1/K² each, so the temperature must be well below that.
    scores = (torch.randperm(16, generator=seeded())[None] + 1.0) / 16
    counts = torch.arange(1, 17)
    gaps = [(soft_top(scores, counts, t) - hard_top(scores, counts)).abs().max() for t in (0.01, 1e-3, 3e-4)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-5


def test_hard_masks_break_ties_by_place() -> None:
    found = hard_top(torch.tensor([[0.5, 0.7, 0.5, 0.5]]), torch.tensor([1, 2, 3]))
    assert found.tolist() == [[[0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]]


def test_noise_comes_from_the_generator() -> None:
    scores, counts = torch.rand(2, 9, generator=seeded()), torch.tensor([3])
    first, again, other = (soft_top(scores, counts, 0.1, noise=0.1, generator=seeded(i)) for i in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, soft_top(scores, counts, 0.1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_generator_of_the_cpu_serves_a_gpu() -> None:
    scores, counts = torch.rand(2, 49, generator=seeded()).cuda(), torch.tensor([3, 40])
    first, again, other = (soft_top(scores, counts, 0.1, noise=0.1, generator=seeded(i)) for i in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(
        soft_top(scores, counts, 0.02).cpu(), soft_top(scores.cpu(), counts, 0.02), atol=1e-4, rtol=0
    )


def test_noise_is_gumbel() -> None:
    # Two regions of equal score: the difference of two Gumbel numbers is logistic; 2 x 2 Sinkhorn is a sigmoid of half
    # the sum of two such differences, each of variance pi²/3.
    masks = soft_top(torch.full((4000, 2), 0.5), torch.tensor([1]), 1.0, noise=1.0, generator=seeded())[:, 0, 0]
    odds = 2 * torch.special.logit(masks.double())
    assert abs(float(odds.mean())) < 0.15
    assert abs(float(odds.var()) / (2 * torch.pi**2 / 3) - 1) < 0.1


def test_half_precision_and_autocast_are_computed_in_single() -> None:
    scores, counts = torch.rand(2, 49, generator=seeded()).bfloat16(), torch.tensor([10])
    expected = soft_top(scores.float(), counts, 0.02)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(soft_top(scores, counts, 0.02), expected)
    assert expected.dtype == hard_top(scores, counts).dtype == torch.float32


def test_mistakes_get_a_sentence() -> None:
    scores, counts = torch.rand(1, 4), torch.tensor([1])
    with pytest.raises(InputError, match="temperature above 0, but 0 was given"):
        soft_top(scores, counts, 0)
    with pytest.raises(InputError, match="from 1 to 4, but 0 to 2 was given"):
        soft_top(scores, torch.tensor([2, 0]), 0.1)
    with pytest.raises(InputError, match="from 1 to 4, but 5 to 5 was given"):
        hard_top(scores, torch.tensor([5]))
    with pytest.raises(InputError, match=r"scores of shape \(B, K\)"):
        hard_top(scores[0], counts)
    with pytest.raises(InputError, match=r"logits of shape \(B, K, K\), but \(1, 2, 3\)"):
        sinkhorn(torch.rand(1, 2, 3))
    with pytest.raises(InputError, match="iterations=0"):
        soft_top(scores, counts, 0.1, iterations=0)
    with pytest.raises(InputError, match="relax"):
        sinkhorn(torch.rand(1, 2, 2), relax=2.0)
    with pytest.raises(InputError, match="noise of 0 or more, but noise=-1"):
        soft_top(scores, counts, 0.1, noise=-1)
