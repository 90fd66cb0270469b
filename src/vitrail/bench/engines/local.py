"""The work of a run in this process, on one device or on several side by side."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import torch

from vitrail.bench.engines.share import Entry, chunks
from vitrail.bench.runner import Bench
from vitrail.bench.store import Store
from vitrail.errors import InputError
from vitrail.model import Precision


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

    def work(self, bench: Bench, store: Store, todo: Sequence[Entry], progress: bool) -> None:
        """Do the work; the first error of any device stops all, after the units in hand."""
        from tqdm.auto import tqdm

        with tqdm(total=len(todo), unit="unit", disable=not progress, leave=False) as bar:
            if not self._more:
                for chunk in chunks(todo):
                    for unit, parts in chunk:
                        bench.work(store, unit, parts)
                        bar.update()
                return
            if not self._benches or self._benches[0] is not bench:
                self._benches = [bench, *(Bench(bench.plan, device) for device in self._more)]
            queue: SimpleQueue[list[Entry]] = SimpleQueue()
            for chunk in chunks(todo):
                queue.put(chunk)
            failed: list[BaseException] = []

            def take(own: Bench) -> None:
                try:
                    while not failed:
                        for unit, parts in queue.get_nowait():
                            if failed:
                                return
                            own.work(store, unit, parts)
                            bar.update()
                except Empty:
                    return
                except BaseException as error:
                    failed.append(error)
                    raise

            with _fast_products_for_all(bench.plan.precision), ThreadPoolExecutor(len(self._benches)) as pool:
                for future in [pool.submit(take, own) for own in self._benches]:
                    future.result()


@contextmanager
def _fast_products_for_all(precision: Precision) -> Iterator[None]:
    """TF32 is a switch of the whole process: who ends a unit must not switch it off under the others."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    if precision == "tf32":
        matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
