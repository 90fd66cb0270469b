"""The front door: `explain`."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, option
from vitrail.events import Cancel, Observer, Passes, current, observers_of, working
from vitrail.explanation import Explanation
from vitrail.files import legible
from vitrail.method import Batch, Method, Searched, Searches, batches_of, explain_batch, joined, parse
from vitrail.model import (
    Likeness,
    Need,
    Precision,
    Target,
    TargetLike,
    View,
    in_parts,
    is_out_of_memory,
    load,
    resolve,
    sources_of,
)

BATCH = 16


def explain(
    model: str | nn.Module | View,
    images: Any,
    method: str | Method = "auto",
    target: TargetLike = None,
    *,
    targets: Sequence[TargetLike] | Mapping[str, TargetLike] | None = None,
    batch: int | None = None,
    precision: Precision | None = None,
    compiled: bool = False,
    progress: bool = False,
    observers: Iterable[Observer] = (),
    cancel: Cancel | None = None,
) -> Explanation:
    """Explain why a model answers what it answers.

    Args:
        model: A name, a module or a view: see `vitrail.load`.
        images: Paths, folders, files' bytes, PIL images, uint8 arrays, or model inputs as float tensors; or a list of
            these.
        method: A spec string such as ``"ig(steps=20)"``, or a method; ``"auto"`` takes ``decompx`` on transformers,
            ``gradcam`` on other models, and ``rise`` on those that give no gradient.
        target: What to explain: None (what the model predicts), a class number or name, a list with one entry an
            image, a function of the logits, a text prompt (open_clip), a `Likeness`, or a `Target`.
        targets: Several things to explain of every image, each as ``target`` is given, in a list or by name in a dict.
            They share what passes they can, and the explanation has an axis for them.
        batch: Images at a time; fewer are taken when memory runs out.
        precision: ``fp32``, ``tf32``, ``bf16`` or ``fp16``; the view's own by default.
        compiled: Compile a transformer's blocks, or another model as a whole (`torch.compile`), where vitrail has no
            kernels of its own for them and no gradient is wanted; pays for methods with many thousand passes.
        progress: Show a progress bar: of passes where a method makes many, else of images.
        observers: Functions that are told of every event of the work, see `vitrail.events`.
        cancel: A token by which another thread can stop the work: `Cancelled` is raised before the next passes.

    Example:
        >>> from vitrail import scenes
        >>> explain("demo", scenes.make(7, classes=["whale"]).pil, "ig(steps=4)").explained(0)
        'whale'
    """
    (found,) = explain_each(
        model,
        images,
        [method],
        target,
        targets=targets,
        batch=batch,
        precision=precision,
        compiled=compiled,
        progress=progress,
        observers=observers,
        cancel=cancel,
    )
    return found


def explain_each(
    model: str | nn.Module | View,
    images: Any,
    methods: Sequence[str | Method],
    target: TargetLike = None,
    *,
    targets: Sequence[TargetLike] | Mapping[str, TargetLike] | None = None,
    batch: int | None = None,
    precision: Precision | None = None,
    compiled: bool = False,
    progress: bool = False,
    observers: Iterable[Observer] = (),
    cancel: Cancel | None = None,
    names: Sequence[str] | None = None,
) -> list[Explanation]:
    """Explain the same images by several methods; see `explain`.

    A picture is read once, the model answers it once, and methods that differ in their render fields alone share one
    search: ``mda(gamma=0)`` and ``mda(gamma=1)`` cost one of them. ``names`` says what the images are called; their
    files' names by default.

    Example:
        >>> from vitrail import scenes
        >>> found = explain_each("demo", scenes.make(7).pil, ["rollout", "rise(masks=8)"])
        >>> [one.forwards for one in found]
        [1, 9]
    """
    view = load(model)
    sources = sources_of(images)
    wanted = [parse(chosen(view) if method == "auto" else method) for method in methods]
    for method in wanted:
        method.check(view)
    if targets is not None and target is not None:
        raise InputError("target and targets were given; give one of them")
    asked = dict(targets) if isinstance(targets, Mapping) else {}
    given = list(asked.values()) if asked else [target] if targets is None else list(targets)
    view, aims = _resolved(view, given, len(sources))
    size = at_once(batch)
    several = tuple(asked) if asked else tuple(_named(one, aim, view) for one, aim in zip(given, aims))
    called_as = tuple(names) if names is not None else tuple(called(source, i) for i, source in enumerate(sources))
    each = [method.passes(view, view.size).times(len(sources) * len(aims)) for method in wanted]
    work = working(
        wanted[0].spec if len(wanted) == 1 else f"{len(wanted)} methods",
        len(sources) * len(wanted),
        "image" if len(wanted) == 1 else "map",
        expected=Passes(sum(one.forwards for one in each), sum(one.backwards for one in each)),
        observers=observers_of(progress, observers),
        cancel=cancel,
    )
    with work, view.using(precision, compiled or None):
        return _explain(view, sources, called_as, wanted, aims, None if targets is None else several, size)


def chosen(view: View) -> str:
    """The method that ``auto`` means for a model."""
    if not view.can_give(Need.GRADIENTS):
        return "rise"
    return "decompx" if view.can_give(Need.TOKENS) else "gradcam"


def at_once(batch: Any) -> int:
    """How many images are worked on together, where so many were asked for."""
    if batch is None:
        return BATCH
    if isinstance(batch, bool) or not isinstance(batch, Integral):
        raise InputError(f"{option('batch')} must be a whole number, but {batch!r} was given")
    if batch < 1:
        raise InputError(f"{option('batch')} must be 1 or more, but {batch} was given")
    return int(batch)


def _resolved(view: View, targets: Sequence[TargetLike], images: int) -> tuple[View, list[Target | None]]:
    if not targets:
        raise InputError("no target was given; give at least one")
    if len(targets) > 1 and any(isinstance(target, Likeness) for target in targets):
        raise InputError("a likeness has a model of its own, without classes; explain it alone")
    aims = []
    for target in targets:
        view, aim = resolve(view, target, images)  # prompts of open_clip are classes behind those that are there
        aims.append(aim)
    return view, aims


def _named(target: TargetLike, aim: Target | None, view: View) -> str:
    """What a column of several targets is called."""
    if aim is None:
        return "predicted"
    if isinstance(target, str):
        return target
    if isinstance(target, int):
        return view.class_name(target)
    return "a function of the logits" if aim.classes is None else "given"


@dataclass
class _Part:
    """Some of the images, explained by one method; on the CPU."""

    maps: Tensor
    logits: Tensor
    classes: Tensor
    rivals: Tensor | None
    size: tuple[int, int]
    extras: dict[str, Tensor]
    notes: list[tuple[str, ...]]
    hashes: list[str]
    cost: Passes
    seconds: float


@dataclass
class _Chunk:
    """Some of the images on the device, and the clean logits that are known, by whether they are exact ones."""

    images: Tensor
    targets: Sequence[Target | None]
    logits: dict[bool, Tensor | None] = field(default_factory=dict)


def _explain(
    view: View,
    sources: list[Any],
    names: tuple[str, ...],
    methods: Sequence[Method],
    aims: Sequence[Target | None],
    several: tuple[str, ...] | None,
    size: int,
) -> list[Explanation]:
    done: list[list[_Part]] = []
    shared = {spec for spec, count in Counter(method.search_spec() for method in methods).items() if count > 1}

    def some(rows: slice) -> list[_Part]:
        start = time.perf_counter()
        images = view.preprocess.batch(sources[rows]).to(view.device, view.dtype)
        chunk = _Chunk(images, [None if aim is None else aim.take(rows) for aim in aims])
        reading = (time.perf_counter() - start) / len(methods)
        searches = Searches()
        return [
            _part(view, method, chunk, searches if method.search_spec() in shared else None, reading)
            for method in methods
        ]

    try:
        for _, found in in_parts(len(sources), size, some):
            if done and found[0].size != done[0][0].size:
                raise InputError("the images given are of different sizes; explain them one size at a time")
            done.append(found)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"memory ran out on a single image for {' and '.join(method.spec for method in methods)} on {view.name}; "
            f"give a smaller {option('size')}, {option('precision', 'bf16')}, or another {option('device')}"
        ) from error
    return [_whole(view, method, parts, names, several) for method, parts in zip(methods, zip(*done))]


def _part(view: View, method: Method, chunk: _Chunk, searches: Searches | None, reading: float) -> _Part:
    start, exact = time.perf_counter(), not method.keeps_half() or view.precision == "fp32"
    batches = batches_of(chunk.images, chunk.targets, chunk.logits.get(exact))
    with view.still(turns=True):
        found = explain_batch(view, method, batches, searches)
    chunk.logits[exact] = batches[0].logits
    images, parts = len(chunk.images), [method.extras(one.searched.state) for one in found]
    if method.render_fields():
        parts = [own | _doubt(one.searched) for own, one in zip(parts, found)]
    none = torch.full((images,), -1)
    classes = [none if batch.target.classes is None else batch.target.classes.cpu() for batch in batches]
    assert batches[0].logits is not None
    result = _Part(
        maps=torch.stack([one.maps for one in found], 1).cpu(),
        logits=batches[0].logits.float().cpu(),
        classes=torch.stack(classes, 1),
        rivals=_rivals(batches),
        size=batches[0].size,
        extras={name: torch.stack([own[name].detach() for own in parts], 1).cpu() for name in parts[0]},
        notes=[one.notes[i] for i in range(images) for one in found],
        hashes=[f"{key % 2**64:016x}" for key in batches[0].keys.tolist()],
        cost=found[0].searched.cost.times(images * len(batches)),
        seconds=reading + time.perf_counter() - start,
    )
    outer = current()
    if outer is not None:
        outer.finish_some(images)
    return result


def _rivals(batches: Sequence[Batch]) -> Tensor | None:
    """(B, K, any) the rivals of each target, -1 for none, where one of them knows any."""
    given = [batch.target.rivals for batch in batches]
    if all(one is None for one in given):
        return None
    none = torch.full((len(batches[0]), 1), -1)
    return joined([(none if one is None else one.cpu())[None] for one in given]).transpose(0, 1)


def _doubt(searched: Searched) -> dict[str, Tensor]:
    """How far a map rendered anew may be rounding alone."""
    return {"rounding": searched.rounding, "unmoved": searched.unmoved}


def _whole(
    view: View, method: Method, parts: Sequence[_Part], names: tuple[str, ...], several: tuple[str, ...] | None
) -> Explanation:
    def one_axis(values: Tensor) -> Tensor:
        return values[:, 0] if several is None else values

    classes = one_axis(torch.cat([part.classes for part in parts]))
    rivals = None if parts[0].rivals is None else joined([part.rivals for part in parts if part.rivals is not None])
    return Explanation(
        maps=one_axis(torch.cat([part.maps for part in parts])),
        logits=torch.cat([part.logits for part in parts]),
        classes=None if several is None and (classes < 0).all() else classes,
        method=method.spec,
        config=method.config,
        model=view.name,
        fingerprint=view.fingerprint(),
        size=parts[0].size,
        images=names,
        class_names=view.classes,
        seconds=sum(part.seconds for part in parts),
        forwards=round(sum(part.cost.forwards for part in parts)),
        backwards=round(sum(part.cost.backwards for part in parts)),
        extras={name: one_axis(joined([part.extras[name] for part in parts])) for name in parts[0].extras},
        notes=tuple(notes for part in parts for notes in part.notes),
        precision=view.precision if method.keeps_half() else "fp32",
        compiled=view.compiled,
        targets=several,
        rivals=None if rivals is None else one_axis(rivals),
        hashes=tuple(key for part in parts for key in part.hashes),
        signed=method.signed,
        enlargement=method.enlargement,
    )


def called(source: Any, i: int) -> str:
    """What image ``i`` is called in results."""
    if isinstance(source, str | Path):
        return legible(Path(source).name)
    name = getattr(source, "filename", "")
    return legible(Path(os.fsdecode(name)).name) if name else f"image {i}"
