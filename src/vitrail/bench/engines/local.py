"""The work of a run in this process, on one device or on several side by side."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from vitrail.bench.engines.share import Entry, chunks
from vitrail.bench.runner import Bench
from vitrail.bench.store import Store
from vitrail.errors import InputError
from vitrail.events import Cancel, Cancelled, Work, within, working


class Local:
    """One model a device, each in a thread of its own, that take chunks of images from one queue.

    Args:
        devices: Such as ``"cuda:1"`` or ``("cuda:0", "cuda:1")``; the GPU by default if there is one.
    """

    def __init__(self, devices: str | Sequence[str] | None = None) -> None:
        names = [devices] if devices is None or isinstance(devices, str) else list(devices)
        if not names or len(set(names)) < len(names):
            raise InputError(f"give devices that differ, but {', '.join(map(str, names)) or 'none'} was given")
        self.device, self._more = names[0], names[1:]
        self._benches: list[Bench] = []

    def work(self, bench: Bench, store: Store, todo: Sequence[Entry], work: Work) -> None:
        """Do the work; the first error of any device stops all, before their next passes."""
        if not self._more:
            for chunk in chunks(todo):
                for unit, parts in chunk:
                    bench.work(store, unit, parts)
                    work.finish_some()
            return
        if not self._benches or self._benches[0] is not bench:
            self._benches = [bench, *(Bench(bench.plan, device) for device in self._more)]
        queue: SimpleQueue[list[Entry]] = SimpleQueue()
        for chunk in chunks(todo):
            queue.put(chunk)
        stop = Cancel()

        def take(own: Bench) -> None:
            try:
                # This thread's part of the work, which ends when another's fails.
                with within(work), working("units", len(todo), "unit", cancel=stop):
                    while True:
                        for unit, parts in queue.get_nowait():
                            own.work(store, unit, parts)
                            work.finish_some()
            except Empty:
                return
            except BaseException:
                stop.request()
                raise

        with ThreadPoolExecutor(len(self._benches)) as pool:
            running = [pool.submit(take, own) for own in self._benches]
            try:
                errors = [future.exception() for future in running]
            except BaseException:  # Ctrl-C
                stop.request()
                raise
        failed = [error for error in errors if error is not None]
        if failed:
            # What another thread's failure stopped is not the reason.
            raise next((error for error in failed if not isinstance(error, Cancelled)), failed[0])
