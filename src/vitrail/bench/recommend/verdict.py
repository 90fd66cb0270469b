"""A recommendation as a value: what may be concluded from the numbers of a short benchmark, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from vitrail.bench.report.compare import Measured
from vitrail.bench.report.words import cost
from vitrail.metric import Difference, paired_bootstrap

FLOOR = "random"
"""What a method must beat to say anything at all."""

UNCHANGED = 0.5
"""A map fails where its rank correlation with the map of a model that has lost its weights stays above this.

Two maps of one picture share its edges and borders, so some likeness is no fault; above a half, most of a map's order
comes from elsewhere than from what the model learned.
"""

FEW = 10
"""With fewer pictures nothing is called sure: a bootstrap of so few draws the same ones again and again."""

INS_DEL = "Ins - Del"


@dataclass(frozen=True)
class Candidate:
    """A method and what the benchmark says of it.

    Attributes:
        method: Its spec.
        value: Mean Ins - Del.
        low: The lower end of its 95 % interval.
        high: The upper end.
        images: How many pictures count.
        above_random: Ins - Del minus that of random maps, on the same pictures.
        likeness: Mean rank correlation with the maps of a model that forgets; NaN where that could not be measured.
        likeness_low: The lower end of its 95 % interval.
        seconds: Time an image takes, the median.
        passes: Forward passes an image takes, the mean.
        backwards: Backward passes likewise.
    """

    method: str
    value: float
    low: float
    high: float
    images: int
    above_random: Difference
    likeness: float
    likeness_low: float
    seconds: float
    passes: float
    backwards: float

    @property
    def beats_random(self) -> bool:
        """Whether it is better than random maps, and not by chance."""
        return self.above_random.low > 0

    @property
    def ignores_model(self) -> bool:
        """Whether its maps hardly change when the model forgets; not where that could not be measured."""
        return self.likeness_low > UNCHANGED

    @property
    def passes_both(self) -> bool:
        """Whether it may be recommended."""
        return self.beats_random and not self.ignores_model


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to use, how sure that is, and what it costs.

    Attributes:
        model: The model's name.
        images: How many pictures took part.
        candidates: The methods, best Ins - Del first.
        behind: Of each other method that passes both rules: by how much the best is ahead of it.
        floor: Mean Ins - Del of random maps.
        unavailable: Methods that would have been tried, if the model offered what they need.
        failed: Why there is no map of some pictures -> in words, who lacks how many.
    """

    model: str
    images: int
    candidates: tuple[Candidate, ...]
    behind: Mapping[str, Difference]
    floor: float
    unavailable: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def passing(self) -> list[Candidate]:
        """Those that may be recommended, the best first."""
        return [one for one in self.candidates if one.passes_both]

    @property
    def best(self) -> Candidate | None:
        """The best of those that pass both rules; None where none does."""
        return self.passing[0] if self.passing else None

    @property
    def tied(self) -> list[Candidate]:
        """Those that cannot be told apart from the best: the interval of the difference does not exclude zero."""
        return [one for one in self.passing[1:] if not self.behind[one.method].low > 0]

    @property
    def sure(self) -> bool:
        """Whether the best is better than each other one, on pictures enough to say so."""
        return self.best is not None and not self.tied and self.best.images >= FEW

    @property
    def cheapest(self) -> Candidate | None:
        """Of the best and those that cannot be told apart from it, the one that takes the least time."""
        if self.best is None:
            return None
        return min([self.best, *self.tied], key=lambda one: math.inf if math.isnan(one.seconds) else one.seconds)

    @property
    def needed(self) -> int | None:
        """About how many pictures would tell the best from the first that is tied; None where no number would.

        The width of an interval shrinks with the square root of the number of pictures. So it is right only if the
        difference is as large as it seems now.
        """
        if not self.tied:
            return None
        gap = self.behind[self.tied[0].method]
        if not gap.mean > 0:
            return None
        wanted = math.ceil(gap.images * ((gap.high - gap.low) / 2 / gap.mean) ** 2)
        return max(wanted, gap.images + 1)  # these were not enough, however lopsided the interval is

    def sentences(self) -> list[str]:
        """What follows from the numbers, in plain words."""
        return [*self._advice(), *self._named(), *self._warnings()]

    def to_dict(self) -> dict[str, Any]:
        """The same for machines, ready for JSON; None stands where there is no number."""
        best, cheapest = self.best, self.cheapest
        verdicts = ("beats_random", "ignores_model", "passes_both")
        return {
            "model": self.model,
            "images": self.images,
            "recommended": None if best is None else best.method,
            "sure": self.sure,
            "tied": [one.method for one in self.tied],
            "cheapest": None if cheapest is None else cheapest.method,
            "images_needed": self.needed,
            "random": _plain(self.floor),
            "candidates": [
                _plain(asdict(one)) | {key: getattr(one, key) for key in verdicts} for one in self.candidates
            ],
            "behind": {method: _plain(asdict(gap)) for method, gap in self.behind.items()},
            "unavailable": list(self.unavailable),
            "sentences": self.sentences(),
        }

    # -------------------------------------------------------------------------------------------------------- in words

    def _advice(self) -> list[str]:
        best = self.best
        if best is None:
            return ["No method can be recommended: none beats random maps and passes the randomisation check."]
        pictures = counted(best.images, "picture")
        found = (
            f"{INS_DEL} {best.value:.3f} ({best.low:.3f} to {best.high:.3f}, 95 %) on {pictures}, "
            f"{best.above_random.mean:.3f} above random maps"
        )
        if self.tied:
            return [
                f"Best, but not surely: {best.method}. {found}.",
                f"It cannot be told apart from {_listed(self.tied)} on these pictures.",
                *self._choice(),
            ]
        start = "Use" if self.sure else "Best on these few pictures:"
        lines = [f"{start} {best.method}. {found}. It costs {_cost(best)}."]
        if len(self.passing) == 1:
            return [*lines, "No other method passes both rules."]
        second = self.passing[1]
        gap = self.behind[second.method]
        lines.append(
            f"It is ahead of every other method that passes both rules; the next, {second.method}, is {gap.mean:.3f} "
            f"behind ({gap.low:.3f} to {gap.high:.3f}, paired bootstrap)."
        )
        return lines

    def _choice(self) -> list[str]:
        """What to do where several cannot be told apart."""
        cheapest, first = self.cheapest, self.tied[0]
        assert self.best is not None
        assert cheapest is not None
        gap, needed = self.behind[first.method], self.needed
        if needed is None:
            more = f"{self.best.method} and {first.method} have the same mean: more pictures may not tell them apart."
        else:
            more = (
                f"To tell {self.best.method} from {first.method}, which is {gap.mean:.3f} behind, some "
                f"{_rounded(needed)} pictures would be needed, if the difference is what it seems."
            )
        return [f"The cheapest of them is {cheapest.method}: {_cost(cheapest)}.", more]

    def _named(self) -> list[str]:
        """List the methods that fail each rule."""
        able = [one for one in self.candidates if one.images]
        worse = [one for one in able if not one.beats_random]
        deaf = [one for one in able if one.ignores_model]
        unknown = [one for one in able if math.isnan(one.likeness)]
        lines = []
        if worse:
            lines.append(f"Not better than random maps on these pictures: {_listed(worse)}.")
        if deaf:
            each = ", ".join(f"{one.method} ({one.likeness:.2f})" for one in deaf)
            lines.append(
                f"Fail the randomisation check, as their maps hardly change when the model forgets what it learned "
                f"(rank correlation): {each}."
            )
        if unknown:
            lines.append(f"The randomisation check could not be made for {_listed(unknown)}.")
        if self.unavailable:
            lines.append(f"Not tried, as this model does not offer what they need: {', '.join(self.unavailable)}.")
        return lines

    def _warnings(self) -> list[str]:
        lines = [f"{who}: {why}." for why, who in self.failed.items()]
        if self.images < FEW:
            lines.append(
                f"Fewer than {FEW} pictures: the intervals are too narrow to be relied on. Take this as a first look."
            )
        return lines


# -------------------------------------------------------------------------------------------------------- conclusions


def conclude(
    model: str,
    ins_del: Mapping[str, Measured],
    likeness: Mapping[str, Measured],
    costs: Mapping[str, tuple[float, float, float]],
    *,
    images: int,
    unavailable: tuple[str, ...] = (),
    failed: Mapping[str, str] | None = None,
) -> Recommendation:
    """What follows from the numbers of each picture.

    Args:
        model: The model's name.
        ins_del: Method -> Ins - Del, `FLOOR` among them.
        likeness: Method -> how alike its maps stay when the model forgets.
        costs: Method -> seconds, forward and backward passes an image.
        images: How many pictures took part.
        unavailable: See `Recommendation`.
        failed: See `Recommendation`.
    """
    floor, found = ins_del[FLOOR], []
    for method, one in ins_del.items():
        if method != FLOOR:
            found.append(
                Candidate(
                    method=method,
                    value=one.value,
                    low=one.low,
                    high=one.high,
                    images=int(np.isfinite(one.each).sum()),
                    above_random=paired_bootstrap(one.each, floor.each),
                    likeness=likeness[method].value,
                    likeness_low=likeness[method].low,
                    seconds=costs[method][0],
                    passes=costs[method][1],
                    backwards=costs[method][2],
                )
            )
    found.sort(key=lambda one: math.inf if math.isnan(one.value) else -one.value)
    passing = [one.method for one in found if one.passes_both]
    behind = {other: paired_bootstrap(ins_del[passing[0]].each, ins_del[other].each) for other in passing[1:]}
    return Recommendation(model, images, tuple(found), behind, floor.value, unavailable, failed or {})


# ----------------------------------------------------------------------------------------------------------- in words


def _cost(one: Candidate) -> str:
    passes = f"{cost(one.passes)} forward and {cost(one.backwards)} backward passes"
    return f"{cost(one.seconds)} s, {passes} an image"


def counted(number: int, what: str) -> str:
    """``1 picture``, ``24 pictures``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _listed(found: Sequence[Candidate]) -> str:
    return ", ".join(one.method for one in found)


def _rounded(number: int) -> str:
    """To two digits: more are not known."""
    return f"{int(float(f'{number:.2g}')):,}"


def _plain(given: Any) -> Any:
    """What JSON can hold: it has no NaN."""
    if isinstance(given, dict):
        return {key: _plain(value) for key, value in given.items()}
    return None if isinstance(given, float) and not math.isfinite(given) else given
