"""``vitrail protocols``: the papers' tables and figures that can be run."""

import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitrail.cli.listing import show
from vitrail.errors import InputError


@dataclass(frozen=True)
class Protocols:
    """List the protocols: the papers' tables and figures, with their models, methods and columns.

    Example: vitrail protocols "mda/*"
    """

    pattern: Annotated[str, tyro.conf.Positional] = "*"
    """Show only names that match, for example "mda/*"."""
    json: bool = False
    """Print a JSON list, with all that the protocols say, instead of a table."""

    def run(self) -> None:
        """Print the table, or the JSON list."""
        from vitrail.bench import protocols, read_protocol, to_dict

        found = [read_protocol(name) for name in protocols(self.pattern)]
        if self.json:
            print(json.dumps([to_dict(one) for one in found], indent=1))
            return
        if not found:
            raise InputError(f"no protocol matches {self.pattern!r}; see all with: vitrail protocols")
        rows = []
        for one in found:
            models, counts = ((part.model for part in one.parts), (str(len(part.labels)) for part in one.parts))
            columns = (column.name for part in one.parts for column in part.columns)
            lists = (", ".join(dict.fromkeys(every)) for every in (models, counts, columns))
            rows.append((one.name, one.title, one.paper, ", ".join(part.name for part in one.parts), *lists))
        show(("protocol", "title", "paper", "parts", "models", "methods", "columns"), rows)
