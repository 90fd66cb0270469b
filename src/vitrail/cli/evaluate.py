"""``vitrail evaluate``: pictures and methods in, a table of scores out."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.cli.checks import check_methods, check_named
from vitrail.cli.labels import Labelled, beside, read_labels
from vitrail.cli.options import Looking, say
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.metric import Scores, Wanted


@dataclass(frozen=True, kw_only=True)
class Evaluate(Looking):
    """Judge how well methods explain a model on pictures.

    Example: vitrail scenes --count 2 && vitrail evaluate scenes/pictures --method genatt random --metric deletion
    """

    method: tuple[str, ...] = ("auto",)
    """One or more methods, such as genatt or "ig(steps=20)"; see: vitrail methods."""
    metric: tuple[str, ...] = ("insertion", "deletion")
    """One or more metrics, such as "insertion(step=448)", or presets such as rise, tis, mda; see: vitrail metrics."""
    target: str | None = None
    """What to explain: predicted, label (of the labels file), a class number or name, or (open_clip) any text; by
    default what a preset among the metrics explains, and else the predicted class."""
    labels: Path | None = None
    """A CSV file with the columns file, class (number or name) and perhaps boxes or boxes_xyxy ("x0 y0 x1 y1; ..."); a
    picture with several lines is judged once for each, and var(classes=present) compares them."""
    masks: Path | None = None
    """A folder with one PNG a picture, of the same name and size: 1 (or white) the object, 0 the rest, 255 left out."""
    out: Path = Path("vitrail-scores")
    """Where to write scores.parquet, scores.md and the curves."""

    def run(self) -> None:
        """Evaluate, write, and print the table."""
        from vitrail import evaluate
        from vitrail.data import BoxError
        from vitrail.files import check_writable, slug, write_text

        check_methods(self.method)
        check_named("--metric", self.metric, "metric", "give one such as deletion, or see: vitrail metrics")
        self._wanted(True, True)  # a typo should be told before a model is loaded
        check_writable(self.out)
        sources = [Path(source) for source in self.sources()]
        sources, lines = self._lines(sources)
        known = self._known(sources, lines)
        self._check(known)
        view = self.view()
        check_methods(self.method, view)
        if lines:
            known["labels"] = beside(view, [line.own for line in lines], [line.others for line in lines])
        try:
            found = evaluate(view, sources, self.method, self.metric, target=self.target, **known, **self.how())
        except BoxError as error:
            raise InputError(f"{lines[error.image].own.where}: {error.said}") from error
        found.to_parquet(self.out / "scores.parquet")
        text = f"# {found.model}, {len(found.images)} pictures\n\n{found.table()}\n"
        write_text(self.out / "scores.md", text)
        for row in {row.metric: row for row in found.rows if row.curve is not None}.values():
            found.draw(row.metric, self.out / "curves" / f"{slug(row.metric)}.png")
        if not self.quiet:
            _report(found)
        say(f"scores: {self.out / 'scores.parquet'}, {self.out / 'scores.md'}", self.quiet)

    def _wanted(self, masks: bool, labels: bool) -> "Wanted":
        from vitrail.metric import wanted

        return wanted(self.metric, masks=masks, labels=labels, settled=self.target is not None)

    def _check(self, known: dict[str, Any]) -> None:
        """Say which option is missing before a model is loaded."""
        from vitrail.metric import lacks, refuse_unlabelled

        masks, labels = "masks" in known or "boxes" in known, "labels" in known
        asked = self._wanted(masks, labels)
        if self.target == "label" and not labels:
            raise InputError("--target label needs --labels FILE.csv")
        if self.target is None and asked.explains == "label" and not labels:
            refuse_unlabelled(asked.presets, masks=masks)
        for metric in asked.metrics:
            lacking = lacks(metric, masks=masks, labels=labels)
            if "masks" in lacking:
                raise InputError(
                    f"{metric.spec} needs to know where the objects are; give --masks FOLDER, or --labels FILE.csv "
                    "with a column boxes"
                )
            if "labels" in lacking:
                raise InputError(
                    f"{metric.spec} needs the true classes; give --labels FILE.csv, or {metric.id}(target=predicted)"
                )

    def _lines(self, sources: list[Path]) -> tuple[list[Path], list["Line"]]:
        """The pictures, each as often as the labels file has lines of it, and these lines."""
        if self.labels is None:
            return sources, []
        lines = read_labels(self.labels, [source.name for source in sources])
        found = [Line(own, i) for own in lines for i in range(len(own))]
        return [source for source, own in zip(sources, lines) for _ in own], found

    def _known(self, sources: list[Path], lines: list["Line"]) -> dict[str, Any]:
        """What is known of the pictures: classes, boxes, masks."""
        known: dict[str, Any] = {}
        if self.labels is not None:
            known["labels"] = [line.own.given for line in lines]
            boxes = [line.own.boxes() for line in lines]
            if self.masks is None and None not in boxes:
                known["boxes"] = boxes
        if self.masks is not None:
            files = [self.masks / f"{source.stem}.png" for source in sources]
            absent = [file for file in files if not file.is_file()]
            if absent:
                raise InputError(f"there is no mask {absent[0]} ({len(absent)} of {len(files)} are missing)")
            known["masks"] = files
        return known


class Line(NamedTuple):
    """One of a picture's lines in the labels file."""

    all: list[Labelled]
    number: int

    @property
    def own(self) -> Labelled:
        """The line itself."""
        return self.all[self.number]

    @property
    def others(self) -> list[Labelled]:
        """The picture's other lines."""
        return [line for i, line in enumerate(self.all) if i != self.number]


def _report(found: "Scores") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "method", "score", "95 % interval", "images", title=found.model)
    for metric in found.metrics:
        for method in found.methods:
            row = found.row(metric, method)
            arrow = "↑" if row.higher_is_better else "↓"
            counted = f"{row.counted} ({row.skipped} skipped)" if row.skipped else str(row.counted)
            table.add_row(f"{metric} {arrow}", method, f"{row.value:.4f}", f"{row.low:.4f} to {row.high:.4f}", counted)
    Console().print(table)
    for line in [*found.cautions(), *found.remarks()]:
        Console().print(line, markup=False, highlight=False)
