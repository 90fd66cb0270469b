"""A run's folder: whole parts or none, the same run or a sentence."""

import multiprocessing
import os
import pickle
import signal
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from vitrail import InputError
from vitrail.bench.store import Store

TABLE = pa.table({"image": ["a", "b"], "value": [0.25, None]})


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/run"


def test_parts_come_back(place: str) -> None:
    store = Store(place)
    store.begin({"model": "demo"})
    assert not store.has("ig/00001")
    store.write("ig/00001", TABLE)
    store.write("genatt/00000", TABLE)
    assert store.has("ig/00001")
    assert list(Store(place).units()) == ["genatt/00000", "ig/00001"]
    assert Store(place).read("ig/00001").equals(TABLE)
    assert pickle.loads(pickle.dumps(store)).read("genatt/00000").equals(TABLE)


def test_a_part_that_is_there_stays(place: str) -> None:
    store = Store(place)
    store.write("ig/00001", TABLE)
    store.write("ig/00001", TABLE.slice(0, 1))
    assert store.read("ig/00001").num_rows == 2


def test_the_same_run_goes_on_and_another_is_refused(place: str) -> None:
    facts = {"model": "demo", "methods": ["ig", "genatt"], "data": {"images": 10, "hash": "x"}}
    Store(place).begin(facts)
    Store(place).begin(facts)
    assert Store(place).manifest() == facts
    other = {**facts, "data": {"images": 12, "hash": "x"}, "seed": 1}
    with pytest.raises(InputError, match=r"another run.*data.images is 10 there, but 12.*seed is only asked for"):
        Store(place).begin(other)
    assert Store(place).manifest() == facts


def test_parts_without_a_manifest_are_not_taken_over(place: str) -> None:
    Store(place).write("ig/00000", TABLE)
    with pytest.raises(InputError, match=r"holds parts of a run but no manifest\.json"):
        Store(place).begin({})


def test_what_cannot_be_read_gets_a_sentence(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(InputError, match="has no part 'ig/00000'"):
        store.read("ig/00000")
    store.write("ig/00000", TABLE)
    file = tmp_path / "parts" / "ig" / "00000.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InputError, match="damaged"):
        store.read("ig/00000")
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        store.begin({})
    with pytest.raises(InputError, match="fsspec knows"):
        Store("nowhere-at-all://x")


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store._files, "mv", full)
        with pytest.raises(InputError, match=r"No space left on device.*it goes on from here"):
            store.write("ig/00000", TABLE)
    assert list(store.units()) == []
    store.write("ig/00000", TABLE)
    assert list(store.units()) == ["ig/00000"]


def _write_for_ever(place: str) -> None:
    store = Store(place)
    for i in range(100_000):
        store.write(f"ig/{i:05d}", pa.table({"value": list(range(20_000))}))


def test_a_writer_that_is_killed_leaves_whole_parts_only(tmp_path: Path) -> None:
    for round_ in range(5):
        place = str(tmp_path / str(round_))
        process = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(place,))
        process.start()
        deadline = time.monotonic() + 20
        while not list(Store(place).units()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.013 * round_)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        store = Store(place)
        units = list(store.units())
        assert units
        assert all(store.read(unit).num_rows == 20_000 for unit in units)
