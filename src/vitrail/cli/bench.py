"""``vitrail bench``: a table of a paper, or one's own, measured into a folder."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitrail.cli.options import Quiet, say, watched
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.bench import Engine, Protocol


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Run a protocol: every method of a table on every picture, judged by every metric.

    Started again it goes on where it stopped. On real pictures: --data imagenet:FOLDER, without --model.

    Example: vitrail bench mda/table5 --model demo --methods Bi-Attn random --metrics Del --limit 2 --out table5
    """

    protocol: Annotated[str, tyro.conf.Positional]
    """A name such as mda/table5 (see: vitrail protocols), or a YAML file of your own."""
    part: tuple[str, ...] = ()
    """Only these parts of it."""
    model: str | None = None
    """Another model than the paper's."""
    checkpoint: Path | None = None
    """A file with the model's weights; otherwise the published ones are fetched."""
    data: tuple[str, ...] = ()
    """Where the pictures are, such as imagenet:/data/imagenet, one set of each kind that the protocol asks for; or
    other pictures, such as folder:photos. The demo models are shown drawn scenes by default. See docs/data.md."""
    methods: tuple[str, ...] = ()
    """Only these methods: the paper's names, or any specs."""
    metrics: tuple[str, ...] = ()
    """Only these columns: the paper's names, or any metrics or presets."""
    explainer: str | None = None
    """The explainer of AHA's rows, a folder that vitrail train wrote, or auto (demo's own); without one these rows
    are left out."""
    limit: int | None = None
    """So many pictures, evenly spread."""
    chunk: int | None = None
    """Pictures in a unit of work (32 by default)."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = None
    """Arithmetic of the model's passes."""
    compiled: bool = False
    """Compile the model first, where vitrail has no kernels for it: pays for many thousand passes."""
    repair: bool = False
    """Make parts of the run again whose files are damaged; otherwise they are refused."""
    out: str | None = None
    """The run's folder, or a URL such as s3://bucket/run; runs/NAME by default."""
    engine: Literal["local", "ray"] = "local"
    """Where the work is done: in this process, or on a Ray cluster."""
    address: str | None = None
    """The Ray cluster's address; one is started on this machine where none is given."""
    gpus: float | None = None
    """Ray: GPUs a worker, such as 0.5."""
    workers: int | None = None
    """Ray: how many workers; as many as fit by default."""
    device: tuple[str, ...] = ()
    """cpu, cuda, or several such as cuda:0 cuda:1; the GPU by default if there is one."""
    quiet: Quiet = False

    def run(self) -> None:
        """Measure, and print the report."""
        from vitrail.bench import narrowed, perform, placed, read_protocol, report, with_explainer

        whole = placed(self._changed(read_protocol(self.protocol, explainer=self.explainer)), self.data)
        methods = tuple(with_explainer(method, self.explainer) for method in self.methods)
        wanted = narrowed(whole, self.part, methods, self.metrics)
        out = self.out or f"runs/{wanted.name.replace('/', '-')}"
        command = shlex.join(["vitrail", *sys.argv[1:]])
        store = perform(
            wanted,
            out,
            device=self.device or None,
            engine=self._engine(),
            progress=watched(self.quiet),
            repair=self.repair,
            command=command,
        )
        if not self.quiet:
            print(report.text(report.Result.of(store), "terminal"), end="")
        say(f"run: {out}; other forms: vitrail report {shlex.quote(out)} --out FOLDER", self.quiet)

    def _changed(self, wanted: "Protocol") -> "Protocol":
        changes: dict[str, Any] = {
            "model": self.model,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "limit": self.limit,
            "chunk": self.chunk,
            "precision": self.precision,
            "compiled": self.compiled or None,
        }
        return wanted.with_parts(**{key: value for key, value in changes.items() if value is not None})

    def _engine(self) -> "Engine | None":
        if self.engine == "local":
            if (self.address, self.gpus, self.workers) != (None, None, None):
                raise InputError("--address, --gpus and --workers are for a Ray cluster; add --engine ray")
            return None
        from vitrail.bench import Ray

        return Ray(self.address, gpus=self.gpus, workers=self.workers)
