"""Run a plan: every method on every image, judged by every metric, into a store that any later run goes on from."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import torch

from vitrail.bench.chunk import Chunk, Explains
from vitrail.bench.filter import Filter
from vitrail.bench.shapes import misfit
from vitrail.bench.store import Store
from vitrail.bench.stored import CHOSEN, MORE, columns_of, names_of, parts_of, scores
from vitrail.bench.unit import FILTER, Unit, column_of, explained, judged, units
from vitrail.data import Dataset, Item, dataset
from vitrail.errors import InputError, option
from vitrail.events import Cancel, Observer, Work, observers_of, working
from vitrail.explanation import versions
from vitrail.files import json_bytes
from vitrail.method import parse as parse_method
from vitrail.metric import Metric, Pool, Scores, expand, parse
from vitrail.model import Precision, View, load

CLASSES = (
    "write them into a table, csv:FILE with the columns file and class, or put the pictures into a folder for each "
    "class, folder:FOLDER (docs/data.md says more)"
)
REGIONS = "write them into a table, csv:FILE with the columns file and boxes or mask (docs/data.md says more)"
"""How to say what a user's own pictures lack."""

OTHERS = 64
"""Pictures, evenly spread over the dataset, that can be set beside others in grids."""

CANDIDATES = 4
"""Where a filter and a limit are asked for: pictures looked at for each one wanted."""


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        model: A name for `vitrail.load`.
        data: A spec for `dataset`.
        methods: Specs.
        metrics: Specs, or names of presets.
        checkpoint: A file with the model's weights.
        explains: The predicted class, or the true one.
        filter: Which pictures take part.
        limit: So many images, evenly spread (over four times as many candidates, where there is a filter).
        chunk: Images in a unit of work.
        precision: Arithmetic of the model's passes.
        compiled: Compile the model, where vitrail has no kernels for it; pays for methods with many thousand passes.
        size: Input height and width, where the model's own is not wanted.
    """

    model: str
    data: str
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    checkpoint: str | None = None
    explains: Explains = "predicted"
    filter: Filter = field(default_factory=Filter)
    limit: int | None = None
    chunk: int = 32
    precision: Precision = "fp32"
    compiled: bool = False
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, count in (("limit", self.limit), ("chunk", self.chunk)):
            if count is not None and count < 1:
                raise InputError(f"{option(name)} must be 1 or more, but {count} was given")
        specs = [parse_method(spec).spec for spec in self.methods]
        if not specs or len(set(specs)) < len(specs):
            raise InputError(f"a plan needs methods that differ, but {', '.join(self.methods) or 'none'} was given")
        object.__setattr__(self, "methods", tuple(specs))
        object.__setattr__(self, "metrics", tuple(metric.spec for metric in expand(self.metrics)))


@dataclass
class Bench:
    """A plan with its model and images at hand.

    Args:
        plan: What is measured.
        device: Where the model lives; the GPU by default if there is one.

    Attributes:
        view: The model.
        every: All images that may take part.
    """

    plan: Plan
    device: str | None = None
    view: View = field(init=False)
    every: Dataset = field(init=False)

    def __post_init__(self) -> None:
        checkpoint = None if self.plan.checkpoint is None else Path(self.plan.checkpoint)
        limit = self.plan.limit
        if limit is not None and self.plan.filter.given:
            limit *= CANDIDATES
        self.every = dataset(self.plan.data).limit(limit)
        self.every.check_readable()
        self.view = load(self.plan.model, checkpoint, size=self.plan.size, device=self.device)
        for spec in self.plan.methods:
            parse_method(spec).check(self.view)
        searches = Counter(parse_method(spec).search_spec() for spec in self.plan.methods)
        self._repeated = {spec for spec, count in searches.items() if count > 1}
        self._others: Pool | None = None
        self._data: Dataset | None = None
        self._opened: tuple[tuple[Item, ...], Chunk] | None = None
        self._check()

    def _check(self) -> None:
        """Say what the images lack before any work is done."""
        regions = any(item.region is not None or item.boxes is not None for item in self.every)
        labels = all(item.accepted for item in self.every)
        for metric in map(parse, self.plan.metrics):
            if "masks" in metric.needs and not regions:
                raise InputError(f"{metric.spec} needs masks or boxes, but {self.plan.data} has none; {REGIONS}")
            if getattr(metric, "target", None) == "label" and not labels:
                raise InputError(
                    f"{metric.spec} needs the true classes, but {self.plan.data} does not have them all; {CLASSES}"
                )
        known = any(item.accepted for item in self.every)
        if self.plan.explains == "label" and not known:
            raise InputError(f"the true classes were to be explained, but {self.plan.data} has none; {CLASSES}")
        if (self.plan.filter.correct or self.plan.filter.recognised) and not known:
            raise InputError(f"the filter asks for the true classes, but {self.plan.data} has none; {CLASSES}")
        if self.plan.filter.area and not regions:
            raise InputError(f"the filter asks how large the objects are, but {self.plan.data} has no masks or boxes")

    def facts(self) -> dict[str, Any]:
        """What the numbers depend on. Methods and metrics can be added to a run, so they are not among it."""
        return {
            "model": self.view.name,
            "weights": self.view.fingerprint(),
            "data": self.plan.data,
            "images": len(self.every),
            "images hash": self.every.fingerprint(),
            "filter": self.plan.filter.given,
            "limit": self.plan.limit,
            "explains": self.plan.explains,
            "chunk": self.plan.chunk,
            "precision": self.plan.precision,
            "compiled": self.plan.compiled,
            "maps": "float32",
            "versions": versions(),
        }

    # ---------------------------------------------------------------------------------------- which pictures take part

    def gates(self) -> list[Unit]:
        """The work to be done before pictures can be chosen: none without a filter."""
        return units(self.every.items, [FILTER], self.plan.chunk) if self.plan.filter.given else []

    def choose(self, store: Store) -> Dataset:
        """Choose the pictures that take part, once the filter has seen all; the first runner stores the choice."""
        found: list[tuple[Item, str | None]] = [(item, None) for item in self.every]
        if self.plan.filter.given:
            records = [record for unit in self.gates() for record in store.read(unit.name).to_pylist()]
            found = self.plan.filter.chosen(self.every.items, records)
        chosen = Dataset(self.every.spec, tuple(item for item, why in found if why is None), self.every.classes)
        self._data = chosen.limit(self.plan.limit)
        if not len(self._data):
            raise InputError(
                f"no picture of {self.plan.data} passes the filter {self.plan.filter.given}; the first: {found[0][1]}"
            )
        told = {record["image"] for record in records if record["error"]} if self.plan.filter.given else set()
        rows = [{"image": item.name, "error": None} for item in self._data]
        rows += [{"image": item.name, "error": why} for item, why in found if why and item.name not in told]
        schema = pa.schema([("image", pa.string()), ("error", pa.string())])
        _put(store, CHOSEN, pa.Table.from_pylist(rows, schema=schema))
        return self._data

    # ------------------------------------------------------------------------------------------------------------ work

    def units(self) -> list[Unit]:
        """All work on the pictures that take part."""
        assert self._data is not None, "choose comes first"
        return units(self._data.items, self.plan.methods, self.plan.chunk)

    def work(self, store: Store, unit: Unit, parts: Sequence[str] = ()) -> bool:
        """Do what a unit still lacks, and put it down; whether there was anything to do.

        Args:
            store: The run.
            unit: The work.
            parts: What the store has of it, see `parts_of`.
        """
        parts = parts or ([unit.name] if store.has(unit.name) else [])  # another runner may have done it meanwhile
        with self.view.using(self.plan.precision, self.plan.compiled or None), self.view.still(turns=True):
            if unit.method == FILTER:
                if unit.name not in parts:
                    _put(store, unit.name, self.plan.filter.table(self.view, self.opened(unit)))
                return unit.name not in parts
            method = parse_method(unit.method)
            if unit.name not in parts:
                shares = method.search_spec() in self._repeated
                table = explained(self.view, self.opened(unit), method, shares=shares)
                metrics = [parse(spec) for spec in self.plan.metrics]
                others = self.others(metrics)
                _put(store, unit.name, judged(self.view, self.opened(unit), table, method, metrics, others))
                return True
            table, known = store.read(unit.name), columns_of(store, parts)
            lacking = [parse(spec) for spec in self.plan.metrics if column_of(spec) not in known]
            digest = hashlib.sha256("\n".join(column_of(metric.spec) for metric in lacking).encode()).hexdigest()[:8]
            name = f"{unit.name}{MORE}{digest}"
            if not lacking or store.has(name):
                return False
            more = judged(self.view, self.opened(unit), table, method, lacking, self.others(lacking))
            _put(store, name, more.select(["image", *(column_of(metric.spec) for metric in lacking)]))
            return True

    def opened(self, unit: Unit) -> Chunk:
        """A unit's pictures. The last ones stay open: the next unit has the same, for another method."""
        if self._opened is None or self._opened[0] != unit.items:
            self._opened = (unit.items, Chunk(self.view, unit.items, self.plan.explains))
        return self._opened[1]

    def others(self, metrics: Sequence[Metric]) -> Pool | None:
        """Pictures to set beside others, the same for every unit; those that cannot be read are left out.

        Args:
            metrics: What is measured; where none of it needs them, there are none.
        """
        if not any(metric.uses_others for metric in metrics):
            return None
        if self._others is None:
            found = [self._input(item) for item in self.every.limit(OTHERS)]
            inputs = [one for one in found if one is not None]
            if not inputs:
                raise InputError(f"no picture of {self.plan.data} can be read")
            self._others = Pool(self.view, torch.stack(inputs))
        return self._others

    def _input(self, item: Item) -> torch.Tensor | None:
        try:
            return self.view.preprocess.tensor(item.picture())
        except (InputError, OSError):
            return None


class Engine(Protocol):
    """What does the work of a run: this process, or many machines.

    Attributes:
        device: Where the process that leads has its own model.
    """

    device: str | None

    def work(self, bench: Bench, store: Store, todo: Sequence[tuple[Unit, Sequence[str]]], work: Work) -> None:
        """Do the work, and return when all of it is in the store.

        Args:
            bench: The plan.
            store: The run.
            todo: Units, each with the parts that the store has of it.
            work: Told of every unit that is done.
        """


def _put(store: Store, name: str, table: pa.Table) -> None:
    """Write a part of a run that is still there: alone in a folder that was deleted it would be of no use."""
    if store.manifest() is None:
        raise InputError(f"{store.place} was deleted or moved while the run wrote to it; start the run again")
    store.write(name, table)


def run(
    plan: Plan,
    out: str | Store,
    *,
    device: str | Sequence[str] | None = None,
    engine: Engine | None = None,
    progress: bool = False,
    observers: Iterable[Observer] = (),
    cancel: Cancel | None = None,
    repair: bool = False,
    begun: Callable[[], object] = lambda: None,
) -> Scores:
    """Run a plan, or what is left of it.

    Args:
        plan: What is measured.
        out: The run's folder, or a URL that fsspec knows.
        device: Where the model lives; several work side by side.
        engine: What does the work; this process by default.
        progress: Show a progress bar.
        observers: Functions that are told of every event of the work, see `vitrail.events`.
        cancel: A token by which another thread can stop the work; what is done by then stays.
        repair: Make parts again that are damaged; otherwise they are refused.
        begun: Called once the run is known to be possible, before any work.

    Example:
        >>> plan = Plan("demo", "scenes:4", ("genatt", "random"), ("deletion(step=5184)",), chunk=2)
        >>> found = run(plan, "memory://a-small-run")
        >>> found.row("deletion", "genatt").value < found.row("deletion", "random").value
        True
    """
    from vitrail.bench.engines import Local

    store = out if isinstance(out, Store) else Store(out)
    engine = engine or Local(device)
    bench = Bench(plan, engine.device)
    store.begin(bench.facts(), unsaid={"maps": "float16"})
    _pin(plan, store)
    if repair:
        store.repair()
    begun()
    told = observers_of(progress, observers), cancel
    _finish(engine, bench, store, bench.gates(), *told)
    bench.choose(store)
    _finish(engine, bench, store, bench.units(), *told)
    return scores(plan, store)


LEARNED = "learned.json"
"""Which explainers the rows of methods that learn were made with."""


def _pin(plan: Plan, store: Store) -> None:
    """Refuse another explainer under the name of one that rows were made with already."""
    known = store.noted_mapping(LEARNED) or {}
    wrong = misfit(known, dict.fromkeys(known, str))
    if wrong:
        raise InputError(f"{store.place}/{LEARNED} does not name explainers: {wrong}; choose another folder")
    now = {one.first_spec: stamp for one in map(parse_method, plan.methods) if (stamp := one.stamp())}
    for spec, stamp in now.items():
        if known.get(spec, stamp) != stamp:
            raise InputError(
                f"{store.place} holds rows of {spec} made with another explainer ({known[spec]} there, {stamp} now); "
                "choose another folder"
            )
    if now.keys() - known.keys():
        store.note(LEARNED, json_bytes(known | now).decode())


def _finish(
    engine: Engine,
    bench: Bench,
    store: Store,
    wanted: Sequence[Unit],
    observers: Sequence[Observer],
    cancel: Cancel | None,
) -> None:
    """Do what the store lacks of some units."""
    known, left = parts_of(store), []
    for unit in wanted:
        parts = known.get(unit.name, [])
        asked = () if unit.method == FILTER else map(column_of, bench.plan.metrics)
        if unit.name not in parts or not set(asked) <= set(names_of(store, parts)):
            left.append((unit, parts))
    if left:
        with working("run", len(left), "unit", observers=observers, cancel=cancel) as work:
            engine.work(bench, store, left, work)
