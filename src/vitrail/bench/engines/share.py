"""How work is shared out: whole chunks of images, in an order of chance."""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from vitrail.bench.unit import Unit

Entry: TypeAlias = tuple[Unit, Sequence[str]]
"""A unit of work, and the parts that the store has of it."""


def chunks(todo: Sequence[Entry]) -> list[list[Entry]]:
    """Work by the images it is on: who does it opens them once for all methods.

    The order of both is one of chance, another each time: so runners that share a folder seldom do the same, and what
    is there early is a fair sample of a dataset that is sorted by class.
    """
    found: defaultdict[int, list[Entry]] = defaultdict(list)
    for unit, parts in todo:
        found[unit.number].append((unit, parts))
    chance = random.Random()  # the random state around stays as it is
    return chance.sample([chance.sample(entries, len(entries)) for entries in found.values()], len(found))
