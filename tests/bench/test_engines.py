"""Whoever does the work of a run, and whatever happens to them: the same table, bit for bit."""

import errno
import multiprocessing
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from PIL import Image

from helpers.tables import same
from vitrail import InputError, Scores, scenes
from vitrail.bench import Filter, Plan, Store, run
from vitrail.bench.engines import Local, Ray
from vitrail.bench.engines import ray as engine
from vitrail.bench.runner import Bench
from vitrail.bench.stored import errors
from vitrail.bench.unit import Unit
from vitrail.data import dataset
from vitrail.events import Cancel, Cancelled, working

PLAN = Plan(
    "demo",
    "scenes:12",
    ("genatt", "random"),
    ("deletion(step=5184)", "pointing_game", "segmentation"),
    chunk=2,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    return run(PLAN, str(tmp_path_factory.mktemp("runs") / "whole"))


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.glob("parts/*/*") if path.parent.name != "chosen"]


def left_over(folder: Path) -> list[Path]:
    """Files that are neither the manifest nor a part."""
    return [path for path in folder.rglob(".*") if path.is_file()]


# ----------------------------------------------------------------------------------------------------------------- Ray


FUSSY = """
import torch, vitrail
from vitrail import scenes

class Fussy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = scenes.classifier()

    def forward(self, images):
        if images.requires_grad and (images[:, 0, 0, 0] > 0.9).any():
            raise RuntimeError("too bright")
        return self.inner(images)

def make():
    return vitrail.load(Fussy(), size=(scenes.SIZE, scenes.SIZE), mean=scenes.MEAN, std=scenes.STD)
"""
"""A model that gives no gradients for pictures which begin with a bright pixel."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two Ray nodes on this machine, each with room for one worker; the second can be taken away."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else they wait until all other tests are done
        node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        found = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        second = found.add_node(**node)
        ray.init(found.address, log_to_driver=False, logging_level="error")
        yield found, second
        ray.shutdown()
        found.shutdown()


def test_ray_gives_the_table_of_this_process_with_all_that_failed(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(6):
        picture = np.array(scenes.make(i).pil)
        picture[:40, :40] = 255 if i == 1 else 0
        Image.fromarray(picture).save(pictures / f"{i}.png")
    (pictures / "3.png").write_bytes((pictures / "3.png").read_bytes()[:200])
    (tmp_path / "fussy.py").write_text(FUSSY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # what is relative to it means the same to the workers
    metrics = ("sparseness", "deletion(step=10368)")
    plan = Plan("fussy.py:make", "folder:pictures", ("saliency", "random"), metrics, chunk=2)
    expected = run(plan, "local", device="cpu")
    assert same(run(plan, "ray", engine=Ray()), expected)
    reasons = list(errors(Store("ray")))
    assert reasons == list(errors(Store("local")))
    assert [(record["unit"].split("-")[0], record["image"]) for record in reasons] == [
        ("random", "3.png"),
        ("saliency", "1.png"),
        ("saliency", "3.png"),
    ]
    assert reasons[1]["error"] == "saliency failed: too bright"


def test_ray_goes_on_when_a_machine_is_lost(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, second = cluster
    plan = replace(PLAN, metrics=("deletion(step=648)",))
    teams: list[Any] = []

    class Watched(engine._Team):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            teams.append(self)

    def remove() -> None:
        while not teams or sum(bool(chunk) for _, chunk in list(teams[0].busy.values())) < 2:
            time.sleep(0.02)
        found.remove_node(second, allow_graceful=False)

    monkeypatch.setattr(engine, "_Team", Watched)
    remover = threading.Thread(target=remove, daemon=True)
    remover.start()
    assert same(run(plan, str(tmp_path / "ray"), engine=Ray()), run(plan, str(tmp_path / "local"), device="cpu"))
    remover.join(60)
    assert teams[0].losses, "a worker was lost at its work"


def test_ray_says_what_is_wrong_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, words in (
        ({"gpus": -1}, "gpus must be"),
        ({"gpus": 1.5}, "gpus must be"),
        ({"cpus": 0}, "cpus must be"),
        ({"workers": 0}, "workers must be 1 or more"),
    ):
        with pytest.raises(InputError, match=words):
            Ray(**options)
    with pytest.raises(InputError, match="in the memory of one process"):
        run(PLAN, "memory://for-ray", engine=Ray())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'vitrail\[ray\]'"):
        run(PLAN, str(tmp_path / "run"), engine=Ray())


def test_a_ray_worker_looks_whether_it_sees_the_same_run(tmp_path: Path) -> None:
    bench, store = Bench(PLAN, "cpu"), Store(str(tmp_path / "run"))
    chunk = [(unit, ()) for unit in _units(bench, Store(str(tmp_path / "other")))[:2]]
    here = str(Path.cwd())
    assert "does not see the run" in (engine.Worker(PLAN, store, "cpu", 1, here).work(chunk)[0] or "")
    store.begin({**bench.facts(), "weights": "others"})
    complaint, _ = engine.Worker(PLAN, store, "cpu", 1, here).work(chunk)
    assert complaint is not None
    assert "is not set up like the others" in complaint
    assert "weights is 'others' there" in complaint
    assert list(store.units()) == []


class Pretended:
    """What a team needs of Ray, in this process: workers that answer as they are told to.

    Args:
        answer: What a worker says to a chunk: None when it is done, a sentence, or "lost".
    """

    exceptions = SimpleNamespace(RayError=OSError, RayTaskError=ZeroDivisionError)

    def __init__(self, answer: Callable[[list[Any]], str | None]) -> None:
        self.answer, self.hired, self.killed = answer, 0, 0

    def hire(self) -> Any:
        self.hired += 1
        return SimpleNamespace(work=SimpleNamespace(remote=lambda chunk: (object(), tuple(chunk))))

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> tuple[str | None, tuple[float, float]]:
        found = self.answer(list(task[1]))
        if found == "lost":
            raise OSError("the actor died\nand much more")
        return found, (len(task[1]), 0)

    def kill(self, worker: Any) -> None:
        self.killed += 1


TODO = [(Unit(method, i, dataset("scenes:4").items[i : i + 1]), ()) for i in range(4) for method in ("a", "b")]


@pytest.mark.parametrize(("bad", "times", "ends"), [(1, 3, True), (1, 4, False), (None, 6, True), (None, 7, False)])
def test_a_team_goes_on_without_those_it_loses(bad: int | None, times: int, ends: bool) -> None:
    """Lost over the second picture, or before they began; one time too often ends in a sentence."""
    done: list[Any] = []
    losses = iter(range(times))

    def answer(chunk: list[Any]) -> str | None:
        if (chunk[0][0].number if chunk else None) == bad and next(losses, None) is not None:
            return "lost"
        done.extend(chunk)
        return None

    ray = Pretended(answer)
    team = engine._Team(ray, ray.hire, lambda: 2)
    if ends:
        with working("run", len(TODO), "unit") as work:
            team.work(TODO, work)
        assert (work.done, work.made.forwards) == (len(TODO), len(TODO)), "passes of the workers count here"
        assert sorted((unit.number, unit.method) for unit, _ in done) == [(i, m) for i in range(4) for m in "ab"]
    else:
        what = "over scene 1 " if bad else "before they began "
        said = rf"again and again {what}.*\(the actor died\); look into Ray's logs"
        with working("run", len(TODO), "unit") as work, pytest.raises(InputError, match=said):
            team.work(TODO, work)
    assert ray.killed == ray.hired, "nobody stays"


def test_a_team_says_what_its_workers_say() -> None:
    ray = Pretended(lambda _: "the disk is full")
    with working("run", len(TODO), "unit") as work:
        with pytest.raises(InputError, match=r"^the disk is full$"):
            engine._Team(ray, ray.hire, lambda: 2).work(TODO, work)
        with pytest.raises(InputError, match="no machine of the Ray cluster has room"):
            engine._Team(ray, ray.hire, lambda: 0).work(TODO, work)


def test_a_team_is_cancelled() -> None:
    cancel, ray = Cancel(), Pretended(lambda _: None)
    with working("run", len(TODO), "unit", cancel=cancel) as work:
        cancel.request()
        with pytest.raises(Cancelled):
            engine._Team(ray, ray.hire, lambda: 2).work(TODO, work)
    assert ray.killed == ray.hired, "nobody stays"


def _units(bench: Bench, store: Store) -> list[Any]:
    store.begin(bench.facts())
    bench.choose(store)
    return bench.units()


# --------------------------------------------------------------------------------------------------------------- Local


def test_two_devices_give_the_table_of_one(tmp_path: Path, whole: Scores) -> None:
    assert same(run(PLAN, str(tmp_path / "run"), device=("cpu", "cpu:0")), whole)
    filtered = replace(PLAN, filter=Filter(correct=True), limit=4)
    assert same(run(filtered, str(tmp_path / "a"), engine=Local(("cpu", "cpu:0"))), run(filtered, str(tmp_path / "b")))
    with pytest.raises(InputError, match="devices that differ"):
        Local(("cpu", "cpu"))


def test_the_first_error_stops_all_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFileSystem, "pipe_file", _fills_up(LocalFileSystem.pipe_file, 4))
    with pytest.raises(InputError, match="No space left on device"):
        run(PLAN, str(tmp_path / "run"), device=("cpu", "cpu:0"))
    assert len(parts(tmp_path / "run")) == 2


# --------------------------------------------------------------------------------------------------------- two runners


def _run(place: str, gate: Any) -> None:
    torch.set_num_threads(1)
    gate.wait()
    run(PLAN, place)


def test_two_runners_in_one_folder(tmp_path: Path, whole: Scores) -> None:
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(2)
    runners = [context.Process(target=_run, args=(str(tmp_path / "run"), gate)) for _ in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert [runner.exitcode for runner in runners] == [0, 0]
    store = Store(str(tmp_path / "run"))
    assert all(store.read(name).num_rows for name in store.units()), "every part is whole"
    assert len(parts(tmp_path / "run")) == 12
    assert not left_over(tmp_path / "run")
    assert same(run(PLAN, store), whole)


def test_what_another_runner_has_done_meanwhile_is_not_done_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "run"))
    run(PLAN, store)
    bench = Bench(PLAN, "cpu")
    units = _units(bench, store)
    before = bench.view.meter.forwards
    assert not any(bench.work(store, unit) for unit in units)
    more = replace(PLAN, metrics=(*PLAN.metrics, "sparseness"))
    bench.plan = more
    assert all(bench.work(store, unit) for unit in units)
    assert not any(bench.work(store, unit) for unit in units)
    assert bench.view.meter.forwards - before == 12, "a look at each picture, nothing more"


# ------------------------------------------------------------------------------------------- a disk and a folder lost


def _fills_up(write: Callable[..., None], after: int) -> Callable[..., None]:
    """A way to write that finds the disk full after so many files, in the middle of one."""
    written: list[str] = []

    def limited(self: Any, path: str, value: bytes, **options: Any) -> None:
        if len(written) >= after:
            write(self, path, value[: len(value) // 2], **options)
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        write(self, path, value, **options)

    return limited


def test_a_full_disk_stops_a_run_which_then_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Scores
) -> None:
    place = str(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "pipe_file", _fills_up(LocalFileSystem.pipe_file, 7))
        with pytest.raises(InputError, match=r"No space left on device.*it goes on from here"):
            run(PLAN, place)
    kept = {path: path.read_bytes() for path in parts(tmp_path / "run")}
    assert len(kept) == 5, "besides the manifest and the pictures chosen"
    assert not left_over(tmp_path / "run")
    assert same(run(PLAN, place), whole)
    assert all(path.read_bytes() == data for path, data in kept.items()), "nothing is done twice"


@pytest.mark.parametrize("becomes", ["nothing", "a file"])
def test_a_folder_that_is_lost_stops_a_run_which_then_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Scores, becomes: str
) -> None:
    folder, work = tmp_path / "run", Bench.work

    def lose(self: Bench, store: Store, *given: Any) -> bool:
        if len(parts(folder)) == 5:
            shutil.rmtree(folder)
            if becomes == "a file":
                folder.write_text("not a folder", encoding="utf-8")
        return work(self, store, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "work", lose)
        with pytest.raises(InputError, match=r"was deleted or moved|cannot be read"):
            run(PLAN, str(folder))
    if becomes == "a file":
        with pytest.raises(InputError, match=r"manifest\.json cannot be read .*choose another folder"):
            run(PLAN, str(folder))
        folder.unlink()
    assert not folder.exists(), "nothing is written into a run that is gone"
    assert same(run(PLAN, str(folder)), whole)
    assert Store(str(folder)).manifest() is not None
