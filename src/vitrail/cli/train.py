"""``vitrail train``: an explainer for one's own model."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitrail.cli.options import Device, Quiet, say, watched


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train an explainer that answers in one pass (AHA).

    Stopped and started again it goes on, also with more steps. It needs pip install 'vitrail[train]'.

    Example: vitrail train --model demo --data scenes:64 --batch 8 --steps 8 --report short --out my-first
    """

    model: str = "demo"
    """The model to explain: demo, timm/NAME (or NAME), torchvision/NAME, hf/REPOSITORY, FILE.py:FUNCTION."""
    checkpoint: Path | None = None
    """A file with the model's weights; otherwise the published ones are fetched."""
    data: tuple[str, ...] = ("scenes:2000",)
    """One or more sets of pictures to learn from, such as imagenet:/data/imagenet (its train/) or folder:photos."""
    limit: int | None = None
    """Learn from so many pictures only, evenly spread; the held-out ones stay the same."""
    backbone: str = "self"
    """Whose features the explainer sees: self, the model's own, or a timm model's."""
    steps: int = 2000
    """How many steps; a training that has stopped, or is done, goes on with more."""
    batch: int = 64
    """Pictures a step, on all devices together."""
    rate: float = 3e-4
    """The highest learning rate."""
    curve: int = 8
    """Steps of the insertion and deletion curves (S in the paper)."""
    cells: tuple[int, int] = (7, 14)
    """The fewest and the most cells a side that pictures are cut into."""
    channels: int | None = None
    """Width of the decoder; by default what suits the model."""
    evidence: Literal["on", "off"] = "on"
    """Whether the explainer sees, besides features, what speaks for a class in them; the paper's does not."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the model's passes."""
    seed: int = 0
    """Another seed draws everything else."""
    look: int = 100
    """Steps between two looks at held-out pictures; at each the explainer and a checkpoint are saved."""
    sheet: int = 500
    """Steps between two picture sheets."""
    gates: Literal["on", "off"] = "on"
    """Stop when the maps are no better than untrained ones, or rank no more clearly, at a quarter of the way."""
    report: Literal["full", "short"] = "full"
    """Compare the explainer, plain and refined, with other methods at the end, or with chance alone."""
    out: Path = Path("vitrail-explainer")
    """The training's folder."""
    device: Device = None
    quiet: Quiet = False

    def run(self) -> None:
        """Train, and say how to use the explainer."""
        from vitrail.method.aha import Objective
        from vitrail.model import load
        from vitrail.train import EXPLAINER, REPORT, Training, joined, launched, train, whole

        whole("--curve", self.curve)  # before the objective is made of it, which has other words
        training = Training(
            steps=self.steps,
            batch=self.batch,
            rate=self.rate,
            objective=Objective(steps=self.curve),
            cells=self.cells,
            encoder=self.backbone,
            channels=self.channels,
            evidence=self.evidence,
            precision=self.precision,
            seed=self.seed,
            look=self.look,
            sheet=self.sheet,
            gates=self.gates,
            limit=self.limit,
            report=self.report,
        )
        items = joined(self.data).items
        fabric: Any = launched(self.device, int(os.environ.get("WORLD_SIZE", "1")))
        view = load(self.model, self.checkpoint, device=str(fabric.device))
        try:
            train(view, items, self.out, training, fabric=fabric, progress=watched(self.quiet))
        except KeyboardInterrupt:
            if fabric.global_rank == 0:
                say(self._stopped(), self.quiet)
            raise
        if fabric.global_rank == 0:
            say((self.out / REPORT).read_text(encoding="utf-8"), self.quiet)
            say(f"explainer: use it as \"aha(explainer='{self.out / EXPLAINER}')\"", self.quiet)

    def _stopped(self) -> str:
        """What there is of a training that was interrupted."""
        from vitrail.train import EXPLAINER

        folder = self.out / EXPLAINER
        if not folder.is_dir():
            return (
                f"nothing is saved yet: that comes at the first look, after {min(self.look, self.steps)} steps (--look)"
            )
        steps = json.loads((folder / "config.json").read_text(encoding="utf-8"))["steps"]
        return f"the explainer as of step {steps} is \"aha(explainer='{folder}')\"; the same command goes on from there"
