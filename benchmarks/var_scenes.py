"""Does VAR point more at the target? Scenes with two objects, and twins that differ by one part: the truth is known.

    python benchmarks/var_scenes.py [--scenes 200] [--batch 50]

Region Attribution is the share of the map's positive part that lies on the target's object (two-object scenes) or on
the part that tells it from its twin (one-object scenes, the twin being the rival). Maps are enlarged to pixels first,
and blurred by 11 x 11 pixels as in the paper (it does not say how strongly: a standard deviation of 11 / 6 here).
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from vitrail import explain, load, scenes
from vitrail.metric import region_attribution

PAPER = (
    "bt_h",
    "gradcam",
    "inflow",
    "grad_rollout",
    "t_attn",
    "t_attr",
    "saliency",
    "ixg",
    "ig(steps=16)",
    "lrp",
)
"""Base methods of the paper's Table 1 that a ViT can serve, all ten of them; guided backpropagation needs ReLUs."""

OTHERS = (
    "genatt",
    "gradsam",
    "decompx",
    "plus(decompx)",
    "skipplus(decompx)",
    "skipplus(ixg)",
    "attcat",
)


def interval(difference: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """A 95 % bootstrap interval of the mean of paired differences."""
    draws = np.random.default_rng(seed).choice(difference, (2000, len(difference)))
    low, high = np.quantile(draws.mean(1), [0.025, 0.975])
    return float(low), float(high)


def compare(view, chosen: Sequence[tuple[scenes.Scene, int, int, np.ndarray]], batch: int) -> None:
    """Print base and VAR side by side; ``chosen`` holds scenes, targets, rivals and the true region."""
    pictures = [scene.pil for scene, *_ in chosen]
    targets, rivals = ([row[i] for row in chosen] for i in (1, 2))
    masks = np.stack([row[3] for row in chosen])
    area = masks.mean()
    print(f"{len(chosen)} scenes, the region covers {area:.1%} of the picture on average")
    print("| base | base | var | difference (95 % interval) |\n|---|---|---|---|")
    raised = {}
    for base in PAPER + OTHERS:
        plain = explain(view, pictures, base, targets, batch=batch)
        # Every picture has its own rival, so those with the same one go together.
        found = torch.zeros_like(plain.maps)
        for rival in sorted(set(rivals)):
            rows = [i for i, other in enumerate(rivals) if other == rival]
            spec = f"var({base}, classes=({rival},))"
            found[rows] = explain(view, [pictures[i] for i in rows], spec, [targets[i] for i in rows], batch=batch).maps
        scores = []
        for maps in (plain.maps, found):
            enlarged = torch.nn.functional.interpolate(maps[:, None], masks.shape[1:], mode="bilinear")[:, 0]
            scores.append(region_attribution(enlarged, torch.as_tensor(masks), sigma=11 / 6).numpy())
        difference = scores[1] - scores[0]
        low, high = interval(difference)
        raised[base] = difference.mean() > 0
        print(
            f"| `{base}` | {scores[0].mean():.3f} | {scores[1].mean():.3f} | "
            f"{difference.mean():+.3f} ({low:+.3f} to {high:+.3f}) |",
            flush=True,
        )
    for name, group in (("the paper's", PAPER), ("the other", OTHERS)):
        print(f"VAR is ahead for {sum(raised[base] for base in group)} of {name} {len(group)} base methods")
    print()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--scenes", type=int, default=200)
    options.add_argument("--batch", type=int, default=50)
    given = options.parse_args()
    view = load("demo")
    two = list(scenes.Scenes(given.scenes, seed=11, objects=2))
    compare(view, [(s, s.objects[0].label, s.objects[1].label, s.objects[0].mask) for s in two], given.batch)
    twins = {}
    for pair in scenes.PAIRS:
        twins[pair.first] = (pair.second, pair.part_first)
        twins[pair.second] = (pair.first, pair.part_second)
    one = list(scenes.Scenes(given.scenes, seed=12))
    chosen = []
    for scene in one:
        rival, part = twins[scene.name]
        chosen.append((scene, scene.label, scenes.CLASSES.index(rival), scene.objects[0].parts[part]))
    compare(view, chosen, given.batch)


if __name__ == "__main__":
    main()
