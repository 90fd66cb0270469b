"""A training from its first step to its report, in a folder that it goes on from."""

import csv
import io
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail import show
from vitrail.data import Item
from vitrail.errors import InputError
from vitrail.events import Cancel, Observer, Work, observers_of, working
from vitrail.files import check_writable, write_text, write_whole
from vitrail.method import Explainer
from vitrail.model import View, usable
from vitrail.train.loop import LOSSES, Learner, Looked
from vitrail.train.plan import FLAGS, Training
from vitrail.train.report import History, write_report

CHECKPOINT, LOG, EXPLAINER = "checkpoint.pt", "log.csv", "explainer"
"""What a training's folder holds: where it stands, what was lost, and the explainer."""

GATE = 0.25
"""The share of the steps after which the maps must be better than at first, and rank more clearly."""

CLEARER = 0.01
"""By how much the entropy of the ranks must be below that of the untrained explainer at the same temperature. A
training of the demo model gains 0.015 in 4 steps and 0.06 in 31; 0.09 would be an even ranking."""

FREE = ("steps", "gates", "report", "sheet")
"""Settings that a training may go on with others of."""

SHOWN = 6
"""Held-out pictures on a sheet."""


def train(
    view: View,
    items: Sequence[Item],
    out: Path,
    training: Training,
    *,
    fabric: Any = None,
    progress: bool = False,
    observers: Iterable[Observer] = (),
    cancel: Cancel | None = None,
) -> Explainer:
    """Train an explainer for a model, or go on with it; it is saved in ``out/explainer`` at every look.

    Args:
        view: The target.
        items: The pictures to learn from.
        out: The training's folder. A checkpoint in it is gone on from, with more steps if there shall be more; one of
            another training is refused.
        training: The settings.
        fabric: Lightning's, launched; by default one of a single process on the view's device.
        progress: Show a progress line.
        observers: Functions that are told of every event of the work, see `vitrail.events`.
        cancel: A token by which another thread can stop the work; it goes on from the last look.
    """
    check_writable(out)
    fabric = fabric or launched(view.device)
    leads = fabric.global_rank == 0
    told = observers_of(progress, observers) if leads else ()
    with working(f"training for {view.name}", training.steps, "step", observers=told, cancel=cancel) as work:
        return _train(view, items, out, training, fabric, work, progress and leads)


def _train(
    view: View, items: Sequence[Item], out: Path, training: Training, fabric: Any, work: Work, progress: bool
) -> Explainer:
    learner = Learner(view, items, training, fabric)
    leads = fabric.global_rank == 0
    untrained, scores = learner.look().difference, learner.scores()
    facts = _facts(view, items, training)
    history, first, spent = _resumed(learner, out / CHECKPOINT, facts)
    learner.read(first, progress=progress)
    work.finish_some(first)
    start = time.perf_counter() - spent
    lost: list[Tensor] = []  # since the last look; a GPU need not be waited for at every step
    for number in range(first, training.steps):
        lost.append(learner.step(number))
        last = number + 1 == training.steps
        if last or (number + 1) % training.look == 0:
            numbers = range(number + 1 - len(lost), number + 1)
            history += [{"step": i, **dict(zip(LOSSES, row))} for i, row in zip(numbers, torch.stack(lost).tolist())]
            lost.clear()
            row = history[-1]
            if not math.isfinite(row["total"]):
                raise InputError(
                    f"after {number + 1} steps the loss is not a number; give a lower --rate, or another --precision"
                )
            looked = learner.look()
            row["held"] = looked.difference
            row["entropy"] = learner.entropy(number, learner.scores())
            row["untrained"] = learner.entropy(number, scores)
            work.enter(
                f"del {row['deletion']:.3f} ins {row['insertion']:.3f} held-out {row['held']:.3f} "
                f"(untrained {untrained:.3f}) rank entropy {row['entropy']:.3f} (untrained {row['untrained']:.3f})"
            )
            if leads:
                _keep(learner, out, facts, history, time.perf_counter() - start)
                _save(learner, out, number + 1, looked)
            _check(training, history, untrained, number)
        if leads and (last or (number + 1) % training.sheet == 0):
            _draw(learner, out / "sheets" / f"{number + 1:06d}.png", number + 1)
        work.finish_some()
    if leads:
        seconds = time.perf_counter() - start
        if first == training.steps:  # it was whole already: only the report is new
            _save(learner, out, first, learner.look())
        write_report(learner, out, out / EXPLAINER, history, untrained, seconds, progress=progress)
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
    place = usable(device or ("cuda" if torch.cuda.is_available() else "cpu"))
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


def _resumed(learner: Learner, path: Path, facts: dict[str, Any]) -> tuple[History, int, float]:
    """What was done before, the next step, and the seconds spent; nothing and zeros where there is no checkpoint."""
    if not path.exists():
        return [], 0, 0.0
    try:
        kept = torch.load(path, map_location=learner.fabric.device, weights_only=True)
        known = json.loads(kept["facts"])
    except Exception as error:  # a damaged file may raise nearly anything
        raise InputError(f"{path} cannot be read ({error}); delete it to begin anew") from error
    for key, value in facts.items():
        before = known.get(key)
        if isinstance(value, dict):
            before = {name: (before or {}).get(name) for name in value}
            gaps = "; ".join(
                f"{FLAGS[k]} {_told(before[k])} there, {_told(value[k])} now" for k in value if before[k] != value[k]
            )
        else:
            gaps = FLAGS[key]
        if before != value:
            raise InputError(
                f"{path} is of another training ({gaps}); choose another folder with --out, or ask for the same"
            )
    history: History = json.loads(kept["history"])
    done = int(history[-1]["step"]) + 1
    if done > learner.training.steps:
        raise InputError(f"{path} has {done} steps already; give --steps {done} or more, or another folder with --out")
    learner.load(kept["state"])
    return history, done, float(kept.get("seconds", 0.0))


def _told(value: Any) -> str:
    """A setting in words: of the objective, the curves' steps."""
    return repr(value["steps"] if isinstance(value, dict) else value)


def _save(learner: Learner, out: Path, steps: int, looked: Looked) -> None:
    """Write the explainer as it is after so many steps, to be used whatever becomes of the training."""
    training = learner.training
    learner.explainer.noted(
        steps=steps,
        temperature=training.temperatures[1] if steps == training.steps else training.temperature(steps - 1),
        contrast=looked.contrast,
        pictures=learner.marks(steps),
    )
    learner.explainer.save_pretrained(out / EXPLAINER)


def _keep(learner: Learner, out: Path, facts: dict[str, Any], history: History, seconds: float) -> None:
    kept = {
        "facts": json.dumps(facts),
        "history": json.dumps(history),
        "seconds": seconds,
        "state": learner.state(),
    }
    write_whole(out / CHECKPOINT, lambda file: torch.save(kept, file))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *LOSSES, "held", "entropy", "untrained"])
    writer.writeheader()
    writer.writerows(history)
    write_text(out / LOG, text.getvalue())


def _check(training: Training, history: History, untrained: float, number: int) -> None:
    """Stop what does not learn, before it costs more."""
    if training.gates == "off" or number + 1 < GATE * training.steps:
        return
    best = max(row["held"] for row in history if "held" in row)
    if best <= untrained:
        raise InputError(
            f"after {number + 1} of {training.steps} steps the maps are no better than the untrained explainer's on "
            f"held-out pictures ({best:.3f} and {untrained:.3f}, insertion minus deletion); try a higher --rate, more "
            "pictures, or --gates off"
        )
    judged = [row for row in history if "entropy" in row and row["step"] + 1 >= GATE * training.steps]
    if not any(row["entropy"] < row["untrained"] - CLEARER for row in judged):
        row = judged[-1]
        raise InputError(
            f"after {number + 1} of {training.steps} steps the maps rank regions no more clearly than an untrained "
            f"explainer's (rank entropy {row['entropy']:.3f} and {row['untrained']:.3f} on held-out pictures at the "
            "same temperature, 1 being no ranking at all); try another --rate, more pictures, or --gates off"
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
