"""What does the runner cost? The same work as a run into a folder, and by calling the library directly.

    python benchmarks/runner.py [--scenes 32] [--masks 256] [--steps 72] [--repeats 5] [--threads 2]
    python benchmarks/runner.py --memory 10000

Both sides load the embedded model, draw the same pictures, explain them by the same methods and judge them by the same
metrics, so many at a time; the run also writes maps and numbers down, and reads them again for its table. They take
turns, and who begins changes each time; where others use the machine too, the time of processors says more than the
clock. With ``--memory``: how large the process is while a run goes over so many
pictures.
"""

import argparse
import gc
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import vitrail
from vitrail import scenes
from vitrail.bench import Plan, run
from vitrail.bench.runner import Bench
from vitrail.bench.store import Store
from vitrail.data import dataset

CHUNK = 16


@dataclass(frozen=True)
class Work:
    """What both sides do."""

    scenes: int
    masks: int
    steps: int

    @property
    def methods(self) -> tuple[str, ...]:
        return "genatt", f"rise(masks={self.masks})"

    @property
    def metrics(self) -> tuple[str, ...]:
        step = scenes.SIZE**2 // self.steps
        return f"insertion(step={step})", f"deletion(step={step})"


def through_the_runner(work: Work) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan("demo", f"scenes:{work.scenes}", work.methods, work.metrics, chunk=CHUNK)
        return [row.value for row in run(plan, folder, device="cpu").rows]


def directly(work: Work) -> list[float]:
    pictures = [item.picture() for item in dataset(f"scenes:{work.scenes}")]
    view = vitrail.load("demo", device="cpu")
    found = vitrail.evaluate(view, pictures, list(work.methods), list(work.metrics), batch=CHUNK, precision="fp32")
    return [row.value for row in found.rows]


def overhead(work: Work, repeats: int) -> None:
    sides = {"run": through_the_runner, "evaluate": directly}
    small = replace(work, scenes=CHUNK)
    values = [side(small) for side in sides.values()]  # the first time loads code
    print(f"largest difference of a number in the table: {_gap(*values):.5f}", flush=True)
    wall: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in sorted(sides, reverse=repeat % 2 == 0):
            gc.collect()
            start, start_processor = time.perf_counter(), time.process_time()
            sides[name](work)
            wall[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - start_processor)
        print(f"{repeat + 1}: {_last(wall)} by the clock, {_last(processor)} of processors", flush=True)
    print(f"{work}, {torch.get_num_threads()} threads")
    for kind, times in {"by the clock": wall, "of processors": processor}.items():
        one, other = (statistics.median(times[name]) for name in sides)
        ratios = [a / b for a, b in zip(times["run"], times["evaluate"])]
        print(
            f"{kind}: run {one:.2f} s, evaluate {other:.2f} s, medians; ratio {one / other:.3f}, of each pair "
            f"{min(ratios):.3f} to {max(ratios):.3f}"
        )


def _last(times: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {taken[-1]:.2f} s" for name, taken in times.items())


def _gap(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def memory(count: int, every: int = 1000) -> None:
    """Print how large the process is while a run goes on, beginning when it has just loaded everything."""
    plan = Plan("demo", f"scenes:{count}", ("genatt",), ("pointing_game", "sparseness"), chunk=32)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        start = _resident()
        print(f"at the start: {start:.0f} MB", flush=True)
        engine = Watched(every)
        begun = time.perf_counter()
        found = run(plan, store, engine=engine)
        seconds = time.perf_counter() - begun
        end = _resident()
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet")) / 2**20
    first, last = engine.seen[:2][-1], engine.seen[-1]
    print(f"after the table: {end:.0f} MB; {len(found.images)} pictures in {seconds:.0f} s, {stored:.1f} MB stored")
    print(f"growth from {every} pictures to the last: {last - first:+.1f} MB; with the table {end - first:+.1f} MB")


class Watched:
    """This process does the work, and says how large it is."""

    device = "cpu"

    def __init__(self, every: int) -> None:
        self.every = every
        self.seen: list[float] = []

    def work(self, bench: Bench, store: Store, todo, _: bool) -> None:
        done = 0
        for unit, parts in todo:
            bench.work(store, unit, parts)
            before, done = done, done + len(unit.items)
            if not before or done // self.every > before // self.every or done == len(bench.every):
                self.seen.append(_resident())
                print(f"{done} pictures: {self.seen[-1]:.0f} MB", flush=True)


def _resident() -> float:
    """Megabytes of this process that are in memory now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not say how large a process is")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--scenes", type=int, default=32)
    options.add_argument("--masks", type=int, default=256)
    options.add_argument("--steps", type=int, default=72)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--memory", type=int, metavar="PICTURES")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if given.memory:
        memory(given.memory)
    else:
        overhead(Work(given.scenes, given.masks, given.steps), given.repeats)


if __name__ == "__main__":
    main()
