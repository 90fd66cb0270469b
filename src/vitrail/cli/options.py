"""Options that several verbs share."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.model import View

Device = Annotated[str | None, tyro.conf.arg(help="cpu, cuda, cuda:1, mps; the GPU by default if there is one.")]
Quiet = Annotated[bool, tyro.conf.arg(help="Print nothing but errors.")]


def watched(quiet: bool) -> bool:
    """Whether to show progress: to a person at a terminal, not in a log file."""
    return not quiet and sys.stderr.isatty()


def say(text: str, quiet: bool) -> None:
    """Print a line, unless quiet was asked for."""
    if not quiet:
        print(text)


@dataclass(frozen=True, kw_only=True)
class Looking:
    """Pictures, a model that looks at them, and how it does."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Picture files or folders of pictures."""
    model: str = "demo"
    """demo, timm/NAME (or NAME), torchvision/NAME, hf/REPOSITORY, open_clip/ARCHITECTURE or FILE.py:FUNCTION."""
    checkpoint: Path | None = None
    """A file with the model's weights; otherwise the published ones are fetched."""
    classes: tuple[str, ...] = ()
    """Class names; for open_clip the texts to choose between."""
    size: tuple[int, int] | None = None
    """Input height and width, where the model's own is not wanted."""
    batch: int | None = None
    """Images at a time (16 by default; fewer are taken when memory runs out)."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the model's passes."""
    compiled: bool = False
    """Compile the model first, where vitrail has no kernels for it: pays for many thousand passes."""
    device: Device = None
    quiet: Quiet = False

    def sources(self) -> list[Any]:
        """The pictures, of which there must be some; those that are broken are told before a model is loaded."""
        from vitrail.model import pictures, sources_of

        if not self.images:
            raise InputError("no picture was given; give picture files or a folder")
        found = sources_of(list(self.images))
        pictures.refuse_broken(found)
        return found

    def view(self) -> "View":
        """The model."""
        from vitrail.model import load

        return load(
            self.model, self.checkpoint, classes=self.classes or None, size=self.size, device=self.device or None
        )

    def how(self) -> dict[str, Any]:
        """What `explain` and `evaluate` are told besides."""
        return {
            "batch": self.batch,
            "precision": self.precision,
            "compiled": self.compiled,
            "progress": watched(self.quiet),
        }
