"""The work of a run on a Ray cluster: many machines, that may come and go while it is done."""

import contextlib
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from vitrail.bench.engines.share import Entry, chunks
from vitrail.bench.runner import Bench, Plan
from vitrail.bench.store import Store
from vitrail.errors import InputError, option
from vitrail.events import Passes, Work, working

LOSSES = 3
"""How often a chunk is begun again after its worker was lost; then the chunk is to blame, not the machines."""

LOOK = 5.0
"""Seconds after which the cluster is looked at again, also when nothing was finished: machines may have joined."""

ROOM = 128 * 2**20
"""Bytes of shared memory for a cluster of our own. Nothing large travels: pictures and parts are read and written
where the work is done."""


class Ray:
    """Workers on a Ray cluster, each with a model of its own. They do the units that `Local` does, in the same way.

    A chunk of images is one task, with all methods. Where a worker is lost, with its machine or without, another takes
    its chunk over, and leaves out what is in the store already; workers are hired wherever there is room, also on
    machines that join later.

    Every machine needs this version of vitrail, and the same paths to images, weights and the run's folder: a shared
    filesystem, or a URL such as ``s3://...``. A worker that finds something else there says so before it does anything.

    Args:
        address: Of the cluster, ``"auto"`` for the one of this machine. By default what RAY_ADDRESS says, else one of
            our own on this machine, for this run alone. Where `ray.init` was called before, that cluster is used.
        gpus: Of each worker, also a fraction; by default 1 where the cluster has any, else 0.
        cpus: Of each worker, which calculates in so many threads.
        workers: How many; by default what fits into the cluster, more when it grows.
    """

    def __init__(
        self, address: str | None = None, gpus: float | None = None, cpus: float = 1, workers: int | None = None
    ) -> None:
        if gpus is not None and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
            raise InputError(f"{option('gpus')} must be a fraction or a whole number from 0, but {gpus:g} was given")
        if cpus <= 0 or (cpus > 1 and cpus != int(cpus)):
            raise InputError(f"{option('cpus')} must be a fraction or a whole number above 0, but {cpus:g} was given")
        if workers is not None and workers < 1:
            raise InputError(f"{option('workers')} must be 1 or more, but {workers} was given; leave it out to use all")
        self.device: str | None = "cpu"  # the leading process only hands out work
        self._address, self._gpus, self._cpus, self._workers = address, gpus, cpus, workers

    def work(self, bench: Bench, store: Store, todo: Sequence[Entry], work: Work) -> None:
        """Do the work; the first error of any worker stops all."""
        ray, store = _ray(), _shared(store)
        ours = self._join(ray)
        try:
            gpus = self._gpus if self._gpus is not None else float(ray.cluster_resources().get("GPU", 0) > 0)
            kind = ray.remote(Worker).options(num_cpus=self._cpus, num_gpus=gpus, scheduling_strategy="SPREAD")
            given = bench.plan, store, "cuda" if gpus else "cpu", self._cpus, str(Path.cwd())
            team = _Team(ray, lambda: kind.remote(*given), lambda: self._workers or self._fitting(ray, gpus))
            team.work(todo, work)
        finally:
            if ours:
                ray.shutdown()

    def _join(self, ray: Any) -> bool:
        """Be part of a cluster; whether this was done here, and is to be undone in the end."""
        if ray.is_initialized():
            return False
        address = self._address or os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options |= {"include_dashboard": False, "object_store_memory": ROOM}
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(
                f"the Ray cluster {address} cannot be reached ({str(error).splitlines()[0]}); start one with "
                f"`ray start --head`, or leave {option('address')} out to use this machine alone"
            ) from error
        return True

    def _fitting(self, ray: Any, gpus: float) -> int:
        """How many workers fit into the cluster, as it is now."""
        found = 0
        for node in ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            room = has.get("CPU", 0) / self._cpus
            found += int(min(room, has.get("GPU", 0) / gpus) if gpus else room)
        return found


class _Team:
    """The workers of a run, and what each is at.

    Ray could begin lost workers and their tasks again by itself. But it counts every try to reach a machine that is
    gone, and one begun again waits, with its task, for room that may never come. So what is lost is seen to here.

    Args:
        ray: The module.
        hire: Asks Ray for a worker.
        room: How many workers the cluster has room for.
    """

    def __init__(self, ray: Any, hire: Callable[[], Any], room: Callable[[], int]) -> None:
        self.ray, self.hire, self.room = ray, hire, room
        self.busy: dict[Any, tuple[Any, Sequence[Entry]]] = {}
        self.losses: Counter[int] = Counter()

    def work(self, todo: Sequence[Entry], work: Work) -> None:
        """Hand out chunks, one at a time to each worker, until all are done."""
        waiting: deque[Sequence[Entry]] = deque(chunks(todo))
        try:
            while waiting or self._at_work():
                self._grow(len(waiting))
                work.check()
                for task in self.ray.wait(list(self.busy), timeout=LOOK)[0]:
                    worker, chunk = self.busy[task]
                    made = self._outcome(task, chunk)
                    del self.busy[task]
                    if made is not None:
                        work.begin_passes(*made)
                        work.finish_some(len(chunk))
                    elif chunk:
                        waiting.appendleft(chunk)
                    if made is not None and waiting:
                        self._give(worker, waiting.popleft())
                    else:
                        self.ray.kill(worker)  # a worker without work leaves its room to others
        finally:
            for worker, _ in self.busy.values():
                self.ray.kill(worker)

    def _at_work(self) -> int:
        """How many chunks are being worked on."""
        return sum(bool(chunk) for _, chunk in self.busy.values())

    def _give(self, worker: Any, chunk: Sequence[Entry]) -> None:
        self.busy[worker.work.remote(chunk)] = worker, chunk

    def _grow(self, waiting: int) -> None:
        """Hire as many workers as there is work and room for; they get a chunk once they have started."""
        room = self.room()
        if not room and not self._at_work():
            raise InputError(
                "no machine of the Ray cluster has room for a worker; ask for fewer cpus and gpus, or add machines"
            )
        for _ in range(min(room, waiting + self._at_work()) - len(self.busy)):
            self._give(self.hire(), [])

    def _outcome(self, task: Any, chunk: Sequence[Entry]) -> Passes | None:
        """The passes of a task that was done; None where its worker was lost. What is wrong comes up as a sentence."""
        errors = self.ray.exceptions
        try:
            complaint, made = self.ray.get(task)
        except errors.RayTaskError:
            raise
        except errors.RayError as error:
            number = chunk[0][0].number if chunk else -1
            self.losses[number] += 1
            if self.losses[number] > LOSSES * (1 if chunk else max(1, self.room())):
                what = f"over {chunk[0][0].items[0].name} and the next pictures" if chunk else "before they began"
                raise InputError(
                    f"workers were lost again and again {what} ({str(error).splitlines()[0]}); look into Ray's logs, "
                    "then start the run again: it goes on from here"
                ) from error
            return None
        if complaint is not None:
            raise InputError(complaint)
        return Passes(*made)


class Worker:
    """What runs on the cluster: one model, and the run's store.

    Nothing can fail while it is made, so that whatever does is told in a sentence instead of Ray's words.

    Args:
        plan: What is measured.
        store: The run.
        device: Where the model lives.
        cpus: Threads to calculate with.
        folder: Where the leading process is: what relative paths are relative to.
    """

    def __init__(self, plan: Plan, store: Store, device: str, cpus: float, folder: str) -> None:
        torch.set_num_threads(max(1, int(cpus)))
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._plan, self._store, self._device = plan, store, device
        self._bench: Bench | None = None

    def work(self, chunk: Sequence[Entry]) -> tuple[str | None, tuple[float, float]]:
        """Do some units; the sentence that says what is wrong, if something is, and the passes that were made."""
        with working("units", len(chunk), "unit") as work:
            try:
                if self._bench is None:
                    self._bench = self._begin()
                for unit, parts in chunk:
                    self._bench.work(self._store, unit, parts)
            except InputError as error:
                return str(error), (0, 0)
            return None, (work.made.forwards, work.made.backwards)

    def _begin(self) -> Bench:
        """The plan with its model, after a look whether it is the one that the leading process sees."""
        if self._store.manifest() is None:
            raise InputError(
                f"{socket.gethostname()} does not see the run in {self._store.place}; "
                "choose a folder on a shared filesystem, or a URL such as s3://..."
            )
        bench = Bench(self._plan, self._device)
        try:
            self._store.begin(bench.facts())
        except InputError as error:
            raise InputError(f"{socket.gethostname()} is not set up like the others: {error}") from error
        return bench


def _shared(store: Store) -> Store:
    """The store as other processes can open it."""
    files, path = fsspec.core.url_to_fs(store.place)
    if isinstance(files, MemoryFileSystem):
        raise InputError(f"{store.place} is in the memory of one process; give Ray a shared folder or a URL")
    return Store(path) if isinstance(files, LocalFileSystem) else store


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("Ray is not installed; use pip install 'vitrail[ray]'") from error
    return ray
