"""What a run of a protocol found, as a value: no model, no data, no maps. Every form of a report is made from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.bench.protocol import Column, Sweep
from vitrail.bench.store import Store


@dataclass(frozen=True)
class Cell:
    """One method in one column; NaN and None where there is nothing yet.

    Attributes:
        value: The number of all pictures.
        low: The lower end of its 95 % interval.
        high: The upper end.
        images: How many pictures count.
        rank: Its place in the column, 1 for the best; equal numbers share one.
        best: Whether no method has a better number.
        tied: Whether it is not the best, but not significantly worse either.
        published: What the paper found.
    """

    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    images: int = 0
    rank: int | None = None
    best: bool = False
    tied: bool = False
    published: float | None = None

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return bool(np.isfinite(self.value))


@dataclass(frozen=True)
class Row:
    """A method.

    Attributes:
        label: What the report calls it.
        spec: Its spec; empty for one that only the paper has.
        ours: Whether the paper does not have it.
        cells: One a column.
        seconds: Time an image takes, the median; NaN where nothing was explained.
        forwards: Forward passes an image takes, the mean.
        backwards: Backward passes likewise; NaN in runs from before these were counted.
        failed: Why it has no map of some pictures, and of how many.
        empty: How many of its maps hold no evidence.
        maps: How many maps it has.
        told: What its maps' notes say, and of how many.
        done: Units of work that are done.
    """

    label: str
    spec: str
    ours: bool
    cells: tuple[Cell, ...]
    seconds: float = np.nan
    forwards: float = np.nan
    backwards: float = np.nan
    failed: Mapping[str, int] = field(default_factory=dict)
    empty: int = 0
    maps: int = 0
    told: Mapping[str, int] = field(default_factory=dict)
    done: int = 0

    @property
    def rank(self) -> float:
        """The mean of its ranks over the columns; NaN unless it has one in each."""
        ranks = [cell.rank for cell in self.cells]
        return float(np.mean([np.nan if rank is None else rank for rank in ranks]))


@dataclass(frozen=True)
class Agreement:
    """How far our order of the methods is the paper's, over those that both have a number for.

    Attributes:
        methods: How many there are.
        rho: Spearman's rank correlation.
        tau: Kendall's.
    """

    methods: int
    rho: float
    tau: float


@dataclass(frozen=True)
class Standing:
    """The methods' mean ranks over the pictures, see `vitrail.metric.statistics.friedman`.

    Attributes:
        ranks: Method's spec -> mean rank, 1 for the best.
        p: Friedman's test.
        critical_difference: Mean ranks closer than this cannot be told apart (Nemenyi, 5 %).
        images: How many pictures all methods have a number for.
    """

    ranks: Mapping[str, float]
    p: float
    critical_difference: float
    images: int


@dataclass(frozen=True)
class Heading:
    """A column.

    Attributes:
        column: What is measured.
        decimals: Digits behind the point that its numbers are shown with.
        published_decimals: The same for the paper's numbers: as many as its most exact one has.
        own_total: Whether its metric sums up all pictures otherwise than by their mean.
        agreement: With the paper, where there are three methods to compare.
        standing: Where there are three methods and two pictures.
    """

    column: Column
    decimals: int = 3
    published_decimals: int = 0
    own_total: bool = False
    agreement: Agreement | None = None
    standing: Standing | None = None

    @property
    def name(self) -> str:
        """What it is called, with an arrow to the better side."""
        return f"{self.column.name} {'↑' if self.column.higher_is_better else '↓'}"


@dataclass(frozen=True)
class Section:
    """A part of a protocol: one model on one dataset.

    Attributes:
        name: What the part is called.
        headings: The columns.
        rows: The methods: the paper's first, then ours.
        facts: The run's manifest; empty where the run has not begun.
        images: How many pictures take part.
        left_out: Why the filter left pictures out, and how many.
        wanted: Units of work for each method, once the pictures are chosen.
        published_for: What the paper's numbers are for.
        sweep: Where it is a figure over a parameter.
        state: Why there is no number at all yet.
    """

    name: str
    headings: tuple[Heading, ...]
    rows: tuple[Row, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    images: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    wanted: int = 0
    published_for: str = ""
    sweep: Sweep | None = None
    state: str = ""

    @property
    def run(self) -> list[Row]:
        """The methods that are run, each spec once."""
        return list({row.spec: row for row in self.rows if row.spec}.values())

    @property
    def missing(self) -> dict[str, int]:
        """Methods -> units of work that are not done."""
        return {row.label: self.wanted - row.done for row in self.run if row.done < self.wanted}


@dataclass(frozen=True)
class Result:
    """All that a report says.

    Attributes:
        name: The protocol's name.
        title: What it shows.
        paper: Whose it is.
        note: What the numbers depend on.
        place: The run's folder.
        sections: One a part.
        command: How to run it again, where that was put down.
    """

    name: str
    title: str
    paper: str
    note: str
    place: str
    sections: tuple[Section, ...]
    command: str | None = None

    @classmethod
    def of(cls, run: str | Store) -> "Result":
        """What the run of a protocol found.

        Args:
            run: Its folder, or a URL that fsspec knows.
        """
        from vitrail.bench.report.gathering import read

        return read(run if isinstance(run, Store) else Store(run))
