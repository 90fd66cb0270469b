"""What does AHA cost beside the model's own pass? Milliseconds an image, plain and compiled, in one batch.

    python benchmarks/aha.py --explainer demo-explainer/explainer [--batch 32]
    python benchmarks/aha.py --model timm/vit_base_patch16_224 [--checkpoint FILE --explainer DIR --images DIR]

Inputs lie on the device already; a method is timed from there to its maps on the device, without reading pictures and
without the copy back. The row "explain" is `vitrail.explain` with the same inputs, copies and checks included. Medians
after warm-up, with the device waited for on both sides; where a call would take more than 8 s fewer pictures are timed,
as the table tells. AHA's own pass is traced, and never compiled; those of refinement are. Without --explainer an
untrained one is made, without --checkpoint the weights of a timm model are random: no time here depends on either.
Every precision has a process of its own. A method that fails has the reason in its row, and the rest goes on.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch import Tensor

import vitrail
from vitrail import InputError
from vitrail.data import dataset
from vitrail.method import Batch, Explainer, parse
from vitrail.model import View

PRECISIONS = ("fp32", "tf32", "bf16")

PLAIN = "forward"
"""The row that all others are compared with."""

ONCE = 8.0
"""Seconds that one call may take, about: of a slower method fewer pictures are timed, which the table tells."""

SHORT, LONG, FEWEST, MOST = 0.5, 3.0, 3, 100
"""Seconds of warming up, seconds of timing, and how many calls are timed at least and at most."""


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def once(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


def seconds(call: Callable[[], object], device: torch.device) -> list[float]:
    """Wall times of a call that was made once before; fewer of a slow one."""
    warm = 0.0
    while warm < SHORT:
        warm += once(call, device)
    times: list[float] = []
    while len(times) < FEWEST or (sum(times) < LONG and len(times) < MOST):
        times.append(once(call, device))
    return times


def fitting(call: Callable[[Tensor], object], images: Tensor) -> Tensor:
    """As many of the images as a call can take in its time: two are tried, twice where something compiles."""
    few = images[:2]
    taken = once(lambda: call(few), images.device)
    if taken * len(images) / len(few) > ONCE:
        taken = once(lambda: call(few), images.device)
    return images[: max(len(few), min(len(images), int(ONCE / taken * len(few))))]


def calls(view: View, explainer: str, given: argparse.Namespace) -> dict[str, Callable[[Tensor], object]]:
    """What is timed, by name: functions of images."""

    def forward(images: Tensor) -> object:
        with view.still(), torch.no_grad():
            return view.model(images)  # the model's own code, as its users run it

    def method(spec: str) -> Callable[[Tensor], Tensor]:
        one = parse(spec)

        def maps(images: Tensor) -> Tensor:
            with view.still():
                return one.maps(view, Batch(images))

        return maps

    aha = f"aha(explainer={explainer!r}, refine={{}}, other_model=True)"
    found: dict[str, Callable[[Tensor], object]] = {
        PLAIN: forward,
        "aha, T = 0": method(aha.format(0)),
        "explain, aha, T = 0": lambda images: vitrail.explain(view, images, aha.format(0), batch=len(images)),
        "aha, T = 3": method(aha.format(3)),
    }
    return found | {spec: method(spec) for spec in given.methods}


def compare(view: View, images: Tensor, explainer: str, given: argparse.Namespace) -> None:
    """Print the rows of one precision."""
    for compiled in (False, True) if view.device.type == "cuda" or given.compiled else (False,):
        name = f"{given.precision}, compiled" if compiled else given.precision
        plain: float | None = None
        with view.using(given.precision, compiled):
            for what, call in calls(view, explainer, given).items():
                try:
                    plain = row(what, name, view, call, images, plain)
                except Exception as error:  # one row less must not cost the others
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160].replace("|", "/")
                    print(f"| {what} | {name} | failed: {reason} | | | | | |", flush=True)


def row(
    what: str, name: str, view: View, call: Callable[[Tensor], object], images: Tensor, plain: float | None
) -> float | None:
    """Print one row; returns the seconds an image of the plain pass, as soon as they are known."""
    taken = images if what == PLAIN else fitting(call, images)
    before = view.meter.forwards, view.meter.backwards
    call(taken)
    made = (view.meter.forwards - before[0], view.meter.backwards - before[1])
    times = seconds(lambda: call(taken), view.device)
    each = statistics.median(times) / len(taken)
    plain = each if what == PLAIN else plain
    ratio = "" if plain is None else f"{each / plain:.2f}"
    passes = " + ".join(f"{number / len(taken):.0f}" for number in made)
    print(
        f"| {what} | {name} | {1000 * each:.3f} | {1000 * max(times) / len(taken):.3f} | {len(times)} | {len(taken)} "
        f"| {ratio} | {passes} |",
        flush=True,
    )
    return plain


def opened(given: argparse.Namespace) -> View:
    """The model; one of timm's has random weights where there is no file."""
    if given.checkpoint is not None or given.model.startswith("demo"):
        return vitrail.load(given.model, given.checkpoint, device=given.device)
    torch.manual_seed(0)
    view = vitrail.load(timm.create_model(given.model.removeprefix("timm/")), device=given.device)
    view.name = f"{given.model}, random weights"
    return view


def inputs(view: View, given: argparse.Namespace) -> Tensor:
    """(batch, 3, H, W) on the device: pictures of a folder, again from the start where they are too few, or scenes."""
    if given.images is None:
        pictures = [item.picture() for item in dataset(f"scenes:{given.batch},seed=3").items]
    else:
        pictures = [
            path for path in sorted(given.images.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg", ".png")
        ]
        if not pictures:
            raise InputError(f"there is no picture in {given.images}; give a folder of .jpg or .png files")
    chosen = [pictures[i % len(pictures)] for i in range(given.batch)]
    return view.preprocess.batch(chosen).to(view.device, view.dtype)


def explainer_for(view: View, given: argparse.Namespace, folder: Path) -> str:
    """The explainer's folder, that was given or an untrained one's."""
    if given.explainer is None:
        Explainer.for_view(view).save_pretrained(folder / "explainer")
        return str(folder / "explainer")
    Explainer.from_pretrained(given.explainer).check(view, other_model=True)  # as many classes, at least
    return str(given.explainer)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="demo")
    options.add_argument("--checkpoint", type=Path)
    options.add_argument("--explainer", type=Path)
    options.add_argument("--images", type=Path)
    options.add_argument("--methods", nargs="*", default=["mda", "tis"], help="what else is timed")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--compiled", action="store_true", help="compiled rows on a CPU, too")
    options.add_argument("--precision", choices=PRECISIONS, help="this one alone, in this process")
    options.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)  # rows only, for the other processes
    given = options.parse_args()
    if given.precision is not None or given.bare:
        try:
            view = opened(given)
            images = inputs(view, given)
            with tempfile.TemporaryDirectory() as folder:
                explainer = explainer_for(view, given, Path(folder))
                if not given.bare:
                    head(given)
                compare(view, images, explainer, given)
        except InputError as error:
            sys.exit(f"error: {error}")
        return
    head(given)
    precisions = PRECISIONS if torch.device(given.device).type == "cuda" else ("fp32",)
    command = [sys.executable, *sys.argv, "--bare", "--precision"]
    failed = [one for one in precisions if subprocess.run([*command, one], check=False).returncode]
    if failed:
        sys.exit(f"these did not end well: {', '.join(failed)}")


def head(given: argparse.Namespace) -> None:
    device = torch.device(given.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    weights = given.checkpoint or ("shipped" if given.model.startswith("demo") else "random weights")
    explainer = given.explainer or "an untrained explainer"
    print(f"{given.model} ({weights}), {explainer}, {where}, batch {given.batch}, torch {torch.__version__}\n")
    print(f"| what | precision | ms an image | slowest | calls | images | times {PLAIN} | passes + backwards |")
    print("|---|---|---|---|---|---|---|---|", flush=True)


if __name__ == "__main__":
    main()
