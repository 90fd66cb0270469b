"""``vitrail report``: a run of a paper's table in, the table with intervals and the paper's numbers out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.options import Quiet, say


@dataclass(frozen=True)
class Report:
    """Report a run of a protocol: print it, or write it to files.

    Example: vitrail bench scenes --part object --methods ixg --metrics mIoU --limit 2 && vitrail report runs/scenes
    """

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run, or a URL that fsspec knows; unfinished runs are reported as far as they are."""
    form: Literal["terminal", "markdown", "latex", "csv", "html"] | None = None
    """Only this form; printed unless --out says where to write it."""
    out: Path | None = None
    """A file (.md, .tex, .csv, .html, .txt), or a folder for all forms and the plots."""
    quiet: Quiet = False

    def run(self) -> None:
        """Read the run, and print or write its report."""
        from vitrail.bench import report
        from vitrail.files import check_writable

        if self.out is not None:
            check_writable(self.out.parent)
        found = report.Result.of(self.folder)
        if self.out is None:
            print(report.text(found, self.form or "terminal"), end="")
            return
        for path in report.write(found, self.out, self.form):
            say(f"report: {path}", self.quiet)
