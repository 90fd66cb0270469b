"""Scores are a value: every method by every metric, image by image, with intervals and the exact protocol."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import InputError
from vitrail.explanation import write_whole
from vitrail.metric.curve import Curve
from vitrail.metric.statistics import Difference, Numbers, Ranking, friedman, paired_bootstrap, win_rates


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
    """

    rows: tuple[Score, ...]
    images: tuple[str, ...]
    model: str
    fingerprint: str
    seconds: float
    forwards: int
    versions: dict[str, str]

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
        """The row of a metric (its spec, or its id where that is clear) and a method (the only one by default)."""
        found = [
            row
            for row in self.rows
            if metric in (row.metric, row.protocol["metric"]["id"]) and method in (None, row.method)
        ]
        found = [row for row in found if row.metric == metric] or found
        if len(found) != 1:
            problem = "more than one row has" if found else "no row has"
            raise InputError(
                f"{problem} the metric {metric!r}{f' and the method {method!r}' if method else ''}; "
                f"there are the metrics {', '.join(self.metrics)} and the methods {', '.join(self.methods)}"
            )
        return found[0]

    # -------------------------------------------------------------------------------------------- between methods

    def each(self, metric: str) -> Numbers:
        """(images, methods): the numbers of one metric."""
        return np.stack([self.row(metric, method).each for method in self.methods], 1)

    def difference(self, metric: str, one: str, other: str) -> Difference:
        """One method minus another by a metric, with its interval (paired bootstrap)."""
        return paired_bootstrap(self.row(metric, one).each, self.row(metric, other).each)

    def ranking(self, metric: str) -> Ranking:
        """The methods' mean ranks, Friedman's test and the critical difference."""
        return friedman(self.each(metric), self.row(metric, self.methods[0]).higher_is_better)

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
            cells = [_cell(column[i], column) for column in columns]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        lines += ["", *(_protocol_line(column[0]) for column in columns)]
        return "\n".join(lines)

    def draw(self, metric: str, path: str | Path | None = None) -> Any:
        """The mean curves of all methods by a metric, with 95 % bands (AHA figure 6), as a PIL picture.

        Args:
            metric: A metric that is the area under a curve.
            path: Where to write it too, as PNG.
        """
        from vitrail import show

        lines = []
        for method in self.methods:
            row = self.row(metric, method)
            if row.curve is None:
                raise InputError(f"{row.metric} is no area under a curve, so there is nothing to draw")
            lines.append(show.Line(method, row.curve.fractions.numpy(), row.curve.responses.numpy(), row.value))
        rising = bool(lines) and self.row(metric, self.methods[0]).curve.rising  # type: ignore[union-attr]
        picture = show.mean_curves(
            lines, title=metric, across=f"share of the picture {'shown' if rising else 'removed'}"
        )
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
            **{key: getattr(self, key) for key in FACTS},
        }
        table = pa.table(columns).replace_schema_metadata({"vitrail": json.dumps(facts)})
        write_whole(Path(path), lambda file: pq.write_table(table, file))
        return Path(path)

    @classmethod
    def from_parquet(cls, path: str | Path) -> "Scores":
        """Read scores that `to_parquet` wrote; curves are not among them."""
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
            facts = json.loads(table.schema.metadata[b"vitrail"])
            values = table["value"].to_numpy().reshape(len(facts["rows"]), -1)
            rows = tuple(Score(**row, each=each) for row, each in zip(facts["rows"], values))
            return cls(rows, **{key: facts[key] for key in FACTS} | {"images": tuple(facts["images"])})
        except Exception as error:  # a damaged file may raise nearly anything
            raise InputError(f"{path} holds no scores that can be read ({error}); write it with to_parquet") from error


FACTS = ("images", "model", "fingerprint", "seconds", "forwards", "versions")


def _cell(row: Score, column: Sequence[Score]) -> str:
    best = (max if row.higher_is_better else min)(
        (other.value for other in column if np.isfinite(other.value)), default=None
    )
    text = f"{row.value:.3f}"
    bold = f"**{text}**" if len(column) > 1 and row.value == best else text
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
