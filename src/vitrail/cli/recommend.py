"""``vitrail recommend``: which method to use for a model, tried on one's own pictures."""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitrail.cli.options import Device, Quiet, say, watched

if TYPE_CHECKING:
    from rich.table import Table

    from vitrail.bench.recommend import Candidate, Recommendation


@dataclass(frozen=True, kw_only=True)
class Recommend:
    """Say which method to use for a model: a short benchmark on your own pictures, and how sure it is.

    Example: vitrail scenes --count 2 && vitrail recommend --model demo --images scenes/pictures --methods ixg decompx
    """

    model: str
    """demo, timm/NAME (or NAME), torchvision/NAME, hf/REPOSITORY or FILE.py:FUNCTION."""
    checkpoint: Path | None = None
    """A file with the model's weights; otherwise the published ones are fetched."""
    images: tuple[str, ...]
    """A folder of pictures, or picture files: of the kind that is to be explained."""
    limit: int = 24
    """So many pictures at most, evenly spread."""
    methods: tuple[str, ...] = ()
    """Choose from these; by default from cheap ones that the model serves."""
    out: str | None = None
    """Keep the run in this folder; see it with: vitrail report FOLDER."""
    repair: bool = False
    """Make parts of the run there again whose files are damaged; otherwise they are refused."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the model's passes."""
    device: Device = None
    json: bool = False
    """Print JSON instead of words and a table."""
    quiet: Quiet = False

    def run(self) -> None:
        """Measure, and say what follows."""
        from vitrail.bench.recommend import recommend

        found = recommend(
            self.model,
            self.images,
            checkpoint=self.checkpoint,
            methods=self.methods,
            limit=self.limit,
            out=self.out,
            device=self.device,
            precision=self.precision,
            progress=watched(self.quiet),
            repair=self.repair,
            command=shlex.join(["vitrail", *sys.argv[1:]]),
        )
        if self.json:
            print(json.dumps(found.to_dict(), indent=1))
            return
        if not self.quiet:
            _show(found)
        if self.out is not None:
            say(f"run: {self.out}; all numbers: vitrail report {shlex.quote(self.out)}", self.quiet)


def _show(found: "Recommendation") -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"{found.model}, {found.images:,} pictures")
    console.print(_table(found))
    for line in found.sentences():
        console.print(line)


def _table(found: "Recommendation") -> "Table":
    from rich import box
    from rich.table import Table

    from vitrail.bench import report
    from vitrail.bench.recommend import FLOOR

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    for heading in ("Ins - Del ↑", "likeness ↓", "s/image", "forwards", "backwards"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for one in found.candidates:
        half = f" ±{report.figure((one.high - one.low) / 2, 3)}" if one.images else ""
        numbers = (
            f"{report.figure(one.value, 3)}{half}",
            report.figure(one.likeness, 2),
            report.cost(one.seconds),
            report.cost(one.passes),
            report.cost(one.backwards),
        )
        table.add_row(one.method, *numbers, _verdict(found, one))
    table.add_row(FLOOR, report.figure(found.floor, 3), "", "", "", "the floor")
    return table


def _verdict(found: "Recommendation", one: "Candidate") -> str:
    if not one.images:
        return "no map"
    if not one.passes_both:
        floor = "below random" if one.above_random.high < 0 else "as random"
        faults = {floor: not one.beats_random, "ignores the model": one.ignores_model}
        return ", ".join(words for words, true in faults.items() if true)
    if one is found.best:
        return "best"
    return "as good" if one in found.tied else "behind"
