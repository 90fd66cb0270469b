"""Ask every family of models for every kind of map, and write the table: ``python tests/sweep/run.py --write FILE``."""

import argparse
import fnmatch
import gc
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from sweep.catalogue import families
from sweep.judge import GROUPS, Found, judge


def main() -> int:
    """Run the sweep; 1 where anything is wrong or crashes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=["*"], help="families such as timm/vit* or hf/*")
    parser.add_argument("--keep", type=Path, help="a folder of results: families found there are not asked again")
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument("--quick", action="store_true", help="one method of each kind instead of all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, tuple[str, Found]] = {}
    for family in families():
        if not any(fnmatch.fnmatchcase(family.id, pattern) for pattern in args.only):
            continue
        kept = args.keep and args.keep / (family.id.replace("/", "+").replace(":", "+") + ".json")
        if kept and kept.exists():
            results[family.id] = (family.model, Found(**json.loads(kept.read_text())))
            continue
        start = time.perf_counter()
        found = judge(family.view, args.quick)
        results[family.id] = (family.model, found)
        cells = "  ".join(f"{group}: {summary(found, group)}" for group in GROUPS)
        print(f"{family.id} ({family.model}, {time.perf_counter() - start:.0f} s)  {cells}", flush=True)
        for what, why in found.bad.items():
            print(f"    {what}: {why}", flush=True)
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(asdict(found), indent=1))
        gc.collect()
    if args.write:
        args.write.write_text(page(results))
    return int(any(found.bad for _, found in results.values()))


def summary(found: Found, group: str) -> str:
    """A cell of the table."""
    verdicts = [verdict for verdict, _ in found.of(group)]
    for bad in ("crash", "wrong"):
        if bad in verdicts:
            return f"{verdicts.count(bad)} {bad}"
    works = verdicts.count("works")
    return "yes" if works == len(verdicts) else f"{works} of {len(verdicts)}" if works else "no"


def page(results: dict[str, tuple[str, Found]]) -> str:
    """The table in Markdown."""
    bad = sum(bool(found.bad) for _, found in results.values())
    methods = max(len(found.verdicts) for _, found in results.values())
    lines = [
        "# What works on which family of models",
        "",
        f"{len(results)} models with random weights: the smallest of each timm family, a small one of every image",
        f"classifier of Hugging Face; {methods} methods each, at cheap settings. *Wrong* is what a check finds:",
        "the view's parts do not make up the model, a cell answers to patches elsewhere, attention is not between",
        "the tokens, patches taken away still count, hidden cells are not hidden pixels.",
        f"**Wrong or crashed: {bad} models.**",
        "",
        "A number says how many of a group's methods give a map; the others refuse in a sentence.",
        "Made by `python tests/sweep/run.py --quick --write docs/models_sweep.md` (without `--quick`: every method).",
        "",
        "| family | model | input | grid | blocks | " + " | ".join(GROUPS) + " |",
        "|---|---|---|---|---|" + "---|" * len(GROUPS),
    ]
    for family, (model, found) in results.items():
        size = "" if found.size is None else "{} x {}".format(*found.size)
        cells = " | ".join(summary(found, group) for group in GROUPS)
        lines.append(f"| {family} | {model} | {size} | {found.grid} | {found.depth} | {cells} |")
    refused = {family: found.view for family, (_, found) in results.items() if found.size is None}
    lines += ["", "## Not loaded", ""] + [f"* {family}: {why}" for family, why in refused.items()] if refused else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
