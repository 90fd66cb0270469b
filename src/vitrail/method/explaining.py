"""Explain a batch: the one way that `vitrail.explain`, `vitrail.evaluate` and the benchmark take to a method's maps."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import InputError, option
from vitrail.events import Passes, working
from vitrail.method.base import Method, State
from vitrail.method.batch import Batch
from vitrail.model import Target, View, is_finite

ROUNDED = "{spec} gave no value above the rounding of its own computation: the map is empty"
UNMOVED = "every changed picture got the same answer, up to rounding, so {spec} has nothing to tell: the map is empty"
FLAT = "{spec} gave the same value everywhere: the map is empty"

MOST = 2**28
"""Bytes of searches that are kept, by default."""


@dataclass(frozen=True)
class Searched:
    """What a method's search found about some images: all that their maps are rendered from.

    Attributes:
        state: What `Method.search` gave.
        rounding: (B,) values no larger than this are rounding alone.
        unmoved: (B,) boolean: images whose changed copies all got the same answer.
        notes: What the search says of each map.
        cost: Passes an image, the clean one included.
        seconds: Time an image.
    """

    state: State
    rounding: Tensor
    unmoved: Tensor
    notes: tuple[tuple[str, ...], ...]
    cost: Passes
    seconds: float

    def __len__(self) -> int:
        return len(self.rounding)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(values.nbytes for values in self.state.values())

    def row(self, i: int) -> "Searched":
        """One of the images alone, in memory of its own."""
        return replace(
            self,
            state={name: values[i : i + 1].detach().clone() for name, values in self.state.items()},
            rounding=self.rounding[i : i + 1],
            unmoved=self.unmoved[i : i + 1],
            notes=(self.notes[i],),
        )

    @classmethod
    def join(cls, parts: Sequence["Searched"]) -> "Searched":
        """Several one after the other."""
        return cls(
            state={name: joined([part.state[name] for part in parts]) for name in parts[0].state},
            rounding=torch.cat([part.rounding for part in parts]),
            unmoved=torch.cat([part.unmoved for part in parts]),
            notes=tuple(notes for part in parts for notes in part.notes),
            cost=Passes(
                sum(part.cost.forwards * len(part) for part in parts) / sum(map(len, parts)),
                sum(part.cost.backwards * len(part) for part in parts) / sum(map(len, parts)),
            ),
            seconds=sum(part.seconds * len(part) for part in parts) / sum(map(len, parts)),
        )


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of (B, ...) one after the other; what is shorter is filled up, with -1 where it holds whole numbers."""
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(list(parts))
    shape = [max(part.shape[axis] for part in parts) for axis in range(1, parts[0].ndim)]
    filler = 0 if parts[0].is_floating_point() or parts[0].dtype == torch.bool else -1
    wide = []
    for part in parts:
        missing = [most - own for most, own in zip(shape, part.shape[1:])]
        wide.append(F.pad(part, [side for gap in reversed(missing) for side in (0, gap)], value=filler))
    return torch.cat(wide)


@dataclass(frozen=True)
class Explained:
    """The maps of a batch.

    Attributes:
        maps: (B, rows, columns) float32, on the device.
        notes: What a reader of each map must know.
        searched: What they were rendered from.
    """

    maps: Tensor
    notes: tuple[tuple[str, ...], ...]
    searched: Searched


def render(method: Method, searched: Searched) -> Explained:
    """Make maps of what a search found. The model is not asked.

    A map that is no larger than the rounding of its own computation becomes zero, and so does one for which all changed
    copies of the image got the same answer; a note says so.
    """
    maps = method.render(searched.state).detach().float()
    largest = maps.abs().flatten(1).amax(1)
    unmoved = searched.unmoved.to(maps.device)
    rounded = (largest <= searched.rounding.to(largest)) & (largest > 0)
    nothing = rounded | unmoved
    flat = nothing | (maps.flatten(1).amax(1) == maps.flatten(1).amin(1))
    if not flat.any():
        return Explained(maps, searched.notes, searched)
    maps = maps.masked_fill(nothing[:, None, None], 0)
    notes = [list(own) for own in searched.notes]
    said = ((UNMOVED, unmoved), (ROUNDED, rounded & ~unmoved), (FLAT, flat & ~nothing))
    for sentence, which in said:
        for i in which.nonzero().flatten().tolist():
            notes[i].append(sentence.format(spec=method.spec))
    return Explained(maps, tuple(map(tuple, notes)), searched)


@dataclass(frozen=True)
class Rendered:
    """Maps rendered again from what an explanation kept.

    Attributes:
        maps: (B, rows, columns) float32.
        notes: What a reader of each map must know.
        extras: What an explanation keeps of them.
    """

    maps: Tensor
    notes: tuple[tuple[str, ...], ...]
    extras: State


def render_again(
    before: Method,
    now: Method,
    state: State,
    notes: Sequence[tuple[str, ...]],
    rounding: Tensor | None,
    unmoved: Tensor | None,
) -> Rendered:
    """Render what an explanation kept by another method of the same search.

    Args:
        before: The method that searched.
        now: The method that renders.
        state: What the explanation kept.
        notes: What was said of each map; what rendering said is said anew.
        rounding: See `Searched`; explanations of earlier versions do not have it.
        unmoved: Likewise.
    """
    said = {sentence.format(spec=before.spec) for sentence in (ROUNDED, UNMOVED, FLAT)}
    images = len(notes)
    searched = Searched(
        state=state,
        rounding=torch.zeros(images) if rounding is None else rounding,
        unmoved=torch.zeros(images, dtype=torch.bool) if unmoved is None else unmoved,
        notes=tuple(tuple(sentence for sentence in own if sentence not in said) for own in notes),
        cost=Passes(0),
        seconds=0,
    )
    found = render(now, searched)
    return Rendered(found.maps, found.notes, now.extras(state))


class Searches:
    """Searches kept image by image, those used last, so that methods that differ in what they render share one.

    An image is known by its checksum, the weights, the precision, the target and `Method.search_spec`.

    Args:
        most: Bytes that are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.held = 0
        self._rows: OrderedDict[tuple[object, ...], Searched] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self, view: View, method: Method, batch: Batch) -> list[tuple[object, ...]] | None:
        """What each image is known by; None where the target is a function, which cannot be told from another."""
        target = batch.target
        if target.classes is None:
            return None
        common = (
            view.fingerprint(),
            view.precision if method.keeps_half() else "fp32",
            batch.size,
            method.search_spec(),
            method.stamp(),
        )
        rivals = [()] * len(batch) if target.rivals is None else [tuple(row) for row in target.rivals.tolist()]
        return [
            (key, label, others, *common)
            for key, label, others in zip(batch.keys.tolist(), target.classes.tolist(), rivals)
        ]

    def get(self, key: tuple[object, ...]) -> Searched | None:
        """What is kept of an image."""
        if key in self._rows:
            self._rows.move_to_end(key)
        return self._rows.get(key)

    def put(self, key: tuple[object, ...], row: Searched | None) -> None:
        """Keep what was found of an image, and let go of what was used longest ago."""
        if row is None or row.nbytes > self.most or key in self._rows:
            return
        self._rows[key] = row
        self.held += row.nbytes
        while self.held > self.most:
            _, old = self._rows.popitem(last=False)
            self.held -= old.nbytes


def explain_batch(
    view: View, method: Method, batches: Sequence[Batch], searches: Searches | None = None
) -> list[Explained]:
    """Explain the same images for one or several targets.

    Args:
        view: The model.
        method: The method, checked.
        batches: The images once for each target, see `batches_of`; afterwards each knows its target.
        searches: Where to look for searches made before, and to keep those made now.
    """
    found = _search(view, method, batches) if searches is None else _recall(view, method, batches, searches)
    explained = []
    for batch, searched in zip(batches, found):
        batch.aim(view)
        batch.check()
        one = render(method, searched)
        expected = (len(batch), *method.shape(view, batch.size))
        if one.maps.shape != expected:
            raise RuntimeError(f"{method.spec} gave maps of {tuple(one.maps.shape)}, not {expected}")
        if not is_finite(one.maps):
            raise InputError(
                f"{method.spec} gave values that are not finite on {view.name}; "
                f"check the model's weights, or use {option('precision', 'fp32')}"
            )
        explained.append(one)
    return explained


def _search(view: View, method: Method, batches: Sequence[Batch]) -> list[Searched]:
    """All targets at once, sharing what passes they can."""
    start, images, clean = time.perf_counter(), batches[0].images, batches[0].forget_clean()
    shared = view.remembering(images) if len(batches) > 1 else nullcontext()
    exactly = nullcontext() if method.keeps_half() else view.exactly()
    with working(method.spec, len(images), "image") as work, exactly, shared:
        states = method.search_of(view, batches)
    # A clean pass that was made before, for other methods too, is a part of what this one costs.
    made = work.made.plus(Passes(0 if clean.seen else len(images)))
    cost, seconds = made.times(1 / len(images) / len(batches)), time.perf_counter() - start
    return [
        Searched(
            state={name: values.detach() for name, values in state.items()},
            rounding=batch.remarks.rounding,
            unmoved=batch.remarks.unmoved,
            notes=tuple(map(tuple, batch.remarks.notes)),
            cost=cost,
            seconds=seconds / len(images) / len(batches),
        )
        for batch, state in zip(batches, states)
    ]


def _recall(view: View, method: Method, batches: Sequence[Batch], searches: Searches) -> list[Searched]:
    """The same, but what is known is not searched again: image by image for one target, else all or nothing."""
    for batch in batches:
        batch.settle(view)
    keys = [searches.keys(view, method, batch) for batch in batches]
    if None in keys:
        return _search(view, method, batches)
    known = [[searches.get(key) for key in own or ()] for own in keys]
    new = [i for i in range(len(batches[0])) if any(own[i] is None for own in known)]
    if new:
        some = torch.tensor(new)
        partly = len(batches) == 1 and len(new) < len(batches[0])
        made = _search(view, method, [batches[0].take(some)] if partly else batches)
        for own, keyed, found in zip(known, keys, made):
            for place, i in enumerate(new if partly else range(len(batches[0]))):
                own[i] = found.row(place)
                searches.put((keyed or [])[i], own[i])
        if not partly:
            return made
    return [Searched.join([row for row in own if row is not None]) for own in known]


def batches_of(images: Tensor, targets: Sequence[Target | None], logits: Tensor | None = None) -> list[Batch]:
    """The same images once for each target; what is said of one map is said of that one alone.

    Args:
        images: (B, 3, H, W) model inputs, on the model's device.
        targets: What to explain; None for what the model predicts.
        logits: (B, classes) the model's answers, where they are known.
    """
    first = Batch(images, targets[0], logits=logits)
    return [first, *(first.aimed(target, apart=True) for target in targets[1:])]
