"""``vitrail methods``: what there is."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitrail.cli.listing import parameter, show
from vitrail.errors import InputError


@dataclass(frozen=True)
class Methods:
    """List the methods: family, paper, what they need from a model, what they cost.

    Example: vitrail methods "*cam*"
    """

    pattern: Annotated[str, tyro.conf.Positional] = "*"
    """Show only ids that match, for example "*cam*"."""
    json: bool = False
    """Print a JSON list instead of a table."""

    def run(self) -> None:
        """Print the table, or the JSON list."""
        from vitrail.method import METHODS

        found = METHODS.schema(self.pattern)
        if self.json:
            print(json.dumps(found, indent=1))
            return
        if not found:
            raise InputError(f"no method matches {self.pattern!r}; see all with: vitrail methods")
        rows = []
        for one in sorted(found, key=lambda one: (one["family"], one["id"])):
            alone = [parameter(told) for told in one["schema"]]
            short = ", ".join(f"{key}={value}" for key, value in one["params"].items())
            parameters = "\n".join(alone) if len(found) == 1 else short
            rows.append((one["id"], one["family"], one["cost"], one["paper"], ", ".join(one["needs"]), parameters))
        show(("method", "family", "cost", "paper", "needs", "parameters"), rows)
