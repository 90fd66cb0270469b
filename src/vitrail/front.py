"""The front door: `explain`."""

import os
import time
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, option
from vitrail.explanation import Explanation
from vitrail.files import legible
from vitrail.method import Batch, Method, parse
from vitrail.model import Need, Precision, Target, TargetLike, View, is_out_of_memory, load, resolve, sources_of

BATCH = 16


def explain(
    model: str | nn.Module | View,
    images: Any,
    method: str | Method = "auto",
    target: TargetLike = None,
    *,
    batch: int | None = None,
    precision: Precision | None = None,
    compiled: bool = False,
    progress: bool = False,
) -> Explanation:
    """Explain why a model answers what it answers.

    Args:
        model: A name, a module or a view: see `vitrail.load`.
        images: Paths, folders, files' bytes, PIL images, uint8 arrays, or model inputs as float tensors; or a list of
            these.
        method: A spec string such as ``"ig(steps=20)"``, or a method; ``"auto"`` takes ``decompx`` on transformers
            and ``gradcam`` on other models.
        target: What to explain: None (what the model predicts), a class number or name, a list with one entry an
            image, a function of the logits, a text prompt (open_clip), a `Likeness`, or a `Target`.
        batch: Images at a time; fewer are taken when memory runs out.
        precision: ``fp32``, ``tf32``, ``bf16`` or ``fp16``; the view's own by default.
        compiled: Compile a transformer's blocks, or another model as a whole (`torch.compile`), where vitrail has no
            kernels of its own for them and no gradient is wanted; pays for methods with many thousand passes.
        progress: Show a progress bar: of forward passes where a method makes many, else of images.

    Example:
        >>> from vitrail import scenes
        >>> explain("demo", scenes.make(7, classes=["whale"]).pil, "ig(steps=4)").explained(0)
        'whale'
    """
    view = load(model)
    sources = sources_of(images)
    method = parse(chosen(view) if method == "auto" else method)
    method.check(view)
    view, wanted = resolve(view, target, len(sources))
    with view.using(precision, compiled or None):
        return _explain(view, sources, method, wanted, at_once(batch), progress)


def chosen(view: View) -> str:
    """The method for those who name none."""
    return "decompx" if Need.TOKENS in view.offers else "gradcam"


def at_once(batch: Any) -> int:
    """How many images are worked on together, where so many were asked for."""
    if batch is None:
        return BATCH
    if isinstance(batch, bool) or not isinstance(batch, Integral):
        raise InputError(f"{option('batch')} must be a whole number, but {batch!r} was given")
    if batch < 1:
        raise InputError(f"{option('batch')} must be 1 or more, but {batch} was given")
    return int(batch)


def _explain(
    view: View, sources: list[Any], method: Method, target: Target | None, size: int, progress: bool
) -> Explanation:
    forwards, backwards, start = view.meter.forwards, view.meter.backwards, time.perf_counter()
    done: list[_Done] = []
    first = 0
    with _Bar(view, method, len(sources), progress) as bar:
        while first < len(sources):
            rows = slice(first, min(first + size, len(sources)))
            try:
                found = _chunk(view, sources[rows], method, None if target is None else target.take(rows))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if rows.stop - first == 1:
                    raise InputError(
                        f"memory ran out on a single image for {method.spec} on {view.name}; "
                        f"give a smaller {option('size')}, {option('precision', 'bf16')}, or another {option('device')}"
                    ) from error
            else:
                if done and found.size != done[0].size:
                    raise InputError("the images given are of different sizes; explain them one size at a time")
                done.append(found)
                bar.done(rows.stop)
                first = rows.stop
                continue
            # Half as many at a time, and go on; out here, where the failed pass holds no memory any more.
            size = (rows.stop - first) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    classes = [part.classes for part in done if part.classes is not None]
    return Explanation(
        maps=torch.cat([part.maps for part in done]),
        logits=torch.cat([part.logits for part in done]),
        classes=torch.cat(classes) if classes else None,
        method=method.spec,
        config=method.config,
        model=view.name,
        fingerprint=view.fingerprint(),
        size=done[0].size,
        images=tuple(called(source, i) for i, source in enumerate(sources)),
        class_names=view.classes,
        seconds=time.perf_counter() - start,
        forwards=view.meter.forwards - forwards,
        backwards=view.meter.backwards - backwards,
        extras={name: torch.cat([part.extras[name] for part in done]) for name in done[0].extras},
        notes=tuple(notes for part in done for notes in part.notes),
        precision=view.precision if method.keeps_half() else "fp32",
    )


class _Done(NamedTuple):
    """Some of the images, explained; on the CPU."""

    maps: Tensor
    logits: Tensor
    classes: Tensor | None
    size: tuple[int, int]
    extras: dict[str, Tensor]
    notes: list[tuple[str, ...]]


def _chunk(view: View, sources: Sequence[Any], method: Method, target: Target | None) -> _Done:
    batch = Batch(view.preprocess.batch(sources).to(view.device, view.dtype), target)
    with view.still():
        maps = method.evidence(view, batch)
        target = batch.settle(view)
    batch.check()
    assert batch.logits is not None
    return _Done(
        maps=maps.cpu(),
        logits=batch.logits.float().cpu(),
        classes=None if target.classes is None else target.classes.cpu(),
        size=batch.size,
        extras={name: values.detach().cpu() for name, values in batch.extras.items()},
        notes=[tuple(notes) for notes in batch.remarks.notes],
    )


def called(source: Any, i: int) -> str:
    """What image ``i`` is called in results."""
    if isinstance(source, str | Path):
        return legible(Path(source).name)
    name = getattr(source, "filename", "")
    return legible(Path(os.fsdecode(name)).name) if name else f"image {i}"


class _Bar:
    """A progress bar: of forward passes where the method says how many it makes, else of images."""

    def __init__(self, view: View, method: Method, images: int, shown: bool) -> None:
        from tqdm.auto import tqdm

        passes = method.passes(view, view.size) if shown else None
        self.meter, self.images, self.each = view.meter, images, passes
        self.before = view.meter.listener
        self.bar = tqdm(
            total=images * (passes or 1),
            desc=method.spec,
            unit="image" if passes is None else "pass",
            unit_scale=passes is not None,
            disable=not shown,
            leave=False,
        )

    def __enter__(self) -> "_Bar":
        if self.each is not None:
            self.meter.listener = self.bar.update
        return self

    def __exit__(self, *_: object) -> None:
        self.meter.listener = self.before
        self.bar.close()

    def done(self, images: int) -> None:
        """So many images are explained; where passes were only guessed, the rest is guessed from those made."""
        if self.each is None:
            self.bar.update(images - self.bar.n)
        else:
            self.bar.total = round(self.bar.n / images * self.images)
            self.bar.refresh()
