"""The figures of a report: means, intervals, ranks, tests, agreement with the papers."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from helpers.reported import COUNT, DEL, INS, MIOU, NUMBERS, PART, PROTOCOL, cell, write_part
from vitrail.bench import Store
from vitrail.bench.protocol import Column
from vitrail.bench.report import Result, gather
from vitrail.bench.report.compare import agreement, holm
from vitrail.bench.report.gathering import _costs
from vitrail.bench.stored import scores
from vitrail.metric.statistics import friedman, interval, paired_bootstrap


def test_means_and_intervals(result: Result) -> None:
    (section,) = result.sections
    found = cell(section, "TIS", "Ins")
    assert found.value == pytest.approx(NUMBERS["tis"][INS].mean())
    assert (found.low, found.high) == interval(NUMBERS["tis"][INS])
    assert (found.images, found.published) == (COUNT, 0.741)
    assert (section.rows[0].forwards, section.rows[0].backwards) == (1024, 512)
    assert section.rows[0].seconds == 0.5, "the median leaves out the slow start"


def test_differences_are_taken_picture_by_picture(result: Result) -> None:
    gaps = NUMBERS["tis"][INS] - NUMBERS["tis"][DEL]
    found = cell(result.sections[0], "TIS", "Ins - Del")
    assert found.value == pytest.approx(gaps.mean())
    assert (found.low, found.high) == interval(gaps)
    one, other = (cell(result.sections[0], "TIS", name) for name in ("Ins", "Del"))
    assert found.high - found.low < (one.high - one.low) + (other.high - other.low)


def test_weights_and_single_terms(tmp_path: Path) -> None:
    image = f"{MIOU}(level=image)"
    columns = (Column("-Del %", ((DEL, -100.0),)), Column("mIoU", ((MIOU, 1.0),)), Column("mean", ((image, 1.0),)))
    part = replace(PART, columns=columns, methods={"TIS": "tis"}, ours=(), published={})
    confusion = np.random.default_rng(1).integers(1, 50, (COUNT, 4)).astype(float)
    write_part(Store(str(tmp_path)), part, {"tis": {DEL: NUMBERS["tis"][DEL], MIOU: confusion, image: confusion}})
    (section,) = gather(replace(PROTOCOL, parts=(part,)), Store(str(tmp_path))).sections
    scaled, total, mean = section.rows[0].cells
    low, high = interval(NUMBERS["tis"][DEL])
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx(
        (-100 * NUMBERS["tis"][DEL].mean(), -100 * high, -100 * low)
    )
    assert section.headings[0].column.higher_is_better
    row = scores(part.plan(), Store(str(tmp_path)).within("deit")).row(MIOU)
    assert (total.value, total.low, total.high) == (row.value, row.low, row.high)
    assert total.value != pytest.approx(np.nanmean(row.each)), "its total is that of all points together"
    assert mean.value == pytest.approx(np.nanmean(row.each))
    assert [heading.own_total for heading in section.headings] == [False, True, False]


def test_ranks_the_best_and_those_that_are_not_worse(result: Result) -> None:
    (section,) = result.sections
    labels = ["TIS", "Rollout_50%", "T&A #1", "skipplus(decompx)"]
    ins = {label: cell(section, label, "Ins") for label in labels}
    assert [found.rank for found in ins.values()] == [1, 4, 2, 3]
    assert [found.best for found in ins.values()] == [True, False, False, False]
    assert [found.tied for found in ins.values()] == [False, False, True, False]
    gap = paired_bootstrap(NUMBERS["tis"][INS], NUMBERS["genatt"][INS])
    assert gap.low < 0 < gap.high
    assert [cell(section, label, "Del").rank for label in labels] == [2, 4, 3, 1], "less is better"
    assert section.rows[0].rank == pytest.approx((1 + 2 + cell(section, "TIS", "Ins - Del").rank) / 3)
    assert [row.label for row in section.rows] == [*labels[:3], "Older", "skipplus(decompx)"]
    assert [row.ours for row in section.rows] == [False, False, False, False, True]


def test_equal_numbers_share_the_first_rank(tmp_path: Path) -> None:
    part = replace(PART, methods={"A": "tis", "B": "genatt"}, ours=(), columns=PART.columns[:1], published={})
    write_part(Store(str(tmp_path)), part, {method: {INS: NUMBERS["tis"][INS]} for method in ("tis", "genatt")})
    (section,) = gather(replace(PROTOCOL, parts=(part,)), Store(str(tmp_path))).sections
    assert [(row.cells[0].rank, row.cells[0].best, row.cells[0].tied) for row in section.rows] == [(1, True, False)] * 2


def test_holm_counts_the_tests() -> None:
    assert holm([]) == []
    assert holm([0.04]) == [0.04]
    np.testing.assert_allclose(holm([0.01, 0.5, 0.02, 0.6]), [0.04, 1.0, 0.06, 1.0])


def test_order_against_the_papers(result: Result) -> None:
    (section,) = result.sections
    ours = [NUMBERS[method][INS].mean() for method in ("tis", "rollout", "genatt")]
    published = [0.741, 0.39, 0.75]
    found = section.headings[0].agreement
    assert found is not None
    assert found.methods == 3
    assert found.rho == pytest.approx(stats.spearmanr(ours, published).statistic)
    assert found.tau == pytest.approx(stats.kendalltau(ours, published).statistic)
    assert section.headings[2].agreement is None, "the paper has no such column"
    alike = agreement([0.1, 0.2, 0.3], [0.5, 0.5, 0.5])
    assert alike is not None
    assert np.isnan(alike.rho)
    assert agreement([0.1, 0.2, np.nan], [0.5, 0.5, 0.5]) is None


def test_mean_ranks_over_pictures(result: Result) -> None:
    found = result.sections[0].headings[1].standing
    assert found is not None
    expected = friedman(np.stack([NUMBERS[method][DEL] for method in NUMBERS], 1), higher_is_better=False)
    np.testing.assert_allclose([found.ranks[method] for method in NUMBERS], expected.ranks)
    assert (found.p, found.critical_difference, found.images) == (expected.p, expected.critical_difference, COUNT)


def test_runs_from_before_backward_passes_were_counted_are_read() -> None:
    table = pa.table({"seconds": [9.0, 0.5, 0.5], "forwards": [2.0, 2.0, 2.0]})
    old = SimpleNamespace(names=lambda name: table.column_names, read=lambda name, columns: table.select(columns))
    seconds, forwards, backwards = _costs(old, ["unit"])  # type: ignore[arg-type]
    assert (seconds, forwards) == (0.5, 2.0)
    assert np.isnan(backwards)
    assert all(np.isnan(one) for one in _costs(old, []))  # type: ignore[arg-type]
