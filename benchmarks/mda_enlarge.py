"""Should MDA's cells stay whole, or be enlarged smoothly? Insertion, deletion and MAS of both, from one search each.

    python benchmarks/mda_enlarge.py --checkpoint deit_tiny.safetensors --images DIR [--labels labels.csv] [--count 100]
        [--model timm/deit_tiny_patch16_224] [--method mda] [--precision fp32] [--rows rows.csv]

The pictures are those of MDA's protocol: rightly classified (where labels are given), with 60 % or more, and some blur
brings the probability below 1 %. The metrics are those of its tables, always in float32. With ``--rows`` every
picture's scores are kept as they come, and a run that was broken off goes on from there.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import vitrail
from vitrail.method import MDA
from vitrail.metric import PRESETS, parse
from vitrail.metric.statistics import interval, paired_bootstrap
from vitrail.model import Target, View
from vitrail.perturb import AdaptiveBlur

METRICS = [parse(spec).spec for spec in PRESETS["mda"].metrics[:4]]
NAMES = ("Ins", "Del", "MAS Ins", "MAS Del")
FORMS = ("whole", "smooth")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--images", type=Path, required=True)
    options.add_argument("--labels", type=Path, help="a table with the columns file and class")
    options.add_argument("--model", default="timm/deit_tiny_patch16_224")
    options.add_argument("--method", default="mda")
    options.add_argument("--precision", default="fp32", help="of the search; the metrics are in float32")
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--rows", type=Path, help="where to keep each picture's scores")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = options.parse_args()
    method = vitrail.method.parse(given.method)
    assert isinstance(method, MDA)
    view = vitrail.load(given.model, given.checkpoint, device=given.device)
    words = f"{given.method} in {given.precision} on {view.name}, {given.device}, torch {torch.__version__}"
    print(words, flush=True)
    found = kept(given.rows)
    start, fresh = time.perf_counter(), 0
    for path, image, classes in pictures(view, given.images, classes_of(given.labels)):
        if len(found) >= given.count:
            break
        if path.name not in found:
            found[path.name] = scores_of(view, image, classes, method, given.precision)
            fresh += 1
            keep(given.rows, path.name, found[path.name])
            print(f"{len(found)} pictures, {(time.perf_counter() - start) / fresh:.1f} s each", flush=True)
    report(np.array(list(found.values())[: given.count]))


def scores_of(view: View, image: Tensor, classes: Tensor, method: MDA, precision: str) -> list[float]:
    """One picture's four scores with whole cells, and the same four smooth."""
    found = vitrail.explain(view, image, method, classes, precision=precision, progress=False)
    shown = {form: replace(found, method=replace(method, enlarged=form).spec) for form in FORMS}
    scores = vitrail.evaluate(view, image, shown, METRICS)
    return [float(scores.row(metric, form).each[0]) for form in FORMS for metric in METRICS]


def classes_of(table: Path | None) -> dict[str, int]:
    if table is None:
        return {}
    with table.open(newline="", encoding="utf-8") as file:
        return {row["file"]: int(row["class"]) for row in csv.DictReader(file)}


def pictures(view: View, folder: Path, labels: dict[str, int]) -> Iterator[tuple[Path, Tensor, Tensor]]:
    """The pictures that MDA's protocol takes, one by one, with their classes."""
    for path in sorted(folder.iterdir()):
        image = view.preprocess.batch([path]).to(view.device)
        with view.still(), torch.no_grad():
            sure, predicted = view.logits(image).softmax(1).max(1)
        if sure < 0.6 or labels.get(path.name, int(predicted)) != int(predicted):
            continue
        _, widths = AdaptiveBlur().search(view, image, Target(predicted))
        if widths[0] > 0:
            yield path, image, predicted


def kept(rows: Path | None) -> dict[str, list[float]]:
    if rows is None or not rows.exists():
        return {}
    with rows.open(newline="", encoding="utf-8") as file:
        return {name: [float(value) for value in values] for name, *values in csv.reader(file)}


def keep(rows: Path | None, name: str, scores: list[float]) -> None:
    if rows is not None:
        with rows.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([name, *scores])


def report(scores: np.ndarray) -> None:
    """Means with their 95 % intervals, and paired differences; (pictures, 8) scores."""
    whole, smooth = ({name: part[:, i] for i, name in enumerate(NAMES)} for part in (scores[:, :4], scores[:, 4:]))
    for form in (whole, smooth):
        form["Ins - Del"] = form["Ins"] - form["Del"]
        form["MAS Ins - Del"] = form["MAS Ins"] - form["MAS Del"]
    print(f"\n{len(scores)} pictures\n| | {' | '.join(whole)} |\n|---|{'---|' * len(whole)}")
    for name, form in zip(FORMS, (whole, smooth)):
        ends = [interval(each) for each in form.values()]
        cells = [f"{each.mean():.3f} ({low:.3f} to {high:.3f})" for each, (low, high) in zip(form.values(), ends)]
        print(f"| {name} | {' | '.join(cells)} |")
    gaps = [paired_bootstrap(whole[name], smooth[name]) for name in whole]
    print(f"| whole - smooth | {' | '.join(f'{g.mean:+.3f} ({g.low:+.3f} to {g.high:+.3f})' for g in gaps)} |")


if __name__ == "__main__":
    main()
