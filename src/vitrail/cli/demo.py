"""``vitrail demo``: the main job on the embedded world, without a download."""

import time
from dataclasses import dataclass
from pathlib import Path

from vitrail.cli.options import Device, Quiet, say, watched

METHODS = ("gradcam", "ig(steps=24)", "rollout", "genatt", "decompx", "aha")


@dataclass(frozen=True)
class Demo:
    """Explain the sample scenes with the embedded model, and draw a comparison sheet.

    Example: vitrail demo --out vitrail-demo
    """

    out: Path = Path("vitrail-demo")
    """Where to write the sheet."""
    device: Device = None
    quiet: Quiet = False

    def run(self) -> None:
        """Explain the samples, draw the sheet, and say where it is."""
        from vitrail import scenes
        from vitrail.explanation import sheet_of
        from vitrail.files import check_writable, write_whole
        from vitrail.front import explain_each
        from vitrail.model import load

        check_writable(self.out)
        start = time.perf_counter()
        view = load("demo", device=self.device or None)
        named = scenes.samples()
        pictures = [scene.pil for _, scene in named]
        for picture, (name, _) in zip(pictures, named):
            picture.filename = name  # type: ignore[attr-defined]  # a PIL picture carries its name there
        found = explain_each(view, pictures, METHODS, progress=watched(self.quiet))
        sheet = sheet_of(found, pictures, title="What does the scenes model look at?")
        path = self.out / "sheet.png"
        write_whole(path, lambda file: sheet.save(file, "PNG"))
        say(f"{len(pictures)} pictures, {len(METHODS)} methods, {time.perf_counter() - start:.1f} s", self.quiet)
        say(f"sheet: {path}", self.quiet)
