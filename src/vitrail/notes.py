"""Sentences about single maps, summed up over many."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

NUMBER = re.compile(r"\d+(?:\.\d+)?")

RANKED = 0.5
"""A method whose maps are empty for this share of the pictures, or more, is not ranked among the others."""


def summed(notes: Iterable[Sequence[str]]) -> dict[str, int]:
    """What is said of maps -> of how many; sentences that differ in their numbers alone become one.

    Args:
        notes: The sentences about each map.

    Example:
        >>> summed([("3 of 49 are tied",), ("5 of 49 are tied",), ()])
        {'3 to 5 of 49 are tied': 2}
    """
    found: dict[str, list[list[str]]] = {}
    for sentences in notes:
        for sentence in sentences:
            found.setdefault(NUMBER.sub("\0", sentence), []).append(NUMBER.findall(sentence))
    counts: Counter[str] = Counter()
    for form, numbers in found.items():
        spans = [_span(column) for column in zip(*numbers)]
        words = form.split("\0")
        counts["".join(word + span for word, span in zip(words, [*spans, ""]))] = len(numbers)
    return dict(counts.most_common())


def _span(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if low == high else f"{low} to {high}"


def evidence(empty: int, pictures: int) -> str:
    """What is said of a method with so many empty maps; nothing where it has none.

    Example:
        >>> evidence(1, 4), evidence(4, 4)
        ('no evidence on 1 of 4 pictures', 'no evidence on 4 of 4 pictures, so it is not ranked')
    """
    if not empty:
        return ""
    unranked = "" if ranked(empty, pictures) else ", so it is not ranked"
    return f"no evidence on {empty:,} of {pictures:,} pictures{unranked}"


def ranked(empty: int, pictures: int) -> bool:
    """Whether a method with so many empty maps may be compared with others."""
    return empty < RANKED * pictures or not empty
