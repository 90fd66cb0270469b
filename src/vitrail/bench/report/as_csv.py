"""CSV: a line for each method and column, for spreadsheets and scripts."""

import csv as writer
import io
from typing import Any

import numpy as np

from vitrail.bench.report.result import Result

HEADS = (
    *("part", "method", "spec", "column", "value", "low", "high", "images", "rank", "best", "tied"),
    *("published", "seconds", "forwards", "backwards", "empty"),
)


def csv(result: Result) -> str:
    """The result as CSV with all digits; what is not known is empty.

    Args:
        result: What a run found.
    """
    text = io.StringIO()
    lines = writer.writer(text, lineterminator="\n")
    lines.writerow(HEADS)
    for section in result.sections:
        for row in section.rows:
            for heading, cell in zip(section.headings, row.cells):
                numbers = (cell.value, cell.low, cell.high, cell.images, cell.rank, cell.best, cell.tied)
                values = (*numbers, cell.published, row.seconds, row.forwards, row.backwards, row.empty)
                named = (section.name, row.label, row.spec, heading.column.name)
                lines.writerow([*named, *map(_written, values)])
    return text.getvalue()


def _written(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or not np.isfinite(value) else value
