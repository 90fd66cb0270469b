"""Explanations as pictures: strips of maps alone, and comparison sheets over the pictures that they explain."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from vitrail import show
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.explanation.value import Explanation


def sheet_of(
    explanations: Sequence["Explanation"],
    images: Sequence[Any],
    title: str = "",
    style: show.Style = "auto",
    names: Sequence[str] | None = None,
) -> Image.Image:
    """A comparison sheet: one row an image, one column an explanation.

    Explanations may be by several methods, of several classes, or of several models; where those of one image are of
    different classes or models, each says what it explains, and how probable that is.

    Args:
        explanations: Of the same images.
        images: The pictures as the model saw them.
        title: Written above.
        style: ``signed`` draws red for the class and blue against it, ``heat`` dark to bright; ``auto`` as each method
            is meant, see `Method.signed`.
        names: What stands above each column; the method by default, with whatever tells it from the others.
    """
    from vitrail.model import pictures

    if not explanations:
        raise InputError("a comparison sheet needs at least one explanation, but none was given")
    explanations = [one for explanation in explanations for one in explanation.each()]  # a column a target
    first = explanations[0]
    if any(e.images != first.images for e in explanations) or len(images) != len(first):
        raise InputError("a comparison sheet needs explanations of the same images, and one picture for each of them")
    one_model = all(_answers(e) == _answers(first) for e in explanations)
    sentences = footnotes(explanations)
    rows = [
        show.Row(
            picture=pictures.read(image),
            title=first.images[i],
            predictions=tuple(first.predictions(i)) if one_model else (),
            cells=tuple(
                show.Cell(e.maps[i].numpy(), marked(e.notes[i], sentences), e.explained(i), e.probability(i))
                for e in explanations
            ),
        )
        for i, image in enumerate(images)
    ]
    if names is not None and len(names) != len(explanations):
        raise InputError(f"{len(names)} names were given for {len(explanations)} explanations; give one each")
    columns = [
        show.Column(name, e.is_signed(style), e.enlarged)
        for name, e in zip(names or _heads(explanations), explanations)
    ]
    models = ", ".join(dict.fromkeys(e.model for e in explanations))
    costs = ", ".join(f"{column.name} {e.seconds / len(e):.2f} s" for column, e in zip(columns, explanations))
    footer = f"{models} · seconds an image: {costs} · vitrail {first.versions['vitrail']}"
    return show.sheet(rows, columns, title=title, footer="\n".join([*numbered(sentences), footer]))


def strip_of(explanation: "Explanation", style: show.Style = "auto") -> Image.Image:
    """The maps side by side, with what each explains."""
    sentences = footnotes([explanation])
    labels = []
    for i, name in enumerate(explanation.images):
        for one in explanation.each():
            chance = one.probability(i)
            said = one.explained(i) + ("" if chance is None else f" {show.percent(chance)}")
            labels.append("\n".join(filter(None, (name, said, marked(one.notes[i], sentences)))))
    return show.strip(
        explanation.maps.flatten(0, -3).numpy(),
        labels,
        title=f"{explanation.method} on {explanation.model}",
        signed=explanation.is_signed(style),
        mode=explanation.enlarged,
        footer="\n".join(numbered(sentences)),
    )


def footnotes(explanations: Sequence["Explanation"]) -> list[str]:
    """Every sentence that a reader of some map must know, once."""
    return list(dict.fromkeys(note for e in explanations for notes in e.notes for note in notes))


def numbered(sentences: Sequence[str]) -> list[str]:
    """The sentences as lines that `marked` refers to."""
    return [f"Note {number}: {sentence}." for number, sentence in enumerate(sentences, 1)]


def marked(notes: Sequence[str], sentences: Sequence[str]) -> str:
    """Which of the numbered sentences a map's notes are; empty where it has none.

    Example:
        >>> marked(("the map is empty",), ["few masks", "the map is empty"])
        'note 2'
    """
    numbers = [str(sentences.index(note) + 1) for note in notes]
    return f"note{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else ""


def _answers(explanation: "Explanation") -> tuple[Any, ...]:
    """What the probabilities of an explanation's images depend on."""
    return explanation.model, explanation.fingerprint, explanation.class_names, explanation.size


def _heads(explanations: Sequence["Explanation"]) -> list[str]:
    """A name for each column: the method, and whatever else tells it from the others."""
    several = len({e.model for e in explanations}) > 1
    heads = [f"{e.method} on {e.model}" if several else e.method for e in explanations]
    often = Counter(heads)
    found = []
    for head, e in zip(heads, explanations):
        classes = {e.explained(i) for i in range(len(e))}
        found.append(f"{head}: {classes.pop()}" if often[head] > 1 and len(classes) == 1 else head)
    return found
