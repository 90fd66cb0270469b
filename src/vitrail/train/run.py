"""A training from its first step to its report, in a folder that it goes on from."""

import csv
import io
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vitrail import show
from vitrail.bench import Item
from vitrail.errors import InputError
from vitrail.explanation import check_writable, write_whole
from vitrail.method import Explainer
from vitrail.model import View
from vitrail.train.loop import Learner
from vitrail.train.plan import Training

CHECKPOINT, LOG, EXPLAINER, REPORT = "checkpoint.pt", "log.csv", "explainer", "report.md"
"""What a training's folder holds: where it stands, what was lost, the explainer, and how good it is."""

GATE = 0.25
"""The share of the steps after which the maps must be better than chance."""

SHOWN = 6
"""Held-out pictures on a sheet."""


def train(
    view: View, items: Sequence[Item], out: Path, training: Training, *, fabric: Any = None, progress: bool = False
) -> Explainer:
    """Train an explainer for a model, or go on with it; it is saved in ``out/explainer``.

    Args:
        view: The target.
        items: The pictures to learn from.
        out: The training's folder. A checkpoint in it is gone on from; one of another training is refused.
        training: The settings.
        fabric: Lightning's, launched; by default one of a single process on the view's device.
        progress: Show a progress line.
    """
    from tqdm.auto import tqdm

    check_writable(out)
    fabric = fabric or launched(view.device)
    learner = Learner(view, items, training, fabric)
    facts = _facts(view, items, training)
    history, first = _resumed(learner, out / CHECKPOINT, facts)
    leads = fabric.global_rank == 0
    chance = learner.look(chance=True)["difference"]
    bar = tqdm(range(first, training.steps), initial=first, total=training.steps, disable=not (progress and leads))
    start = time.perf_counter()
    for number in bar:
        row: dict[str, float] = {"step": number, **learner.step(number)}
        last = number + 1 == training.steps
        if last or (number + 1) % training.look == 0:
            row["held"] = learner.look()["difference"]
            bar.set_postfix_str(
                f"del {row['deletion']:.3f} ins {row['insertion']:.3f} held-out {row['held']:.3f} (chance {chance:.3f})"
            )
        history.append(row)
        if "held" in row:
            if leads:
                _keep(learner, out, facts, history)
            _check(training, history, chance, number)
        if leads and (last or (number + 1) % training.sheet == 0):
            _draw(learner, out / "sheets" / f"{number + 1:06d}.png", number + 1)
    learner.explainer.noted(steps=training.steps, temperature=training.temperatures[1])
    if leads:
        learner.explainer.save_pretrained(out / EXPLAINER)
        _report(learner, out, history, chance, time.perf_counter() - start)
    fabric.barrier()
    return learner.explainer


def launched(device: str | torch.device | None = None, processes: int = 1) -> Any:
    """Lightning's fabric: this process alone, or one of several that torchrun started.

    Args:
        device: Where to train, by default on the GPU if there is one.
        processes: How many processes there are on all machines together.
    """
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise InputError("training needs lightning-fabric; use pip install 'vitrail[train]'") from error
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if processes == 1:
        fabric = Fabric(accelerator=place.type, devices=1 if place.index is None else [place.index])
    else:
        machines = processes // int(os.environ.get("LOCAL_WORLD_SIZE", processes))
        fabric = Fabric(accelerator=place.type, devices=processes // machines, num_nodes=machines, strategy="ddp")
    fabric.launch()
    return fabric


def _facts(view: View, items: Sequence[Item], training: Training) -> dict[str, Any]:
    """What a training depends on."""
    return {
        "target": view.fingerprint(),
        "pictures": [len(items), items[0].stamp() if items else "", items[-1].stamp() if items else ""],
        "settings": json.loads(json.dumps(asdict(training))),
    }


def _resumed(learner: Learner, path: Path, facts: dict[str, Any]) -> tuple[list[dict[str, float]], int]:
    """What was done before, and the next step; nothing, and 0, where there is no checkpoint."""
    if not path.exists():
        return [], 0
    try:
        kept = torch.load(path, map_location=learner.fabric.device, weights_only=True)
        known = json.loads(kept["facts"])
    except Exception as error:  # a damaged file may raise nearly anything
        raise InputError(f"{path} cannot be read ({error}); delete it to begin anew") from error
    for key, value in facts.items():
        if known.get(key) != value:
            inner = {k: (known.get(key, {}).get(k), v) for k, v in value.items()} if isinstance(value, dict) else {}
            gaps = "; ".join(f"{k} {a!r} there, {b!r} now" for k, (a, b) in inner.items() if a != b)
            raise InputError(
                f"{path} is of another training: {key} differs{f' ({gaps})' if gaps else ''}; "
                "choose another folder, or ask for the same"
            )
    learner.load(kept["state"])
    history: list[dict[str, float]] = json.loads(kept["history"])
    return history, int(history[-1]["step"]) + 1


def _keep(learner: Learner, out: Path, facts: dict[str, Any], history: list[dict[str, float]]) -> None:
    kept = {"facts": json.dumps(facts), "history": json.dumps(history), "state": learner.state()}
    write_whole(out / CHECKPOINT, lambda file: torch.save(kept, file))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", "total", "deletion", "insertion", "regulariser", "held"])
    writer.writeheader()
    writer.writerows(history)
    write_whole(out / LOG, lambda file: file.write(text.getvalue().encode()))


def _check(training: Training, history: list[dict[str, float]], chance: float, number: int) -> None:
    """Stop what does not learn, before it costs more."""
    if training.gates == "off" or number + 1 < GATE * training.steps:
        return
    best = max(row["held"] for row in history if "held" in row)
    if best <= chance:
        raise InputError(
            f"after {number + 1} of {training.steps} steps the maps are no better than chance on held-out pictures "
            f"({best:.3f} and {chance:.3f}, insertion minus deletion); try a higher rate, more pictures, or --gates off"
        )


def _draw(learner: Learner, path: Path, steps: int) -> None:
    """A sheet of held-out pictures with their maps."""
    view, rows = learner.view, []
    maps, images, logits = (values.cpu() for values in learner.shown(range(min(SHOWN, len(learner.held)))))
    for item, heat, image, answer in zip(learner.held.items, maps, images, logits):
        best = answer.softmax(0).topk(min(3, len(answer)))
        named = tuple((view.class_name(int(c)), float(p)) for p, c in zip(best.values, best.indices))
        rows.append(show.Row(view.preprocess.restore(image), item.name, named, named[0][0], (show.Cell(heat.numpy()),)))
    picture = show.sheet(rows, ["aha"], title=f"After {steps} steps")
    write_whole(path, lambda file: picture.save(file, "PNG"))


def _report(learner: Learner, out: Path, history: list[dict[str, float]], chance: float, seconds: float) -> None:
    """How good it became, in a page."""
    last = learner.look()
    curve = [(int(row["step"]) + 1, row["held"]) for row in history if "held" in row]
    training, fabric = learner.training, learner.fabric
    amount = f"{training.steps} steps of {training.batch} pictures, {len(learner.pictures)} in all"
    lines = [
        f"# An explainer for {learner.view.name}",
        "",
        f"{amount}, {len(learner.held)} held out; {seconds:.0f} s on {fabric.world_size} x {fabric.device.type}.",
        "",
        "Hard metrics on held-out pictures, the predicted class, means over three references:",
        "",
        "| map | insertion | deletion | difference |",
        "|---|---|---|---|",
        f"| aha | {last['insertion']:.4f} | {last['deletion']:.4f} | {last['difference']:.4f} |",
        f"| chance | | | {chance:.4f} |",
        "",
        "| steps | difference |",
        "|---|---|",
        *(f"| {step} | {value:.4f} |" for step, value in curve),
    ]
    broken = {**learner.pictures.broken, **learner.held.broken}
    if broken:
        name, why = next(iter(broken.items()))
        lines += ["", f"{len(broken)} pictures could not be read and were left out; the first, {name}: {why}"]
    write_whole(out / REPORT, lambda file: file.write(("\n".join(lines) + "\n").encode()))
