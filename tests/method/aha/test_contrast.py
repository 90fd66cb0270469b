"""From an order to magnitudes: what regions bring, the power that agrees with it, and maps to that power."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitrail
from vitrail import scenes
from vitrail.errors import InputError
from vitrail.method import parse
from vitrail.method.aha import method
from vitrail.method.aha.contrast import POWERS, brought, held, misfits
from vitrail.method.aha.explainer import CONFIG, Explainer
from vitrail.method.aha.method import SHIPPED
from vitrail.method.aha.objective import Grid
from vitrail.model import load

GRID = Grid((0, 5, 9, 12), (0, 3, 10))
COUNTS = torch.tensor([1, 3, 4, 6])


def some_maps(count: int = 3) -> Tensor:
    return torch.rand(count, *GRID.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# --------------------------------------------------------------------------------------------------- what regions bring


def test_what_the_best_regions_bring() -> None:
    curves = torch.tensor([[[0.6, 0.2, 0.1], [0.3, 0.5, 0.9]]], dtype=torch.float64)
    expected = [[(0.3 + 0.2) / 1.6, (0.7 + 0.4) / 1.6, 1.0]]
    torch.testing.assert_close(brought(curves), torch.tensor(expected, dtype=torch.float64))


def test_it_never_turns_back() -> None:
    """An answer that rises above the whole picture's, or falls again on the way, takes nothing away."""
    curves = torch.tensor([[[0.0, 0.5, 0.0], [0.5, 0.2, 1.0]], [[0.4, -0.3, 0.0], [1.4, 0.6, 1.0]]])
    torch.testing.assert_close(brought(curves), torch.tensor([[0.75, 0.75, 1.0], [0.8, 1.0, 1.0]]))


def test_a_picture_that_says_less_than_a_hidden_one() -> None:
    """There is no way from one to the other; its shares are shares all the same."""
    curves = torch.tensor([[[0.2, 0.8, 0.9], [0.9, 0.3, 0.1]], [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]])
    found = brought(curves)
    assert torch.isfinite(found).all()
    assert ((found >= 0) & (found <= 1)).all()
    assert (found.diff(dim=1) >= 0).all()


# ------------------------------------------------------------------------------------------------------------ the power


def slow_held(one: Tensor, power: float) -> list[float]:
    """The shares of a map's sum, region by region and point by point; a region counts by its mean, as its rank does."""
    plain, raised = [], []
    for top, bottom in zip(GRID.rows, GRID.rows[1:]):
        for left, right in zip(GRID.columns, GRID.columns[1:]):
            points = [float(one[y, x]) for y in range(top, bottom) for x in range(left, right)]
            plain.append(sum(points) / len(points))
            raised.append(sum(point**power for point in points) / len(points))
    best_first = sorted(range(len(plain)), key=lambda region: -plain[region])
    return [sum(raised[region] for region in best_first[:count]) / sum(raised) for count in COUNTS.tolist()]


def test_against_a_slow_loop() -> None:
    maps, powers = some_maps(), (0.5, 1.0, 3.7)
    shares = torch.rand(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = misfits(maps, GRID, COUNTS, shares, powers)
    order = GRID.pool(maps).argsort(1, descending=True)
    for power, row in zip(powers, found):
        expected = [slow_held(one, power) for one in maps]
        there = held(GRID.pool(maps**power), order, COUNTS)
        torch.testing.assert_close(there, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)
        for i, line in enumerate(expected):
            apart = [abs(a - float(b)) for a, b in zip(line, shares[i])]
            assert float(row[i]) == pytest.approx(sum(apart) / len(apart), abs=1e-9)


@pytest.mark.parametrize("number", [0, 11, 16, 31, 48])
def test_a_power_is_found_again(number: int) -> None:
    maps = some_maps()
    order = GRID.pool(maps).argsort(1, descending=True)
    shares = held(GRID.pool(maps ** POWERS[number]), order, COUNTS)
    found = misfits(maps.float(), GRID, COUNTS, shares)
    assert found.shape == (len(POWERS), 3)
    assert set(found.argmin(0).tolist()) == {int(found.mean(1).argmin())} == {number}


def test_a_map_of_nothing_has_a_misfit() -> None:
    assert torch.isfinite(misfits(torch.zeros(1, *GRID.size), GRID, COUNTS, torch.ones(1, 4))).all()


# ------------------------------------------------------------------------------------------------- an explainer's power


def test_magnitudes_keep_the_order() -> None:
    own = Explainer.from_pretrained(SHIPPED)
    maps = torch.linspace(0.01, 1, 120)[torch.randperm(120, generator=torch.Generator().manual_seed(0))].view(1, 12, 10)
    found = own.magnitudes(maps)
    assert torch.equal(found.flatten().argsort(), maps.flatten().argsort())
    assert torch.allclose(found, maps ** own.config["contrast"])
    assert torch.allclose(own.magnitudes(maps, 2), maps.square())
    assert torch.equal(own.magnitudes(maps, 1), maps)


def test_the_folder_keeps_it_and_older_ones_leave_maps_as_they_are(tmp_path: Path) -> None:
    view = load("demo", device="cpu")
    own = Explainer.for_view(view, channels=8, embedding=8).eval()
    own.noted(steps=1, temperature=0.01, contrast=2.0)
    own.save_pretrained(tmp_path / "it")
    again = Explainer.from_pretrained(tmp_path / "it")
    assert again.config["contrast"] == 2.0
    config = json.loads((tmp_path / "it" / CONFIG).read_text())
    del config["contrast"]
    (tmp_path / "it" / CONFIG).write_text(json.dumps(config))
    older = Explainer.from_pretrained(tmp_path / "it")
    assert older.config["contrast"] == 1.0
    images, classes = torch.zeros(1, 3, *view.size), torch.tensor([3])
    assert torch.allclose(again.explain(view, images, classes), older.explain(view, images, classes) ** 2)


# ----------------------------------------------------------------------------------------------------------- the method


@pytest.mark.parametrize("refine", [0, 1])
def test_the_method_gives_the_learned_map_to_its_power(refine: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "CURVE", 2)  # short curves are enough for a step of refinement
    pictures = [scenes.make(seed).pil for seed in (1, 2)]
    power = json.loads((SHIPPED / CONFIG).read_text())["contrast"]
    learned = vitrail.explain("demo", pictures, f"aha(refine={refine}, contrast=1)").maps
    found = vitrail.explain("demo", pictures, f"aha(refine={refine})").maps
    assert power > 1
    assert (found - learned).abs().max() > 0.1
    torch.testing.assert_close(found, learned**power, atol=1e-6, rtol=0)


def test_ranking_metrics_do_not_change() -> None:
    pictures = [scenes.make(seed).pil for seed in (1, 2)]
    curves, plain = ["insertion(step=2592)", "deletion(step=2592)"], parse("aha(contrast=1)").spec
    found = vitrail.evaluate("demo", pictures, ["aha", plain], curves)
    for curve in curves:
        assert found.row(curve, "aha").value == pytest.approx(found.row(curve, plain).value, abs=1e-4)


@pytest.mark.parametrize("contrast", ["0.0", "-2.5"])
def test_a_power_that_would_lose_or_turn_the_order_is_refused(contrast: str) -> None:
    with pytest.raises(
        InputError, match=f"aha needs contrast to be above 0, up to 100, but contrast={contrast} was given"
    ):
        parse(f"aha(contrast={contrast})")
