"""AHA's loss against a slow loop over hard masks; grids; and curves of a few points against whole ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.method.aha.objective import Grid, Losses, Objective

SIZE = (12, 10)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def asking(seed: int = 0) -> Callable[[Tensor, Tensor], Tensor]:
    """A small smooth model, with another class to explain for every image."""
    weights = torch.randn(3, 3, *SIZE, generator=seeded(seed), dtype=torch.float64)

    def ask(pictures: Tensor, which: Tensor) -> Tensor:
        return torch.sigmoid((pictures * weights[which]).flatten(1).sum(1) / 6)

    return ask


def scene() -> tuple[Tensor, Tensor, Tensor]:
    """Images, references, and maps whose regions are far apart in a grid of 3 by 3 (and in the other ones drawn)."""
    images, references = torch.randn(2, 3, 3, *SIZE, generator=seeded(3), dtype=torch.float64)
    return images, references, torch.rand(3, *SIZE, generator=seeded(4), dtype=torch.float64)


def ranked(grid: Grid) -> Tensor:
    """Maps whose regions have the scores 1/K, ..., 1 in some order."""
    orders = torch.stack([torch.randperm(grid.count, generator=seeded(i)) for i in range(3)])
    return grid.spread((orders.double() + 1) / grid.count)


def slow(images: Tensor, references: Tensor, maps: Tensor, grid: Grid, counts: list[int]) -> tuple[Tensor, Tensor]:
    """The metrics of equations 1 to 4, region by region and picture by picture."""
    ask, found = asking(), torch.zeros(2, len(images), dtype=torch.float64)
    boxes = [
        (slice(top, bottom), slice(left, right))
        for top, bottom in zip(grid.rows, grid.rows[1:])
        for left, right in zip(grid.columns, grid.columns[1:])
    ]
    for i in range(len(images)):
        best_first = sorted(boxes, key=lambda box: -float(maps[i][box].mean()))
        for k in counts:
            deleted, inserted = images[i].clone(), references[i].clone()
            for rows, columns in best_first[:k]:
                deleted[:, rows, columns] = references[i][:, rows, columns]
                inserted[:, rows, columns] = images[i][:, rows, columns]
            for curve, picture in zip(found, (deleted, inserted)):
                curve[i] += float(ask(picture[None], torch.tensor([i]))) / len(counts)
    return found[0], found[1]


# --------------------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("seed", range(3))
def test_hard_metrics_are_the_slow_loop(seed: int) -> None:
    images, references, maps = scene()
    grid = Grid.drawn(SIZE, 2, 5, seeded(seed))
    counts = torch.tensor([1, 2, grid.count])
    found = Objective.hard(asking(), images, references, maps, grid, counts).mean(2).unbind(1)
    torch.testing.assert_close(found, slow(images, references, maps, grid, counts.tolist()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cells", [3, 4])
def test_soft_metrics_become_the_hard_ones(cells: int) -> None:
    # With scores 1/K apart a region has about exp(-1 / (K² temperature)) of its neighbour's rank: e^-10 at the end.
    grid = Grid.regular(SIZE, cells)
    images, references, _ = scene()
    maps, counts = ranked(grid), torch.arange(1, grid.count + 1)
    expected = slow(images, references, maps, grid, counts.tolist())
    objective, gaps = Objective(iterations=1000), []
    for softness in (5, 1, 0.1):
        losses = objective.loss(asking(), images, references, maps, grid, softness / grid.count**2, counts=counts)
        pairs = zip((losses.deletion, losses.insertion), expected)
        gaps.append(max(float((soft - hard).abs().max()) for soft, hard in pairs))
    assert gaps[0] > gaps[1] > 10 * gaps[2]
    assert gaps[2] < 2e-5


def test_total_is_the_weighted_sum() -> None:
    images, references, maps = scene()
    objective = Objective(deletion=2.0, insertion=0.5, regularise=3.0, steps=4, kernel=3)
    losses = objective.loss(asking(), images, references, maps, Grid.regular(SIZE, 3), 0.1)
    assert [one.shape for one in losses] == [(3,)] * 4
    torch.testing.assert_close(losses.total, 2 * losses.deletion - 0.5 * losses.insertion + 3 * losses.regulariser)


def test_gradcheck() -> None:
    images, references, _ = scene()
    # Few degrees of freedom, on which the maps depend smoothly: a check of all pixels would take minutes.
    modes = torch.randn(4, *SIZE, generator=seeded(5), dtype=torch.float64)

    def total(amounts: Tensor) -> Tensor:
        drawn = torch.sigmoid(torch.einsum("bm,mhw->bhw", amounts, modes))
        losses = Objective(steps=3, kernel=3, regularise=1.0).loss(
            asking(), images[:2], references[:2], drawn, Grid.regular(SIZE, 3), 0.1, noise=0.05, generator=seeded()
        )
        return losses.total

    amounts = torch.randn(2, 4, generator=seeded(6), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(total, amounts, atol=1e-4)


def test_parts_change_nothing_and_each_image_is_its_own() -> None:
    images, references, maps = scene()
    grid, asked = Grid.regular(SIZE, 4), []

    def ask(pictures: Tensor, which: Tensor) -> Tensor:
        asked.append(len(pictures))
        return asking()(pictures, which)

    def slope(at_once: int | None) -> tuple[Losses, Tensor]:
        leaf = maps.clone().requires_grad_()
        losses = Objective(steps=4).loss(ask, images, references, leaf, grid, 0.05, at_once=at_once)
        return losses, torch.autograd.grad(losses.total[1], leaf)[0]

    (whole, expected), (parts, found) = slope(None), slope(7)
    assert asked == [24, 7, 7, 7, 3]
    torch.testing.assert_close(tuple(parts), tuple(whole))
    torch.testing.assert_close(found, expected)
    assert found[1].abs().max() > 0
    assert not found[[0, 2]].any()


def test_gradients_reach_the_maps_alone() -> None:
    images, references, maps = scene()
    model = torch.nn.Linear(1, 1, dtype=torch.float64)

    def ask(pictures: Tensor, which: Tensor) -> Tensor:
        return model(pictures.mean((1, 2, 3))[:, None]).squeeze(1)

    maps.requires_grad_()
    Objective(steps=2).loss(ask, images, references, maps, Grid.regular(SIZE, 2), 0.1).total.sum().backward()
    assert maps.grad is not None
    assert model.weight.grad is None
    with torch.no_grad():
        assert (
            not Objective(steps=2).loss(ask, images, references, maps, Grid.regular(SIZE, 2), 0.1).total.requires_grad
        )


def test_a_step_downhill_lowers_the_loss() -> None:
    images, references, maps = scene()
    grid, objective = Grid.regular(SIZE, 4), Objective(steps=16)
    logits = torch.special.logit(maps).requires_grad_()
    totals = []
    for _ in range(20):
        losses = objective.loss(asking(), images, references, torch.sigmoid(logits), grid, 0.05)
        totals.append(losses.total.detach())
        (slope,) = torch.autograd.grad(losses.total.sum(), logits)
        logits = (logits - 5 * slope).detach().requires_grad_()
    assert (totals[-1] < totals[0] - 0.02).all()


def test_the_regulariser_dislikes_lonely_peaks() -> None:
    objective, flat = Objective(kernel=3), torch.full((1, 7, 7), 0.3)
    assert objective.regulariser(flat).abs().max() < 1e-12
    for y, x, members in ((3, 3, 9), (0, 0, 4), (0, 3, 6)):
        peak = torch.zeros(1, 7, 7)
        peak[0, y, x] = 1
        expected = 0.0
        for i in range(7):
            for j in range(7):
                window = peak[0, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]
                expected += float(peak[0, i, j] - window.mean()) ** 2 / 49
        assert members == peak[0, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2].numel()
        assert objective.regulariser(peak).tolist() == pytest.approx([expected])


# --------------------------------------------------------------------------------------------------------- the counts


def test_counts_are_stratified() -> None:
    objective = Objective(steps=5)
    for regions in (5, 7, 49):
        for seed in range(20):
            counts = objective.counts(regions, seeded(seed))
            parts = torch.arange(6) * regions / 5
            assert ((counts > parts[:-1]) & (counts < parts[1:] + 1)).all()
    assert torch.equal(replace(objective, steps=9).counts(9, seeded()), torch.arange(1, 10))
    assert replace(objective, steps=3).counts(1).tolist() == [1, 1, 1]
    assert torch.equal(objective.counts(49), objective.counts(49))


def test_few_counts_are_right_on_average() -> None:
    images, references, maps = scene()
    grid, objective = Grid.regular(SIZE, 4), Objective(steps=3)
    every = objective.loss(asking(), images, references, maps, grid, 0.05, counts=torch.arange(1, 17))
    generator = seeded(7)
    drawn = [objective.loss(asking(), images, references, maps, grid, 0.05, generator=generator) for _ in range(100)]
    for part in ("deletion", "insertion"):
        found = torch.stack([getattr(one, part) for one in drawn])
        error = (found.mean(0) - getattr(every, part)).abs()
        assert (error < 4 * found.std(0) / 100**0.5 + 1e-6).all()
        assert (found.std(0) > 1e-4).any()


# ---------------------------------------------------------------------------------------------------------- the grids


@pytest.mark.parametrize("seed", range(5))
def test_a_grid_is_a_partition(seed: int) -> None:
    grid = Grid.drawn((37, 50), 3, 9, seeded(seed))
    cells = grid.spread(torch.eye(grid.count))
    assert torch.equal(cells.sum(0), torch.ones(37, 50))
    assert set(cells.unique().tolist()) == {0.0, 1.0}
    values = torch.rand(2, grid.count, generator=seeded())
    torch.testing.assert_close(grid.pool(grid.spread(values)), values)
    maps = torch.rand(2, 37, 50, generator=seeded())
    torch.testing.assert_close(grid.pool(maps), (maps[:, None] * cells).sum((2, 3)) / cells.sum((1, 2)))


def test_grids_are_drawn_with_all_sizes_and_offsets() -> None:
    generator = seeded()
    grids = [Grid.drawn((224, 224), 7, 28, generator) for _ in range(400)]
    assert {grid.shape[0] for grid in grids} == set(range(7, 29))
    assert all(grid.shape[0] == grid.shape[1] and grid.count == grid.shape[0] ** 2 for grid in grids)
    shares = [
        (lines[i + 1] - lines[i]) * (len(lines) - 1) / 224
        for grid in grids
        for lines in (grid.rows, grid.columns)
        for i in (0, len(lines) - 2)
    ]
    assert 0.4 < min(shares) < 0.6  # half a cell, but for whole pixels
    assert 1.4 < max(shares) < 1.6
    assert any(grid.rows != grid.columns for grid in grids)
    assert Grid.drawn((64, 64), 4, 9, seeded(1)) == Grid.drawn((64, 64), 4, 9, seeded(1))
    assert Grid.drawn((64, 64), 1, 1, seeded(1)) == Grid.regular((64, 64), 1)
    assert all(Grid.drawn((8, 9), 4, 4, seeded(i)).count == 16 for i in range(50))


def test_regular_grids_are_even() -> None:
    assert Grid.regular((224, 224), 14).rows == tuple(range(0, 225, 16))
    assert Grid.regular((10, 12), 4) == Grid((0, 3, 5, 8, 10), (0, 3, 6, 9, 12))
    assert Grid.regular((5, 5), 5).count == 25


# ------------------------------------------------------------------------------------------------------- the mistakes


def test_mistakes_get_a_sentence() -> None:
    images, references, maps = scene()
    grid, objective = Grid.regular(SIZE, 2), Objective(steps=2)
    with pytest.raises(InputError, match="1 to 10 cells a side, not 11 to 11"):
        Grid.regular(SIZE, 11)
    with pytest.raises(InputError, match="1 to 5 cells a side, not 4 to 3"):
        Grid.drawn(SIZE, 4, 3, seeded())
    with pytest.raises(InputError, match="must rise from 0"):
        Grid((0, 4, 4), (0, 3))
    with pytest.raises(InputError, match=r"cannot pool maps of shape \(3, 10, 12\)"):
        grid.pool(maps.mT)
    with pytest.raises(InputError, match="steps=0"):
        Objective(steps=0)
    with pytest.raises(InputError, match="odd kernel, but kernel=4"):
        Objective(kernel=4)
    with pytest.raises(InputError, match="need one shape"):
        objective.loss(asking(), images, references[:1], maps, grid, 0.1)
    with pytest.raises(InputError, match="12 pictures need as many answers"):
        objective.loss(lambda pictures, which: pictures, images, references, maps, grid, 0.1)
    silent = torch.no_grad()(asking())
    with pytest.raises(InputError, match="have no gradient"):
        objective.loss(silent, images, references, maps.requires_grad_(), grid, 0.1)
    with pytest.raises(InputError, match="at_once to be 1 or more, but 0"):
        objective.loss(asking(), images, references, maps, grid, 0.1, at_once=0)
