"""The front door of judging: `evaluate`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data import check_boxes, check_truth, is_input, masks_of
from vitrail.errors import InputError, option
from vitrail.events import Cancel, Observer, Work, observers_of, working
from vitrail.explanation import Explanation, versions
from vitrail.front import at_once, called, chosen
from vitrail.method import Explained, Method, Searches, batches_of, explain_batch, parse
from vitrail.metric.base import Metric
from vitrail.metric.case import Case, Pool, logits_of
from vitrail.metric.faithfulness.curve import Curve, CurveMetric, joined
from vitrail.metric.presets import Wanted, lacks, refuse_unlabelled, wanted
from vitrail.metric.scores import Score, Scores
from vitrail.metric.statistics import bootstrap, interval
from vitrail.model import Precision, Target, TargetLike, View, load, pictures, resolve, sources_of
from vitrail.notes import summed

DEFAULT = ("insertion", "deletion", "mas_insertion", "mas_deletion", "sparseness")

OTHERS = 64
"""How many of the pictures, evenly spread, are at hand to be set beside the others in grids."""


def evaluate(
    model: str | nn.Module | View,
    images: Any,
    explanation: Any,
    metrics: str | Metric | Sequence[str | Metric] = DEFAULT,
    *,
    masks: Any = None,
    boxes: Any = None,
    labels: TargetLike = None,
    target: TargetLike = None,
    batch: int | None = None,
    precision: Precision | None = None,
    compiled: bool = False,
    progress: bool = False,
    observers: Iterable[Observer] = (),
    cancel: Cancel | None = None,
) -> Scores:
    """Judge explanations.

    Args:
        model: A name, a module or a view: see `vitrail.load`.
        images: Paths, folders, files' bytes, PIL images, uint8 arrays, or model inputs as float tensors; or a list of
            these.
        explanation: A method's spec (``"tis"``), a method, an `Explanation` of these images or (images, rows, columns)
            maps; or several, in a list or by name in a dict.
        metrics: Specs (``"insertion(step=448)"``), metrics, or names of presets (``"mda"``). What of a preset cannot be
            measured without masks or true classes is left out, and the table says so.
        masks: Where the object is: one mask an image, of the picture's size (of the input's, where images are model
            inputs). True or 1 is the object, 0 the rest, -1 what does not count.
        boxes: Instead of masks: a list of (x0, y0, x1, y1) for each image, in the picture's pixels.
        labels: The true classes, by number or name.
        target: What to explain, where a method is given: see `vitrail.explain`; ``"label"`` for the true classes. By
            default what a preset among the metrics explains, and else the predicted classes.
        batch: Images at a time.
        precision: ``fp32``, ``tf32``, ``bf16`` or ``fp16``; the view's own by default.
        compiled: Compile the model, where vitrail has no kernels of its own for it.
        progress: Show a progress bar.
        observers: Functions that are told of every event of the work, see `vitrail.events`.
        cancel: A token by which another thread can stop the work.

    Example:
        >>> from vitrail import scenes
        >>> scene = scenes.make(7, classes=["whale"])
        >>> found = evaluate("demo", scene.pil, ["decompx", "random"], "deletion(step=2592)")
        >>> found.row("deletion", "decompx").value < found.row("deletion", "random").value
        True
    """
    view = load(model)
    regions = masks is not None or boxes is not None
    asked = wanted(metrics, masks=regions, labels=labels is not None, settled=target is not None)
    sources = sources_of(images)
    if target is None and asked.explains == "label":
        if labels is None:
            refuse_unlabelled(asked.presets, masks=regions)
        target = "label"
    whose = "predicted" if target is None or _is(target, "predicted") else "given"
    if _is(target, "label") and labels is not None:
        target, whose = labels, "label"
    view, aim = resolve(view, target, len(sources))
    subjects = [_Subject.of(name, given, view, len(sources)) for name, given in _named(explanation)]
    if len({subject.name for subject in subjects}) < len(subjects):
        raise InputError("two explanations have the same name; name them in a dict")
    for subject in subjects:
        if subject.explanation is not None and subject.explanation.classes is None and aim is None:
            raise InputError(
                f"{subject.name} explains a function of the logits; give it again as the {option('target')}"
            )
    check_truth(masks, boxes, len(sources))
    truth = None if labels is None else resolve(view, labels, len(sources))[1]
    _check_needs(asked.metrics, subjects, regions, truth is not None)
    asked = replace(asked, metrics=tuple(dict.fromkeys(_with_company(asked.metrics, subjects))))
    size = at_once(batch)
    maps = len(sources) * len(subjects)
    work = working("judging", maps, "map", observers=observers_of(progress, observers), cancel=cancel)
    with work as begun, view.using(precision, compiled or None):
        return _evaluate(view, sources, subjects, asked, (aim, whose), truth, (masks, boxes), size, begun)


def _is(target: Any, word: str) -> bool:
    return isinstance(target, str) and target == word


def _with_company(metrics: Sequence[Metric], subjects: Sequence["_Subject"]) -> Iterator[Metric]:
    """Each metric, and behind it what it says little without."""
    able = all(subject.method is not None for subject in subjects)
    for metric in metrics:
        yield metric
        yield from (more for more in metric.beside() if able)


@dataclass(frozen=True)
class _Subject:
    """What is judged: maps, or a method that makes them."""

    name: str
    method: Method | None
    explanation: Explanation | None = None
    maps: Tensor | None = None

    @classmethod
    def of(cls, name: str | None, given: Any, view: View, images: int) -> "_Subject":
        if isinstance(given, str | Method):
            method = parse(chosen(view) if given == "auto" else given)
            method.check(view)
            return cls(name or method.spec, method)
        if isinstance(given, Explanation):
            found = cls(name or given.method, parse(given.method), given, given.one(0).maps)
        elif isinstance(given, Tensor | np.ndarray):
            found = cls(name or "maps", None, None, torch.as_tensor(given))
        else:
            raise InputError(
                "an explanation must be a method's spec such as 'tis', a method, an Explanation or (images, rows, "
                f"columns) maps, but {type(given).__name__} was given"
            )
        assert found.maps is not None
        if found.maps.ndim != 3 or len(found.maps) != images:
            raise InputError(
                f"there must be one map an image, {images} in all, but {found.name} has {tuple(found.maps.shape)}"
            )
        return found

    def case(
        self, view: View, images: "_Images", rows: slice, aim: Target | None, **known: Any
    ) -> tuple[Case, tuple[tuple[str, ...], ...]]:
        """The images of some rows with their maps, and what is said of each map."""
        notes: tuple[tuple[str, ...], ...] = ()
        aim = None if aim is None else aim.take(rows)
        if self.maps is None:
            assert self.method is not None
            found, aim = images.explain(view, self.method, aim)
            maps, notes = found.maps, found.notes
        else:
            maps = self.maps[rows]
            notes = () if self.explanation is None else self.explanation.notes[rows]
            if self.explanation is not None and self.explanation.classes is not None:
                # What was explained counts, not what is asked for now; the target still says what else is shown.
                aim = Target(self.explanation.classes[rows], rivals=None if aim is None else aim.rivals)
        shared = images.shared_by(aim)
        return Case(view, images.inputs, maps, aim, method=self.method, shared=shared, **known), notes


class _Images:
    """Some images on the device, and what all that is judged on them shares.

    Args:
        inputs: (B, 3, H, W).
        explained: Whether a method explains them, which needs the model's answers: then these are asked for once.
        repeated: Specs of searches that several methods make.
    """

    def __init__(self, view: View, inputs: Tensor, explained: bool, repeated: set[str]) -> None:
        self.inputs, self._repeated, self._searches = inputs, repeated, Searches()
        self._logits = logits_of(view, inputs) if explained else None
        self._shared: dict[Any, dict[Any, Any]] = {}

    def explain(self, view: View, method: Method, aim: Target | None) -> tuple[Explained, Target]:
        """The maps of a method, and what they explain."""
        known = self._logits if view.precision == "fp32" or method.keeps_half() else None
        batches = batches_of(self.inputs, [aim], known)
        searches = self._searches if method.search_spec() in self._repeated else None
        return explain_batch(view, method, batches, searches)[0], batches[0].target

    def shared_by(self, aim: Target | None) -> dict[Any, Any]:
        """What cases of these images and this target share."""
        key: Any = None
        if aim is not None:
            same = [
                None if numbers is None else tuple(numbers.flatten().tolist()) for numbers in (aim.classes, aim.rivals)
            ]
            key = (*same, aim.function)
        found = self._shared.setdefault(key, {})
        if self._logits is not None:
            found.setdefault("logits", self._logits)
        return found


def _named(given: Any) -> Iterator[tuple[str | None, Any]]:
    if isinstance(given, Mapping):
        pairs: list[tuple[str | None, Any]] = list(given.items())
    elif isinstance(given, Sequence) and not isinstance(given, str):
        pairs = [(None, one) for one in given]
    else:
        pairs = [(None, given)]
    for name, one in pairs:
        if isinstance(one, Explanation) and one.targets is not None:
            yield from ((f"{name or one.method}: {target}", one.one(target)) for target in one.targets)
        else:
            yield name, one


def _check_needs(wanted: Sequence[Metric], subjects: list[_Subject], masks: bool, labels: bool) -> None:
    """Say what is missing before any work is done."""
    if not subjects:
        raise InputError("no explanation was given; give a method's spec, an Explanation or maps")
    for metric in wanted:
        lacking = lacks(metric, masks=masks, labels=labels)
        if "masks" in lacking:
            raise InputError(
                f"{metric.spec} needs to know where the objects are; give {option('masks')} or {option('boxes')}"
            )
        if "labels" in lacking:
            raise InputError(
                f"{metric.spec} needs the true classes; give {option('labels')}, or use {metric.id}(target=predicted)"
            )
        nameless = [subject.name for subject in subjects if subject.method is None]
        if "method" in metric.needs and nameless:
            raise InputError(
                f"{metric.spec} explains other pictures too, so it needs the method and not only {', '.join(nameless)}"
            )


def _evaluate(
    view: View,
    sources: list[Any],
    subjects: list[_Subject],
    asked: Wanted,
    aimed: tuple[Target | None, str],
    truth: Target | None,
    regions: tuple[Any, Any],
    size: int,
    work: Work,
) -> Scores:
    (aim, whose), metrics = aimed, asked.metrics
    empty: dict[str, int] = dict.fromkeys((subject.name for subject in subjects), 0)
    said: dict[str, list[tuple[str, ...]]] = {name: [] for name in empty}
    measured: dict[tuple[int, int], list[Tensor]] = {}
    curves: dict[tuple[int, int], list[Curve]] = {}
    told: dict[tuple[int, int], Counter[str]] = {}
    others = None
    if any(metric.uses_others for metric in metrics):
        spread = np.linspace(0, len(sources) - 1, min(OTHERS, len(sources))).round().astype(int)
        others = Pool(view, view.preprocess.batch([sources[i] for i in spread]))
    counts = Counter(subject.method.search_spec() for subject in subjects if subject.method and subject.maps is None)
    repeated = {spec for spec, count in counts.items() if count > 1}
    with view.still(turns=True):
        for first in range(0, len(sources), size):
            rows = slice(first, min(first + size, len(sources)))
            opened = [source if is_input(source) else pictures.read(source) for source in sources[rows]]
            check_boxes(regions[1], opened, rows)
            inputs = view.preprocess.batch(opened).to(view.device, view.dtype)
            images = _Images(view, inputs, any(subject.maps is None for subject in subjects), repeated)
            known = {
                "masks": masks_of(view.preprocess, opened, rows, *regions),
                "labels": None if truth is None or truth.classes is None else truth.classes[rows],
                "others": others,
            }
            for i, subject in enumerate(subjects):
                work.enter(subject.name)
                case, notes = subject.case(view, images, rows, aim, **known)
                said[subject.name] += notes
                empty[subject.name] += int(case.empty.sum())
                for j, metric in enumerate(metrics):
                    measured.setdefault((i, j), []).append(metric.measure(case).double().cpu())
                    if isinstance(metric, CurveMetric):
                        curves.setdefault((i, j), []).append(metric.curve(case).stored())
                    sentences = case.told(getattr(metric, "baseline", None))
                    told.setdefault((i, j), Counter()).update(sentence for sentence in sentences if sentence)
                case.forget()
                work.finish_some(len(inputs))
    found = []
    for (i, j), parts in measured.items():
        curve = joined(curves[i, j]) if (i, j) in curves else None
        protocol: dict[str, Any] = {
            "metric": metrics[j].config,
            "explained": "as it was made" if subjects[i].explanation is not None else whose,
            "precision": view.precision,
        }
        remarks = [f"{n} of {len(sources)} images: {sentence}" for sentence, n in told[i, j].items()]
        row = score(subjects[i].name, metrics[j], torch.cat(parts), protocol, curve)
        if row.skipped:
            remarks.insert(0, f"{row.skipped} of {len(sources)} images do not count: {metrics[j].uncounted}")
        found.append(replace(row, protocol=protocol | {"notes": remarks}) if remarks else row)
    return Scores(
        rows=tuple(found),
        images=tuple(called(source, i) for i, source in enumerate(sources)),
        model=view.name,
        fingerprint=view.fingerprint(),
        seconds=work.seconds,
        forwards=round(work.made.forwards),
        versions=versions(),
        empty={name: count for name, count in empty.items() if count},
        told={name: summed(notes) for name, notes in said.items() if any(notes)},
        notes=asked.left_out,
    )


def score(method: str, metric: Metric, measured: Tensor, protocol: dict[str, Any], curve: Curve | None = None) -> Score:
    """Sum up what a metric measured of all images.

    Args:
        method: The method's name.
        metric: The metric.
        measured: What `Metric.measure` gave, of all batches together.
        protocol: What the row says of how it was measured.
        curve: The curves, for metrics that are the area under one.
    """
    each = metric.of_each(measured).numpy()
    if type(metric).of_all is Metric.of_all:
        low, high = interval(each)
    else:
        low, high = bootstrap(len(measured), lambda rows: float(metric.of_all(measured[torch.from_numpy(rows)])), 500)
    value = float(metric.of_all(measured))
    return Score(method, metric.spec, value, low, high, metric.higher_is_better, each, protocol, curve)
