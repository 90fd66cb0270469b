"""Run a plan: every method on every image, judged by every metric, into a store that any later run goes on from."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from vitrail.bench.data import Dataset, Item, dataset
from vitrail.bench.store import Store
from vitrail.bench.work import Explains, Unit, explained, judged, units
from vitrail.errors import InputError
from vitrail.explanation import versions
from vitrail.method import parse as parse_method
from vitrail.metric import Pool, Scores, expand, parse, score
from vitrail.model import Precision, View, load

OTHERS = 64
"""Pictures, evenly spread over the dataset, that can be set beside others in grids."""


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
        limit: So many images, evenly spread.
        chunk: Images in a unit of work.
        precision: Arithmetic of the model's passes.
        size: Input height and width, where the model's own is not wanted.
    """

    model: str
    data: str
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    checkpoint: str | None = None
    explains: Explains = "predicted"
    limit: int | None = None
    chunk: int = 32
    precision: Precision = "fp32"
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
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
    """

    plan: Plan
    device: str | None = None
    view: View = field(init=False)
    data: Dataset = field(init=False)

    def __post_init__(self) -> None:
        checkpoint = None if self.plan.checkpoint is None else Path(self.plan.checkpoint)
        self.data = dataset(self.plan.data).limit(self.plan.limit)
        self.view = load(self.plan.model, checkpoint, size=self.plan.size, device=self.device)
        for spec in self.plan.methods:
            parse_method(spec).check(self.view)
        self._others: Pool | None = None
        self._check()

    def _check(self) -> None:
        """Say what the images lack before any work is done."""
        regions = any(item.region is not None or item.boxes is not None for item in self.data)
        labels = all(item.accepted for item in self.data)
        for metric in map(parse, self.plan.metrics):
            if "masks" in metric.needs and not regions:
                raise InputError(f"{metric.spec} needs masks or boxes, but {self.plan.data} has none")
            if getattr(metric, "target", None) == "label" and not labels:
                raise InputError(f"{metric.spec} needs the true classes, but {self.plan.data} does not have them all")
        if self.plan.explains == "label" and not any(item.accepted for item in self.data):
            raise InputError(f"the true classes were to be explained, but {self.plan.data} has none")

    def facts(self) -> dict[str, Any]:
        """What the numbers depend on. Methods and metrics can be added to a run, so they are not among it."""
        return {
            "model": self.view.name,
            "weights": self.view.fingerprint(),
            "data": self.plan.data,
            "images": len(self.data),
            "images hash": self.data.fingerprint(),
            "explains": self.plan.explains,
            "chunk": self.plan.chunk,
            "precision": self.plan.precision,
            "versions": versions(),
        }

    def units(self) -> list[Unit]:
        """All work."""
        return units(self.data.items, self.plan.methods, self.plan.chunk)

    def work(self, store: Store, unit: Unit, parts: Sequence[str] = ()) -> bool:
        """Do what a unit still lacks, and put it down; whether there was anything to do.

        Args:
            store: The run.
            unit: The work.
            parts: What the store has of it, see `parts_of`.
        """
        method = parse_method(unit.method)
        with self.view.using(self.plan.precision), self.view.still():
            if unit.name not in parts:
                table = explained(self.view, unit, method, self.plan.explains)
                metrics = [parse(spec) for spec in self.plan.metrics]
                store.write(unit.name, judged(self.view, unit, table, method, metrics, self.others()))
                return True
            table, known = store.read(unit.name), columns_of(store, parts)
            lacking = [parse(spec) for spec in self.plan.metrics if spec not in known]
            if not lacking:
                return False
            more = judged(self.view, unit, table, method, lacking, self.others())
            digest = hashlib.sha256("\n".join(metric.spec for metric in lacking).encode()).hexdigest()[:8]
            kept = ["image", *(metric.spec for metric in lacking)]
            store.write(f"{unit.name}{MORE}{digest}", more.select(kept))
            return True

    def others(self) -> Pool:
        """Pictures to set beside others, the same for every unit; those that cannot be read are left out."""
        if self._others is None:
            found = [self._input(item) for item in self.data.limit(OTHERS)]
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


MORE = "+"
"""Between the name of a unit and the digest of metrics that were asked for later."""


def parts_of(store: Store) -> dict[str, list[str]]:
    """The names of all parts, by the unit they belong to."""
    found = defaultdict(list)
    for name in store.units():
        folder, _, last = name.rpartition("/")  # a method's own name may hold the sign too: gradcam++
        found[f"{folder}/{last.partition(MORE)[0]}"].append(name)
    return dict(found)


def columns_of(store: Store, parts: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """The columns of some parts of one unit, by name."""
    tables = [store.read(name) for name in parts]
    return {column: table[column] for table in tables for column in table.column_names}


def run(plan: Plan, out: str | Store, *, device: str | None = None, progress: bool = False) -> Scores:
    """Run a plan in this process, or what is left of it.

    Args:
        plan: What is measured.
        out: The run's folder, or a URL that fsspec knows.
        device: Where the model lives.
        progress: Show a progress bar.

    Example:
        >>> plan = Plan("demo", "scenes:4", ("genatt", "random"), ("deletion(step=5184)",), chunk=2)
        >>> found = run(plan, "memory://a-small-run")
        >>> found.row("deletion", "genatt").value < found.row("deletion", "random").value
        True
    """
    from tqdm.auto import tqdm

    store = out if isinstance(out, Store) else Store(out)
    bench = Bench(plan, device)
    store.begin(bench.facts())
    known = parts_of(store)
    for unit in tqdm(bench.units(), unit="unit", disable=not progress, leave=False):
        bench.work(store, unit, known.get(unit.name, ()))
    return scores(plan, store, bench.data)


def scores(plan: Plan, store: Store, data: Dataset) -> Scores:
    """The table of a run, from what is stored; images of units that are not done, or that failed, do not count."""
    facts = store.manifest()
    if facts is None:
        raise InputError(f"{store.place} holds no run")
    gathered: dict[tuple[str, str], list[torch.Tensor | None]] = defaultdict(list)
    seconds, forwards = 0.0, 0.0
    known = parts_of(store)
    for unit in units(data.items, plan.methods, plan.chunk):
        columns = columns_of(store, known.get(unit.name, ()))
        seconds += _total(columns, "seconds")
        forwards += _total(columns, "forwards")
        for spec in plan.metrics:
            values = columns[spec].to_pylist() if spec in columns else [None] * len(unit.items)
            gathered[unit.method, spec] += [None if v is None else torch.tensor(v, dtype=torch.float64) for v in values]
    rows = []
    for (method, spec), values in gathered.items():
        metric = parse(spec)
        protocol = {key: facts[key] for key in ("explains", "precision")} | {"metric": metric.config}
        rows.append(score(method, metric, _stacked(values), protocol))
    return Scores(
        rows=tuple(rows),
        images=tuple(item.name for item in data),
        model=facts["model"],
        fingerprint=facts["weights"],
        seconds=seconds,
        forwards=round(forwards),
        versions=facts["versions"],
    )


def _total(columns: dict[str, pa.ChunkedArray], name: str) -> float:
    return sum(value for value in columns[name].to_pylist() if value is not None) if name in columns else 0.0


def _stacked(values: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """(N,) or (N, P) what a metric measured; NaN for images without a number."""
    width = max((len(value) for value in values if value is not None), default=1)
    nothing = torch.full((width,), torch.nan, dtype=torch.float64)
    found = torch.stack([nothing if value is None else value for value in values])
    return found[:, 0] if width == 1 else found


def errors(store: Store) -> Iterator[dict[str, str]]:
    """Which images were left out, by which method, and why."""
    for name in store.units():
        table = store.read(name)
        if "error" in table.column_names:
            for record in table.select(["image", "error"]).to_pylist():
                if record["error"] is not None:
                    yield {"unit": name, **record}
