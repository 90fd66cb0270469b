"""``vitrail explain``: pictures in, a comparison sheet and the maps out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.checks import check_methods, check_named, check_targets
from vitrail.cli.labels import Labelled, beside, read_labels
from vitrail.cli.options import Looking, say
from vitrail.errors import InputError
from vitrail.files import slug

if TYPE_CHECKING:
    from vitrail.explanation import Explanation
    from vitrail.model import TargetLike, View


@dataclass(frozen=True, kw_only=True)
class Explain(Looking):
    """Explain why a model labels pictures as it does.

    Example: vitrail scenes --count 2 && vitrail explain scenes/pictures --method decompx gradcam --out out
    """

    method: tuple[str, ...] = ("auto",)
    """One or more methods, such as genatt or "ig(steps=20)"; see: vitrail methods."""
    target: tuple[str, ...] = ("predicted",)
    """One or more things to explain of every picture, a column each: predicted, a class number or name, label (each
    picture's own, of the labels file), or (open_clip) any text."""
    labels: Path | None = None
    """A CSV file with the columns file and class (number or name), for label; two lines a picture give two columns."""
    style: Literal["auto", "signed", "heat"] = "auto"
    """Colours: red for and blue against the class (signed), dark to bright (heat), or as each method is meant."""
    out: Path = Path("vitrail-out")
    """Where to write the sheet and the maps."""

    def run(self) -> None:
        """Explain, write, and say where."""
        from vitrail.explanation import sheet_of
        from vitrail.files import check_writable, write_whole
        from vitrail.front import called, explain_each

        check_methods(self.method)  # a typo should be told before a model is loaded
        check_named("--target", self.target, "thing to explain", "give predicted, or a class by its name or number")
        check_writable(self.out)
        sources = self.sources()
        targets = targets_of(self.target, self.labels, [Path(source).name for source in sources])
        view = self.view()
        check_methods(self.method, view)
        check_targets(view, self.target)
        aims = with_rivals(view, targets)
        # Those on the sheet are read here; the others when their turn comes. No file is read twice.
        pictures = [view.preprocess.picture(source) for source in sources[:SHEET_ROWS]]
        inputs = [*(view.preprocess.normalise(picture) for picture in pictures), *sources[SHEET_ROWS:]]
        what: dict[str, Any] = {"targets": aims} if len(aims) > 1 else {"target": next(iter(aims.values()))}
        names = [called(source, i) for i, source in enumerate(sources)]
        found = explain_each(view, inputs, self.method, names=names, **what, **self.how())
        columns = {(one.method, name): own for one in found for name, own in zip(aims, one.each())}
        heads = [f"{method}: {column_name(target, one)}" for (method, target), one in columns.items()]
        sheet = sheet_of(
            [one.first(SHEET_ROWS) for one in columns.values()],
            pictures,
            style=self.style,
            names=heads if len(aims) > 1 else None,
        )
        for one in found:
            one.save(self.out / slug(one.method), style=self.style)
        write_whole(self.out / "sheet.png", lambda file: sheet.save(file, "PNG"))
        if not self.quiet:
            _report(found[0].each())
        for line in remarks({name: [one for (_, own), one in columns.items() if own == name] for name in aims}):
            say(line, self.quiet)
        note = f" (the first {SHEET_ROWS} of {len(sources)} pictures)" if len(sources) > SHEET_ROWS else ""
        say(f"sheet: {self.out / 'sheet.png'}{note}", self.quiet)
        say(f"maps:  {self.out}/*/maps.npz", self.quiet)


PREDICTED, LABEL = "predicted", "label"


def column_name(target: str, explanation: "Explanation") -> str:
    """What a target is called above its column: a class's own name, not its number."""
    return target if target.startswith((PREDICTED, LABEL)) else explanation.explained(0)


def targets_of(asked: Sequence[str], labels: Path | None, names: Sequence[str]) -> dict[str, str | list[Labelled]]:
    """What is explained: a name for each column, and its target (one for all pictures, or a line of labels each).

    Args:
        asked: The words given.
        labels: The labels file.
        names: The pictures' file names.
    """
    found: dict[str, str | list[Labelled]] = {}
    for word in asked:
        if word in found:
            raise InputError(f"--target names {word} twice; name it once")
        if word != LABEL:
            found[word] = word
            continue
        if labels is None:
            raise InputError("--target label needs --labels FILE.csv")
        lines = read_labels(labels, names)
        for name, own in zip(names, lines):
            if len(own) != len(lines[0]):
                raise InputError(
                    f"{labels} has {len(lines[0])} lines of {names[0]} and {len(own)} of {name}; each line of a "
                    "picture is a column of its own, so give every picture as many"
                )
        for column in range(len(lines[0])):
            found[LABEL if column == 0 else f"{LABEL} {column + 1}"] = [own[column] for own in lines]
    if labels is not None and LABEL not in asked:
        raise InputError("--labels is read for --target label; add that, or leave --labels out")
    return found


def with_rivals(view: "View", targets: Mapping[str, str | list[Labelled]]) -> dict[str, "TargetLike"]:
    """The targets, where a picture's line in the labels file knows the classes of its other lines."""
    lines = {name: own for name, own in targets.items() if isinstance(own, list)}
    found: dict[str, TargetLike] = {name: own for name, own in targets.items() if isinstance(own, str)}
    for name, own in lines.items():
        rest = [other for key, other in lines.items() if key != name]
        found[name] = beside(view, own, list(zip(*rest)) if rest else [[] for _ in own])
    return {name: found[name] for name in targets}


SHEET_ROWS = 20


def remarks(found: Mapping[str, Sequence["Explanation"]]) -> list[str]:
    """What readers of the maps must know: a line a sentence, with the pictures that it is about.

    Args:
        found: The explanations of each target.
    """
    lines = []
    for target, explanations in found.items():
        about: dict[str, list[str]] = {}
        for one in explanations:
            for name, notes in zip(one.images, one.notes):
                for note in notes:
                    about.setdefault(note, []).append(name)
        which = f" explaining {target!r}" if len(found) > 1 else ""
        for note, names in about.items():
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            lines.append(f"note:  {note} ({', '.join(names[:5])}{more}{which})")
    return lines


def _report(explanations: Sequence["Explanation"]) -> None:
    """What the model predicts of each picture, and what is explained, by one method: a line for every target."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from vitrail.show import percent

    first = explanations[0]
    table = Table("image", "predicted", "probability", "explained", "probability", title=first.model)
    for i, name in enumerate(first.images[:SHEET_ROWS]):
        best: list[tuple[str, float | None]] = [*first.predictions(i, 1), ("one answer", None)]
        picture = (escape(name), escape(best[0][0]), "-" if best[0][1] is None else percent(best[0][1]))
        for one in explanations:
            chance = one.probability(i)
            table.add_row(*picture, escape(one.explained(i)), "-" if chance is None else percent(chance))
            picture = ("", "", "")
    Console().print(table)
