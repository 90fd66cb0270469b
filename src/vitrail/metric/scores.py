"""Scores are a value: every method by every metric, image by image, with intervals and the exact protocol."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import InputError
from vitrail.files import write_whole
from vitrail.method import METHODS, parse
from vitrail.metric.base import METRICS
from vitrail.metric.base import parse as parse_metric
from vitrail.metric.faithfulness.curve import Curve
from vitrail.metric.statistics import Difference, Numbers, Ranking, band, friedman, paired_bootstrap, win_rates
from vitrail.notes import evidence, ranked


@dataclass(frozen=True, eq=False)
class Score:
    """One method judged by one metric.

    Attributes:
        method: The method's spec, or the name it was given.
        metric: The metric's spec.
        value: The number of all images: their mean, unless the metric sums up otherwise.
        low: The lower end of its 95 % bootstrap interval.
        high: The upper end.
        higher_is_better: Whether a larger number speaks for the method.
        each: (N,) the number of each image, NaN where it does not count.
        protocol: All parameters of the metric, what was explained, and the model's arithmetic.
        curve: The curves of all images, for metrics that are the area under one.
    """

    method: str
    metric: str
    value: float
    low: float
    high: float
    higher_is_better: bool
    each: Numbers
    protocol: dict[str, Any]
    curve: Curve | None = None

    @property
    def counted(self) -> int:
        """How many images count."""
        return int(np.isfinite(self.each).sum())

    @property
    def skipped(self) -> int:
        """How many do not: no object in the mask, too unsure an answer, ..."""
        return len(self.each) - self.counted

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return (
            f"{self.method}, {self.metric}: {self.value:.4g} ({self.low:.4g} to {self.high:.4g}, "
            f"{self.counted} images{skipped})"
        )


@dataclass(frozen=True, eq=False)
class Scores:
    """Methods by metrics, on the same images.

    Attributes:
        rows: One a method and metric.
        images: What each image is called.
        model: The model's name.
        fingerprint: A hash of its weights.
        seconds: Wall time, explanations included.
        forwards: Images pushed forward through the model, explanations included.
        versions: Library versions.
        empty: Of each method, how many of its maps hold no evidence (see `Explanation.empty`). One with as many as
            half of them is not ranked.
        told: Of each method, what its maps' notes say, and of how many maps.
        notes: What else a reader of the table must know.
    """

    rows: tuple[Score, ...]
    images: tuple[str, ...]
    model: str
    fingerprint: str
    seconds: float
    forwards: int
    versions: dict[str, str]
    empty: Mapping[str, int] = field(default_factory=dict)
    told: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def methods(self) -> list[str]:
        """The methods, in the order given."""
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def metrics(self) -> list[str]:
        """The metrics' specs, in the order given."""
        return list(dict.fromkeys(row.metric for row in self.rows))

    def __repr__(self) -> str:
        return f"Scores({self.model}, {len(self.images)} images, {self.seconds:.1f} s)\n{self.table()}"

    def row(self, metric: str, method: str | None = None) -> Score:
        """The row of a metric and a method (the only one by default).

        Each is known by its name in the table, by any way to write its spec (``skipplus`` for ``skipplus(decompx)``),
        or by its id where that is clear.
        """
        found = _named(self.rows, metric, lambda row: (row.metric, row.protocol["metric"]["id"]), _metric)
        if method is not None:
            found = _named(found, method, lambda row: (row.method, row.method.partition("(")[0]), _method)
        if len(found) != 1:
            problem = "more than one row has" if found else "no row has"
            raise InputError(
                f"{problem} the metric {metric!r}{f' and the method {method!r}' if method else ''}; "
                f"there are the metrics {', '.join(self.metrics)} and the methods {', '.join(self.methods)}"
            )
        return found[0]

    def ranks(self, method: str) -> bool:
        """Whether a method is ranked: not where its maps are empty for half of the pictures or more."""
        return ranked(self.empty.get(method, 0), len(self.images))

    # -------------------------------------------------------------------------------------------- between methods

    def each(self, metric: str) -> Numbers:
        """(images, methods): the numbers of one metric."""
        return np.stack([self.row(metric, method).each for method in self.methods], 1)

    def difference(self, metric: str, one: str, other: str) -> Difference:
        """One method minus another by a metric, with its interval (paired bootstrap)."""
        return paired_bootstrap(self.row(metric, one).each, self.row(metric, other).each)

    def ranking(self, metric: str) -> Ranking:
        """The methods' mean ranks, Friedman's test and the critical difference; NaN for one that is not ranked."""
        able = np.array([self.ranks(method) for method in self.methods])
        found = friedman(self.each(metric)[:, able], self.row(metric, self.methods[0]).higher_is_better)
        places = np.full(len(able), np.nan)
        places[able] = found.ranks
        return replace(found, ranks=places)

    def win_rates(self, metric: str) -> Numbers:
        """(methods, methods): how often one beats the other."""
        return win_rates(self.each(metric), self.row(metric, self.methods[0]).higher_is_better)

    # --------------------------------------------------------------------------------------------------- to look at

    def table(self) -> str:
        """Markdown: a line a method, a column a metric; the best in bold, arrows show which way is better.

        Below it, one line a metric says exactly how it was measured.
        """
        columns = [[self.row(metric, method) for method in self.methods] for metric in self.metrics]
        heads = [f"{spec} {'↑' if column[0].higher_is_better else '↓'}" for spec, column in zip(self.metrics, columns)]
        lines = [f"| method | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
        for i, method in enumerate(self.methods):
            cells = [_cell(column[i], [row for row in column if self.ranks(row.method)]) for column in columns]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        lines += ["", *(_protocol_line(column[0]) for column in columns), *(f"- {line}" for line in self.remarks())]
        return "\n".join(lines)

    def remarks(self) -> list[str]:
        """What a reader must know of the methods' maps, in lines."""
        lines = []
        for method in self.methods:
            nothing = evidence(self.empty.get(method, 0), len(self.images))
            lines += [f"{method}: {nothing}"] if nothing else []
            lines += [f"{said} ({_pictures(count)})" for said, count in self.told.get(method, {}).items()]
        return [*lines, *self.notes]

    def cautions(self) -> list[str]:
        """What a reader must know of the metrics' numbers, in lines."""
        said = [f"{row.metric}: {note}" for row in self.rows for note in row.protocol.get("notes", ())]
        return list(dict.fromkeys(said))

    def draw(self, metric: str, path: str | Path | None = None) -> Any:
        """The mean curves of all methods by a metric, with 95 % bootstrap bands (AHA figure 6), as a PIL picture.

        Args:
            metric: A metric that is the area under a curve.
            path: Where to write it too, as PNG.
        """
        from vitrail import show

        lines: list[show.Line] = []
        first: Curve | None = None
        for method in self.methods:
            row = self.row(metric, method)
            if row.curve is None:
                raise InputError(f"{row.metric} is no area under a curve, so there is nothing to draw")
            values = row.curve.responses.numpy()
            sure = band(values) if len(values) > 1 else None
            lines.append(show.Line(method, row.curve.fractions.numpy(), values, row.value, sure))
            first = first or row.curve
        way = "shown" if first is not None and first.rising else "removed"
        up = "" if first is None else first.answer
        picture = show.mean_curves(lines, title=metric, across=f"share of the picture {way}", up=up)
        if path is not None:
            write_whole(Path(path), lambda file: picture.save(file, "PNG"))
        return picture

    # -------------------------------------------------------------------------------------------------------- to keep

    def to_parquet(self, path: str | Path) -> Path:
        """Write one line a method, metric and image; the totals are in the file's metadata. Whole, or not at all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        count = len(self.images)
        columns = {
            "method": [row.method for row in self.rows for _ in range(count)],
            "metric": [row.metric for row in self.rows for _ in range(count)],
            "image": list(self.images) * len(self.rows),
            "value": np.concatenate([row.each for row in self.rows]) if self.rows else np.empty(0),
            "higher_is_better": [row.higher_is_better for row in self.rows for _ in range(count)],
            "protocol": [text for row in self.rows for text in [json.dumps(row.protocol)] * count],
        }
        facts = {
            "rows": [
                {key: getattr(row, key) for key in ("method", "metric", "value", "low", "high", "higher_is_better")}
                | {"protocol": row.protocol}
                for row in self.rows
            ],
            **{key: getattr(self, key) for key in (*FACTS, *REMARKS)},
        }
        table = pa.table(columns).replace_schema_metadata({"vitrail": json.dumps(facts)})
        write_whole(Path(path), lambda file: pq.write_table(table, file))
        return Path(path)

    @classmethod
    def from_parquet(cls, path: str | Path) -> "Scores":
        """Read scores that `to_parquet` wrote; curves are not among them."""
        import pyarrow.parquet as pq

        try:
            with Path(path).open("rb") as file:
                table = pq.read_table(file)
            facts = json.loads(table.schema.metadata[b"vitrail"])
            values = table["value"].to_numpy().reshape(len(facts["rows"]), -1)
            rows = tuple(Score(**row, each=each) for row, each in zip(facts["rows"], values))
            known = {key: facts[key] for key in FACTS} | {key: facts[key] for key in REMARKS if key in facts}
            known |= {key: tuple(known[key]) for key in ("images", "notes") if key in known}
            return cls(rows, **known)
        except Exception as error:  # a damaged file may raise nearly anything
            raise InputError(f"{path} holds no scores that can be read ({error}); write it with to_parquet") from error


FACTS = ("images", "model", "fingerprint", "seconds", "forwards", "versions")

REMARKS = ("empty", "told", "notes")
"""What older files do not hold."""


def _named(
    rows: Sequence[Score], name: str, names: Callable[[Score], tuple[str, str]], spec: Callable[[str], str | None]
) -> list[Score]:
    """The rows of that very name; else those whose spec it is, however it is written; else those of that id."""
    for wanted, which in ((name, 0), (spec(name), 0), (name, 1)):
        found = [row for row in rows if names(row)[which] == wanted]
        if found:
            return found
    return []


def _metric(name: str) -> str | None:
    return parse_metric(name).spec if name.partition("(")[0] in METRICS else None


def _method(name: str) -> str | None:
    return parse(name).spec if name.partition("(")[0] in METHODS else None


def _pictures(count: int) -> str:
    return f"{count:,} picture{'' if count == 1 else 's'}"


def _cell(row: Score, column: Sequence[Score]) -> str:
    best = (max if row.higher_is_better else min)(
        (other.value for other in column if np.isfinite(other.value)), default=None
    )
    text = f"{row.value:.3f}"
    bold = f"**{text}**" if len(column) > 1 and row in column and row.value == best else text
    return f"{bold} ({row.low:.3f} to {row.high:.3f})"


def _protocol_line(row: Score) -> str:
    metric = row.protocol["metric"]
    said = ", ".join(f"{key} {_short(value)}" for key, value in metric.items() if key != "id")
    skipped = f"; {row.skipped} skipped" if row.skipped else ""
    notes = "".join(f"; {note}" for note in row.protocol.get("notes", ()))
    return f"- `{row.metric}`: {said or 'no parameters'}; {row.counted} images{skipped}{notes}"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{key}={_short(v)}" for key, v in value.items() if key != "id")
        return f"{value['id']}({inner})" if inner else str(value["id"])
    return "default" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)
