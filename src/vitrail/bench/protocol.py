"""A protocol: a table or a figure of a paper as a value. What is measured, how, and what the authors found."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.bench.chunk import Explains
from vitrail.bench.filter import Filter
from vitrail.bench.runner import Plan
from vitrail.errors import InputError
from vitrail.method import parse as parse_method
from vitrail.metric import parse as parse_metric
from vitrail.model import Precision

PROTOCOL, COMMAND = "protocol.json", "command.txt"
"""What a run's folder holds beside its parts: what was asked for, and the words it was asked with."""


@dataclass(frozen=True)
class Column:
    """A column of a table: one metric, or a sum of several.

    Attributes:
        name: What the paper calls it, such as ``Ins - Del``.
        terms: Metrics' specs, each with its weight: 1 and -1 for a difference, thirds for a mean of three.
    """

    name: str
    terms: tuple[tuple[str, float], ...]

    @property
    def higher_is_better(self) -> bool:
        """Which way is better: as for the first metric."""
        return parse_metric(self.terms[0][0]).higher_is_better == (self.terms[0][1] > 0)


@dataclass(frozen=True)
class Sweep:
    """What is drawn as lines instead of being a table.

    Attributes:
        axis: What changes, such as ``tau``.
        at: Label of a method that is run -> (the line it is on, its place on the axis).
    """

    axis: str
    at: Mapping[str, tuple[str, float]]


@dataclass(frozen=True)
class Part:
    """One model on one dataset: one run.

    Attributes:
        name: What it is called in the run's folder.
        model: A name for `vitrail.load`, the paper's by default.
        data: A spec for `dataset`.
        methods: What the paper calls a method -> its spec.
        ours: Methods that the paper does not have: our compositions.
        later: Rows of the paper whose method vitrail does not have yet, as ``methods``: they are not run.
        columns: What is shown of them.
        explains: The class that is explained.
        filter: Which pictures take part.
        published: What the paper found: method -> column -> number.
        published_for: Model and data that the published numbers are for, in words.
        sweep: Where it is a figure over a parameter.
        checkpoint: A file with the model's weights.
        limit: So many images at most.
        chunk: Images in a unit of work.
        precision: Arithmetic of the model's passes.
        compiled: Whether the model is compiled.
        size: Input height and width, where the model's own is not wanted.
    """

    name: str
    model: str
    data: str
    methods: Mapping[str, str]
    columns: tuple[Column, ...]
    ours: tuple[str, ...] = ()
    later: Mapping[str, str] = field(default_factory=dict)
    explains: Explains = "predicted"
    filter: Filter = field(default_factory=Filter)
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    published_for: str = ""
    sweep: Sweep | None = None
    checkpoint: str | None = None
    limit: int | None = None
    chunk: int = 32
    precision: Precision = "fp32"
    compiled: bool = False
    size: tuple[int, int] | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Every method's spec as the run has it -> what the report calls it."""
        named = {parse_method(spec).spec: label for label, spec in self.methods.items()}
        return named | {spec: spec for spec in (parse_method(one).spec for one in self.ours) if spec not in named}

    def plan(self) -> Plan:
        """What is to be run."""
        metrics = dict.fromkeys(spec for column in self.columns for spec, _ in column.terms)
        return Plan(
            model=self.model,
            data=self.data,
            methods=tuple(self.labels),
            metrics=tuple(metrics),
            checkpoint=self.checkpoint,
            explains=self.explains,
            filter=self.filter,
            limit=self.limit,
            chunk=self.chunk,
            precision=self.precision,
            compiled=self.compiled,
            size=self.size,
        )


@dataclass(frozen=True)
class Protocol:
    """A table or a figure.

    Attributes:
        name: Such as ``mda/table5``.
        title: What it shows, in one line.
        paper: Whose it is.
        parts: What is run.
        note: What the numbers depend on, and where ours differ from the paper's setting.
    """

    name: str
    title: str
    paper: str
    parts: tuple[Part, ...]
    note: str = ""

    def part(self, name: str) -> Part:
        """A part by its name."""
        for part in self.parts:
            if part.name == name:
                return part
        raise InputError(f"{self.name} has no part {name!r}; there are {', '.join(part.name for part in self.parts)}")

    def with_parts(self, **changes: Any) -> "Protocol":
        """The same with something changed in every part."""
        return replace(self, parts=tuple(replace(part, **changes) for part in self.parts))
