"""``vitrail explain``: pictures in, a comparison sheet and the maps out."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.options import Looking, say

if TYPE_CHECKING:
    from vitrail.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class Explain(Looking):
    """Explain why a model labels pictures as it does.

    Example: vitrail scenes --count 2 && vitrail explain scenes/pictures --method decompx gradcam --out out
    """

    method: tuple[str, ...] = ("auto",)
    """One or more methods, such as genatt or "ig(steps=20)"; see: vitrail methods."""
    target: str = "predicted"
    """What to explain: predicted, a class number, a class name, or (open_clip) any text."""
    out: Path = Path("vitrail-out")
    """Where to write the sheet and the maps."""

    def run(self) -> None:
        """Explain, write, and say where."""
        from vitrail import explain
        from vitrail.explanation import check_writable, sheet_of, write_whole
        from vitrail.method import parse
        from vitrail.model import sources_of

        for spec in self.method:
            if spec != "auto":
                parse(spec)  # a typo should be told before a model is loaded
        check_writable(self.out)
        sources = sources_of(list(self.images))
        view = self.view()
        found = [
            explain(
                view,
                sources,
                spec,
                self.target,
                **self.how(),
            )
            for spec in self.method
        ]
        shown = sources[:SHEET_ROWS]
        pictures = [view.preprocess.picture(source) for source in shown]
        part = [explanation.first(SHEET_ROWS) for explanation in found]
        sheet = sheet_of(part, pictures)
        for explanation in found:
            explanation.save(self.out / folder_name(explanation.method))
        write_whole(self.out / "sheet.png", lambda file: sheet.save(file, "PNG"))
        if not self.quiet:
            _report(found[0])
        note = f" (the first {SHEET_ROWS} of {len(sources)} pictures)" if len(sources) > SHEET_ROWS else ""
        say(f"sheet: {self.out / 'sheet.png'}{note}", self.quiet)
        say(f"maps:  {self.out}/*/maps.npz", self.quiet)


SHEET_ROWS = 20


def folder_name(spec: str) -> str:
    """A spec string as a folder name: ``ig(steps=20)`` -> ``ig-steps=20``."""
    return re.sub(r"[^\w=.,+-]", "-", spec.replace(" ", "")).rstrip("-")


def _report(explanation: "Explanation") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("image", "predicted", "probability", "explained", title=explanation.model)
    for i, name in enumerate(explanation.images[:SHEET_ROWS]):
        label, probability = explanation.predictions(i, 1)[0]
        table.add_row(name, label, f"{probability:.1%}", explanation.explained(i))
    Console().print(table)
