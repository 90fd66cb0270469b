"""How good an explainer became: a page with a table beside other methods, and the curve of its training."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail import show
from vitrail.errors import InputError
from vitrail.events import observers_of, working
from vitrail.files import write_text, write_whole
from vitrail.method import AHA, Batch, Method, explain_batch, parse
from vitrail.metric import interval
from vitrail.model import Target
from vitrail.train.loop import Learner

REPORT, CURVE = "report.md", "curve.png"
"""What is written here into a training's folder."""

OTHERS = ("gradcam", "layercam", "ig", "rollout", "genatt", "bt_h", "skipplus(decompx)")
"""What the explainer is compared with, where the model can serve it; chance always is."""

REFINED = 3
"""Steps of refinement, as in the paper."""

AT_ONCE = 8
"""Pictures that are explained together."""

POINTS = 100
"""Points of the training's own curve, at most: each is the mean over some steps."""

History = list[dict[str, float]]
"""A row for each step: what was lost; at looks also what held-out pictures say."""


class Rival(NamedTuple):
    """One method on the held-out pictures: (held, 2) deletion and insertion, and seconds an image for its maps."""

    name: str
    found: Tensor
    seconds: float

    @property
    def mean(self) -> float:
        """Insertion minus deletion."""
        return float((self.found[:, 1] - self.found[:, 0]).mean())

    def line(self) -> str:
        """A row of the table."""
        deletion, insertion = self.found.mean(0).tolist()
        low, high = interval((self.found[:, 1] - self.found[:, 0]).numpy())
        return (
            f"| {self.name} | {self.mean:.4f} | {low:.4f} to {high:.4f} | {insertion:.4f} | {deletion:.4f} "
            f"| {self.seconds:.4f} |"
        )


def write_report(
    learner: Learner,
    out: Path,
    explainer: Path,
    history: History,
    untrained: float,
    seconds: float,
    *,
    progress: bool = False,
) -> None:
    """Write the page and the curve.

    Args:
        learner: Trained.
        out: The training's folder.
        explainer: The explainer's own folder, as users will load it.
        history: What was lost.
        untrained: Insertion minus deletion of the maps before training.
        seconds: How long the training took, all its parts together.
        progress: Show a progress line.
    """
    training, fabric = learner.training, learner.fabric
    amount = f"{training.steps} steps of {training.batch} pictures, {len(learner.pictures)} in all"
    rivals, left_out = _compared(learner, explainer, progress)
    lines = [
        f"# An explainer for {learner.view.name}",
        "",
        f"{amount}, {len(learner.held)} held out; {seconds:.0f} s on {fabric.world_size} x {fabric.device.type}.",
        "",
        "Hard metrics on held-out pictures: the predicted class, a grid of 14 x 14, means over three references.",
        "Intervals are of the mean difference. Maps are made in full precision; seconds are of the maps alone.",
        "",
        "| map | difference | 95 % interval | insertion | deletion | seconds an image |",
        "|---|---|---|---|---|---|",
        *(rival.line() for rival in sorted(rivals, key=lambda rival: -rival.mean)),
        "",
        *left_out,
        f"![the training]({CURVE})",
        "",
        f"On the way. The untrained explainer's maps have a difference of {untrained:.4f}. Rank entropy is 1 where a",
        "map ranks nothing; that of the untrained explainer at the same temperature stands beside it.",
        "",
        "| steps | difference | rank entropy | untrained |",
        "|---|---|---|---|",
        *(
            f"| {int(row['step']) + 1} | {row['held']:.4f} | {row['entropy']:.4f} | {row['untrained']:.4f} |"
            for row in history
            if "held" in row
        ),
    ]
    broken = {**learner.pictures.broken, **learner.held.broken}
    if broken:
        name, why = next(iter(broken.items()))
        lines += ["", f"{len(broken)} pictures could not be read and were left out; the first, {name}: {why}"]
    picture = show.mean_curves(_lines(history, untrained), title=f"{learner.view.name}", across="steps", up="")
    write_whole(out / CURVE, lambda file: picture.save(file, "PNG"))
    write_text(out / REPORT, "\n".join(lines) + "\n")


def _compared(learner: Learner, explainer: Path, progress: bool) -> tuple[list[Rival], list[str]]:
    """The explainer and the others on the held-out pictures, and a line for each that failed."""
    # As learned: regions are means of points, and those of powers have another order now and then.
    plain = AHA(explainer=str(explainer), contrast=1)
    methods: dict[str, Method] = {"aha": plain, "random": parse("random")}
    if learner.training.report == "full":
        methods[f"aha, {REFINED} steps of refinement"] = replace(plain, refine=REFINED)
        methods |= {spec: parse(spec) for spec in OTHERS if parse(spec).requirements() <= learner.view.offers}
    rivals, left_out = [], []
    with working("comparing", len(methods), "method", observers=observers_of(progress, ())) as work:
        for name, method in methods.items():
            try:
                rivals.append(_rival(learner, name, method))
            except InputError as error:  # the explainer is trained and saved: another method's trouble is but a line
                left_out += [f"{name} is left out: {error}", ""]
            work.finish_some()
    return rivals, left_out


def _rival(learner: Learner, name: str, method: Method) -> Rival:
    """Explain the held-out pictures by a method, and judge it."""
    method.check(learner.view)
    found, seconds = [], 0.0
    if learner.fabric.device.type == "cuda":
        _maps(learner, method, *_pictures(learner, [0]))  # the first call is slow there
    for numbers in torch.arange(len(learner.held)).split(AT_ONCE):
        images, classes = _pictures(learner, numbers.tolist())
        maps, spent = _maps(learner, method, images, classes)
        seconds += spent
        found.append(learner.judged(maps, images, classes))
    return Rival(name, torch.cat(found), seconds / len(learner.held))


def _pictures(learner: Learner, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Some held-out pictures and the classes that the model sees in them."""
    _, images, logits = learner.shown(numbers)
    return images, logits.argmax(1)


def _maps(learner: Learner, method: Method, images: Tensor, classes: Tensor) -> tuple[Tensor, float]:
    """(B, H, W) maps, and the seconds that they took."""
    view = learner.view
    _wait(images)
    start = time.perf_counter()
    with view.using("fp32"), view.still():
        (found,) = explain_batch(view, method, [Batch(images, Target(classes))])
        maps = found.maps.to(images.device)  # chance is drawn on the CPU
    _wait(images)
    seconds = time.perf_counter() - start
    return method.enlarge(maps, (images.shape[2], images.shape[3])), seconds


def _wait(images: Tensor) -> None:
    """Let a GPU come to an end, so that clocks tell the truth."""
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)


def _lines(history: History, untrained: float) -> list[show.Line]:
    """What is drawn: what was learned, what held-out pictures say of it, and where it began."""
    parts = np.array_split(np.arange(len(history)), min(POINTS, len(history)))
    soft = [float(np.mean([history[i]["insertion"] - history[i]["deletion"] for i in part])) for part in parts]
    looks = [row for row in history if "held" in row]
    steps = np.array([row["step"] + 1 for row in looks])
    ends = np.array([1, len(history)])
    return [
        show.Line("soft ins - del, learned from", np.array([part.mean() + 1 for part in parts]), np.array([soft])),
        show.Line("hard ins - del, held-out", steps, np.array([[row["held"] for row in looks]])),
        show.Line("the same, untrained", ends, np.array([[untrained, untrained]])),
        show.Line("rank entropy, held-out", steps, np.array([[row["entropy"] for row in looks]])),
        show.Line("rank entropy, untrained", steps, np.array([[row["untrained"] for row in looks]])),
    ]
