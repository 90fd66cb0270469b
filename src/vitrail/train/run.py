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
from torch import Tensor

from vitrail import show
from vitrail.bench import Item
from vitrail.errors import InputError
from vitrail.explanation import check_writable, write_whole
from vitrail.method import Explainer
from vitrail.model import View
from vitrail.train.loop import LOSSES, Learner
from vitrail.train.plan import Training
from vitrail.train.report import History, write_report

CHECKPOINT, LOG, EXPLAINER = "checkpoint.pt", "log.csv", "explainer"
"""What a training's folder holds: where it stands, what was lost, and the explainer."""

GATE = 0.25
"""The share of the steps after which the maps must be better than chance, and rank more clearly than at first."""

CLEARER = 0.01
"""By how much the entropy of the ranks must be below that of the untrained explainer at the same temperature. A
training of the demo model gains 0.015 in 4 steps and 0.06 in 31; 0.09 would be an even ranking."""

FREE = ("gates", "report", "sheet")
"""Settings that do not change what is learned: a training may go on with others."""

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
    leads = fabric.global_rank == 0
    untrained = learner.scores()
    facts = _facts(view, items, training)
    history, first = _resumed(learner, out / CHECKPOINT, facts)
    learner.read(first, progress=progress and leads)
    chance = learner.look(chance=True)["difference"]
    bar = tqdm(range(first, training.steps), initial=first, total=training.steps, disable=not (progress and leads))
    start = time.perf_counter()
    lost: list[Tensor] = []  # since the last look; a GPU need not be waited for at every step
    for number in bar:
        lost.append(learner.step(number))
        last = number + 1 == training.steps
        if last or (number + 1) % training.look == 0:
            numbers = range(number + 1 - len(lost), number + 1)
            history += [{"step": i, **dict(zip(LOSSES, row))} for i, row in zip(numbers, torch.stack(lost).tolist())]
            lost.clear()
            row = history[-1]
            row["held"] = learner.look()["difference"]
            row["entropy"] = learner.entropy(number, learner.scores())
            row["untrained"] = learner.entropy(number, untrained)
            bar.set_postfix_str(
                f"del {row['deletion']:.3f} ins {row['insertion']:.3f} held-out {row['held']:.3f} "
                f"(chance {chance:.3f}) rank entropy {row['entropy']:.3f} (untrained {row['untrained']:.3f})"
            )
            if leads:
                _keep(learner, out, facts, history)
            _check(training, history, chance, number)
        if leads and (last or (number + 1) % training.sheet == 0):
            _draw(learner, out / "sheets" / f"{number + 1:06d}.png", number + 1)
    contrast = learner.contrast()
    learner.explainer.noted(steps=training.steps, temperature=training.temperatures[1], contrast=contrast)
    if leads:
        seconds = time.perf_counter() - start
        learner.explainer.save_pretrained(out / EXPLAINER)
        write_report(learner, out, out / EXPLAINER, history, chance, seconds, progress=progress)
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
    settings = {name: value for name, value in asdict(training).items() if name not in FREE}
    return {
        "target": view.fingerprint(),
        "pictures": [len(items), items[0].stamp() if items else "", items[-1].stamp() if items else ""],
        "settings": json.loads(json.dumps(settings)),
    }


def _resumed(learner: Learner, path: Path, facts: dict[str, Any]) -> tuple[History, int]:
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
    history: History = json.loads(kept["history"])
    return history, int(history[-1]["step"]) + 1


def _keep(learner: Learner, out: Path, facts: dict[str, Any], history: History) -> None:
    kept = {"facts": json.dumps(facts), "history": json.dumps(history), "state": learner.state()}
    write_whole(out / CHECKPOINT, lambda file: torch.save(kept, file))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *LOSSES, "held", "entropy", "untrained"])
    writer.writeheader()
    writer.writerows(history)
    write_whole(out / LOG, lambda file: file.write(text.getvalue().encode()))


def _check(training: Training, history: History, chance: float, number: int) -> None:
    """Stop what does not learn, before it costs more."""
    if training.gates == "off" or number + 1 < GATE * training.steps:
        return
    best = max(row["held"] for row in history if "held" in row)
    if best <= chance:
        raise InputError(
            f"after {number + 1} of {training.steps} steps the maps are no better than chance on held-out pictures "
            f"({best:.3f} and {chance:.3f}, insertion minus deletion); try a higher rate, more pictures, or --gates off"
        )
    judged = [row for row in history if "entropy" in row and row["step"] + 1 >= GATE * training.steps]
    if not any(row["entropy"] < row["untrained"] - CLEARER for row in judged):
        row = judged[-1]
        raise InputError(
            f"after {number + 1} of {training.steps} steps the maps rank regions no more clearly than an untrained "
            f"explainer's (rank entropy {row['entropy']:.3f} and {row['untrained']:.3f} on held-out pictures at the "
            "same temperature, 1 being no ranking at all); try another rate, more pictures, or --gates off"
        )


def _draw(learner: Learner, path: Path, steps: int) -> None:
    """A sheet of held-out pictures with their maps."""
    view, rows = learner.view, []
    maps, images, logits = (values.cpu() for values in learner.shown(range(min(SHOWN, len(learner.held)))))
    for item, heat, image, answer in zip(learner.held.items, maps, images, logits):
        best = answer.softmax(0).topk(min(3, len(answer)))
        named = tuple((view.class_name(int(c)), float(p)) for p, c in zip(best.values, best.indices))
        cell = show.Cell(heat.numpy(), explained=named[0][0], probability=named[0][1])
        rows.append(show.Row(view.preprocess.restore(image), item.name, named, (cell,)))
    picture = show.sheet(rows, [show.Column("aha", signed=False)], title=f"After {steps} steps")
    write_whole(path, lambda file: picture.save(file, "PNG"))
