"""Do the metrics know the truth? The object's own mask as a map, against worse ones, on scenes where it is known.

    python benchmarks/mask_truth.py [--scenes 40] [--out docs/results/mask_truth.md]

Maps: the mask of the object; the mask blurred over 11 pixels; random cells; the mask turned inside out. One-object
scenes that the embedded model labels rightly. A metric is asked which of them it puts first.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

import vitrail
from vitrail import scenes
from vitrail.metric import METRICS, Scores, metrics, parse

NAMES = ("mask", "blurred mask", "random", "inverse mask")

STEP = 144 * 144 // 48
WITHOUT = {name for name in metrics() if "method" in METRICS[name].needs}
"""These explain other pictures, or another model: a mask has no method that could."""
SPECS = {
    "insertion": f"insertion(step={STEP})",
    "deletion": f"deletion(step={STEP})",
    "mas_insertion": f"mas_insertion(step={STEP})",
    "mas_deletion": f"mas_deletion(step={STEP})",
    "monotonicity": f"monotonicity(step={STEP})",
    "faithfulness_correlation": "faithfulness_correlation(samples=100)",
    "infidelity": "infidelity(samples=32)",
    "irof": "irof(segments=40)",
    "sic": "sic(least=0.5)",
}
MORE = (f"insertion(step={STEP}, baseline=zero_norm)", f"mas_insertion(step={STEP}, baseline=zero_norm)")
"""The embedded model still knows most scenes through a blur of 11 pixels, so insertion over grey is asked too."""


def right(view, wanted: int) -> tuple[list[scenes.Scene], Tensor]:
    """The first scenes that the model labels rightly, and their inputs."""
    found, inputs = [], []
    seed = 0
    while len(found) < wanted:
        scene = scenes.make(seed)
        x = view.preprocess.batch([scene.pil])
        with view.still(), torch.no_grad():
            if int(view.logits(x).argmax()) == scene.label:
                found.append(scene)
                inputs.append(x)
        seed += 1
    return found, torch.cat(inputs)


def table(scores: Scores) -> str:
    lines = [f"| metric | {' | '.join(NAMES)} | first |", f"|---|{'---|' * (len(NAMES) + 1)}"]
    for metric in scores.metrics:
        rows = [scores.row(metric, name) for name in NAMES]
        values = np.array([row.value for row in rows])
        sign = 1 if rows[0].higher_is_better else -1
        best = int(np.nanargmax(sign * values)) if np.isfinite(values).any() else -1
        gap = scores.difference(metric, "mask", NAMES[best]) if best > 0 else None
        sure = gap is not None and not gap.low <= 0 <= gap.high
        first = "none counts" if best < 0 else NAMES[best] if best == 0 or sure else f"{NAMES[best]}, not surely"
        arrow = "↑" if rows[0].higher_is_better else "↓"
        cells = " | ".join("" if np.isnan(value) else f"{value:.3f}" for value in values)
        skipped = f" ({rows[0].skipped} skipped)" if rows[0].skipped else ""
        lines.append(f"| `{metric}` {arrow}{skipped} | {cells} | {first} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--scenes", type=int, default=40)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    view = vitrail.load("demo")
    chosen, inputs = right(view, given.scenes)
    masks = torch.stack([torch.from_numpy(scene.objects[0].mask) for scene in chosen])
    generator = torch.Generator().manual_seed(0)
    maps = {
        "mask": masks.float(),
        "blurred mask": gaussian_blur(masks.float()[:, None], [11, 11], [4.0, 4.0])[:, 0],
        "random": torch.rand(len(masks), 12, 12, generator=generator),
        "inverse mask": 1 - masks.float(),
    }
    specs = [SPECS.get(name, name) for name in metrics() if name not in WITHOUT]
    specs = [spec for spec in specs if parse(spec).family in ("faithfulness", "localisation")]
    labels = [scene.label for scene in chosen]
    scores = vitrail.evaluate(view, inputs, maps, [*specs, *MORE], masks=masks, labels=labels)
    text = table(scores)
    print(f"{len(chosen)} scenes, {scores.seconds:.0f} s\n\n{text}")
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
