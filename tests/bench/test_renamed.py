"""A run that is older than the words of today: its units are found again, and nothing is made twice."""

from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.bench import Plan, Protocol, Store, perform, report, run
from vitrail.bench.protocol import Column, Part
from vitrail.bench.runner import parts_of
from vitrail.bench.unit import Unit
from vitrail.errors import Renamed
from vitrail.fields import number, value
from vitrail.method import METHODS, Batch, Method, parse
from vitrail.method import register as register_method
from vitrail.metric import METRICS, Case, Metric
from vitrail.metric import parse as parse_metric
from vitrail.metric import register as register_metric
from vitrail.model import View

OLD_METHOD, NEW_METHOD = "zzold(masks=3, compat=none)", "zznew(samples=3, compat=paper)"
OLD_METRIC, NEW_METRIC = "zzpeak(cells=4)", "zzpeak(grid=4)"
asked: list[str] = []


class _Method(Method):
    """A map, and a note of who made it."""

    def maps(self, view: View, batch: Batch) -> Tensor:
        asked.append(self.spec)
        batch.settle(view)
        rows, columns = view.grid_at(batch.size)
        return torch.arange(rows * columns).view(rows, columns).float().expand(len(batch), -1, -1)


class _Metric(Metric):
    """A number, and a note of who made it."""

    def measure(self, case: Case) -> Tensor:
        asked.append(self.spec)
        return case.maps.flatten(1).amax(1)


def words(*, new: bool) -> None:
    """Register the method and the metric in their old words, or in those of today."""
    compat = value("authors", words={"none": "paper"}) if new else "authors"
    count: Any = number(1, low=1, high=9, was=("masks",) if new else ())
    fields = [("samples" if new else "masks", int, count), ("compat", str, compat)]
    method = make_dataclass("Words", fields, bases=(_Method,), frozen=True)
    register_method("zznew" if new else "zzold", paper="none", cost="none", needs=(), was=("zzold",) if new else ())(
        method
    )
    cells: Any = number(1, low=1, high=9, was=("cells",) if new else ())
    metric = make_dataclass("Peak", [("grid" if new else "cells", int, cells)], bases=(_Metric,), frozen=True)
    register_metric("zzpeak", "none", higher_is_better=True)(metric)


def forget() -> None:
    for name in ("zzold", "zznew"):
        METHODS._things.pop(name, None)
        METHODS._aliases.pop(name, None)
    METRICS._things.pop("zzpeak", None)
    asked.clear()
    import vitrail.bench.unit as unit

    unit.folder_of.cache_clear()
    unit.column_of.cache_clear()


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    forget()
    yield
    forget()


def protocol(method: str, metric: str, *, ours: bool = False) -> Protocol:
    part = Part(
        name="main",
        model="demo",
        data="scenes:4",
        methods={} if ours else {"Words": method},
        ours=(method,) if ours else (),
        columns=(Column(metric, ((metric, 1.0),)),),
        chunk=2,
    )
    return Protocol("own", "A run", "", (part,))


def test_first_words() -> None:
    words(new=True)
    method, metric = parse(NEW_METHOD), parse_metric(NEW_METRIC)
    assert (method.spec, method.first_spec) == (NEW_METHOD, OLD_METHOD)
    assert (metric.spec, metric.first_spec) == (NEW_METRIC, OLD_METRIC)
    assert parse(f"smoothgrad({NEW_METHOD})").first_spec == f"smoothgrad({OLD_METHOD})"
    with pytest.warns(Renamed) as told:
        assert parse(OLD_METHOD) == method
    assert [str(one.message) for one in told] == [
        "the method zzold is called zznew now; write zznew",
        "zznew's parameter masks is called samples now; write samples",
        "zznew's compat=none is called compat=paper now; write paper",
    ]
    assert parse("ig(steps=7)").first_spec == "ig(steps=7)"


@pytest.mark.filterwarnings("ignore::vitrail.errors.Renamed")
def test_the_unit_of_an_old_spelling_is_the_unit_of_the_new_one(tmp_path: Path) -> None:
    words(new=False)
    old = Plan("demo", "scenes:4", (OLD_METHOD,), (OLD_METRIC,), chunk=2)
    place = str(tmp_path / "run")
    before = run(old, place)
    folders, unit = sorted(parts_of(Store(place))), Unit(OLD_METHOD, 0, ()).name
    forget()
    words(new=True)
    assert Unit(NEW_METHOD, 0, ()).name == Unit(OLD_METHOD, 0, ()).name == unit
    for method, metric in ((OLD_METHOD, OLD_METRIC), (NEW_METHOD, NEW_METRIC)):
        after = run(Plan("demo", "scenes:4", (method,), (metric,), chunk=2), place)
        assert asked == [], "all of it is there"
        assert sorted(parts_of(Store(place))) == folders
        assert [(row.method, row.metric) for row in after.rows] == [(NEW_METHOD, NEW_METRIC)]
        assert after.rows[0].value == before.rows[0].value


@pytest.mark.parametrize("ours", [False, True])
def test_a_run_of_old_words_is_reported_and_gone_on_with(tmp_path: Path, ours: bool) -> None:
    words(new=False)
    perform(protocol(OLD_METHOD, OLD_METRIC, ours=ours), str(tmp_path / "run"))
    forget()
    words(new=True)
    store = Store(str(tmp_path / "run"))
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", Renamed)  # who reads a stored run wrote none of its words
        result = report.Result.of(store)
        (section,) = result.sections
        assert [(row.spec, row.done) for row in section.rows] == [(NEW_METHOD, 2)]
        assert [heading.column.name for heading in section.headings] == [NEW_METRIC]
        perform(protocol(NEW_METHOD, NEW_METRIC, ours=ours), store)
    assert asked == []
    (section,) = report.Result.of(store).sections
    assert [row.spec for row in section.rows] == [NEW_METHOD]
    assert len(section.headings) == 1
