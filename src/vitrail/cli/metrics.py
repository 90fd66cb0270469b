"""``vitrail metrics``: ways to judge."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitrail.cli.listing import parameter, show
from vitrail.errors import InputError


@dataclass(frozen=True)
class Metrics:
    """List the metrics: family, which way is better, what must be given, which papers' presets have them.

    Example: vitrail metrics "*aopc"
    """

    pattern: Annotated[str, tyro.conf.Positional] = "*"
    """Show only ids that match, for example "*aopc"."""
    json: bool = False
    """Print a JSON list instead of a table."""

    def run(self) -> None:
        """Print the table, or the JSON list."""
        from vitrail.metric import METRICS

        found = METRICS.schema(self.pattern)
        if self.json:
            print(json.dumps(found, indent=1))
            return
        if not found:
            raise InputError(f"no metric matches {self.pattern!r}; see all with: vitrail metrics")
        rows = []
        for one in sorted(found, key=lambda one: (one["family"], one["id"])):
            alone = [parameter(told) for told in one["schema"]]
            short = ", ".join(f"{key}={value}" for key, value in one["params"].items())
            parameters = "\n".join(alone) if len(found) == 1 else short
            better = "higher" if one["higher_is_better"] else "lower"
            lists = (", ".join(one[key]) for key in ("needs", "presets"))
            rows.append((one["id"], one["family"], better, *lists, one["paper"], parameters))
        show(("metric", "family", "better", "needs", "presets", "paper", "parameters"), rows)
