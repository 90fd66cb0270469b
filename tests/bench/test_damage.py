"""A run's folder that was damaged: every byte of a part counts, damaged parts are named and made again on request."""

import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.tables import same
from vitrail import InputError, Scores, cli
from vitrail.bench import Filter, Plan, Store, run, sealed
from vitrail.bench.recommend import recommend
from vitrail.bench.report import Result, text
from vitrail.bench.unit import SCHEMA

TABLE = pa.table({"image": ["a", "b"], "value": [0.25, None]})
PLAN = Plan("demo", "scenes:4", ("ixg", "random"), ("pointing_game", "sparseness"), chunk=2)

Capture = pytest.CaptureFixture[str]


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def unsealed(table: pa.Table) -> bytes:
    """A part as earlier versions wrote it."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


# ------------------------------------------------------------------------------------------------------------- a part


def test_every_bit_of_a_part_counts() -> None:
    data = sealed.seal(TABLE)
    sealed.check(data)
    assert sealed.rows(data).equals(TABLE)
    assert sealed.rows(data, ["value"]).equals(TABLE.select(["value"]))
    assert sealed.names(data) == TABLE.column_names
    for place in range(len(data)):
        for bit in range(8):
            with pytest.raises(sealed.DamagedError):
                sealed.check(flipped(data, place, bit))
        with pytest.raises(sealed.DamagedError):
            sealed.check(data[:place])
    with pytest.raises(sealed.DamagedError):
        sealed.check(data + b"\0")


def test_maps_are_covered_too() -> None:
    """The body of a real part: some hundred kilobytes of maps that look like chance."""
    row = {"image": "a", "rows": 64, "columns": 64, "map": os.urandom(4 * 64 * 64)}
    table = pa.Table.from_pylist([row] * 9, schema=SCHEMA)
    data = sealed.seal(table)
    sealed.check(data)
    for place in range(0, len(data), 97):
        with pytest.raises(sealed.DamagedError, match=r"its checksum is (another|gone)"):
            sealed.check(flipped(data, place))


def test_parts_of_earlier_versions_are_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    file = tmp_path / "parts" / "ig" / "00000.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(unsealed(TABLE))
    assert store.read("ig/00000").equals(TABLE)
    assert store.names("ig/00000") == TABLE.column_names
    for place in range(len(unsealed(TABLE))):  # no promise without a checksum, but a sentence or a table
        file.write_bytes(flipped(unsealed(TABLE), place))
        with suppress(InputError):
            Store(str(tmp_path)).read("ig/00000")


@pytest.mark.parametrize("data", [b"", b"no Parquet", b"PAR1" * 9, unsealed(TABLE)[:-9]], ids=repr)
def test_what_is_no_part_is_damaged(data: bytes, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write("ig/00000", TABLE)
    (tmp_path / "parts" / "ig" / "00000.parquet").write_bytes(data)
    for look in (store.names, store.read):
        with pytest.raises(InputError, match=r"the part 'ig/00000' of .* is damaged .*repair=True, which makes it"):
            look("ig/00000")


def test_all_damaged_parts_are_named_and_removed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for number in range(9):
        store.write(f"ig/{number:05d}", TABLE)
    for number in range(1, 8):
        file = tmp_path / "parts" / "ig" / f"{number:05d}.parquet"
        file.write_bytes(flipped(file.read_bytes(), 40))
    with pytest.raises(InputError, match=r"7 parts of .* are damaged: 'ig/00001', .*'ig/00005' and 2 more; start") as e:
        store.read("ig/00004")
    assert "which makes them again" in str(e.value)
    assert store.read("ig/00000").equals(TABLE), "the others are read as ever"
    assert store.repair() == [f"ig/{number:05d}" for number in range(1, 8)]
    assert list(store.units()) == ["ig/00000", "ig/00008"]
    assert store.repair() == []
    store.write("ig/00004", TABLE)
    assert store.read("ig/00004").equals(TABLE)


def test_a_part_that_may_not_be_read_is_not_damaged(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "parts" / "ig" / "00000.parquet").mkdir(parents=True)
    with pytest.raises(InputError, match=r"the part 'ig/00000' of .* cannot be read \(Is a directory\)"):
        store.read("ig/00000")


# -------------------------------------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scores]:
    place = tmp_path_factory.mktemp("damage") / "whole"
    return place, run(PLAN, str(place))


def damage(folder: Path, pattern: str) -> list[str]:
    """Change a byte in the middle of some parts; their names."""
    files = sorted((folder / "parts").glob(pattern))
    assert files
    for file in files:
        data = file.read_bytes()
        file.write_bytes(flipped(data, len(data) // 3))
    return [file.relative_to(folder / "parts").with_suffix("").as_posix() for file in files]


@pytest.mark.parametrize("pattern", ["ixg-*/00001.parquet", "chosen/*", "*/0*"])
def test_damaged_parts_are_refused_and_made_again(pattern: str, whole: tuple[Path, Scores], tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(whole[0], place)
    before = {file: file.read_bytes() for file in place.rglob("*.parquet")}
    names = damage(place, pattern)
    with pytest.raises(InputError, match="damaged") as refused:
        run(PLAN, str(place))
    assert names[0] in str(refused.value)
    assert same(run(PLAN, str(place), repair=True), whole[1])
    assert set(place.rglob("*.parquet")) == set(before)
    made = [file.relative_to(place / "parts") for file, data in before.items() if file.read_bytes() != data]
    assert {file.with_suffix("").as_posix() for file in made} <= {*names}, "the others are left alone"
    assert same(run(PLAN, str(place)), whole[1])


def test_a_map_is_made_again_where_later_metrics_still_have_theirs(whole: tuple[Path, Scores], tmp_path: Path) -> None:
    place = tmp_path / "run"
    run(replace(PLAN, metrics=PLAN.metrics[:1]), str(place))
    run(PLAN, str(place))
    assert list((place / "parts").glob("ixg-*/00000+*")), "the second metric has parts of its own"
    (name,) = damage(place, "ixg-*/00000.parquet")
    # This plan's only metric stands in a part that is whole; the maps are gone all the same.
    run(replace(PLAN, metrics=PLAN.metrics[1:]), str(place), repair=True)
    assert "map" in Store(str(place)).names(name)
    assert same(run(PLAN, str(place)), whole[1])


def test_filters_answers_are_made_again(tmp_path: Path) -> None:
    plan = replace(PLAN, filter=Filter(correct=True))
    expected = run(plan, str(tmp_path))
    damage(tmp_path, "filter-*/00001.parquet")
    damage(tmp_path, "chosen/*")
    with pytest.raises(InputError, match=r"2 parts of .* are damaged"):
        run(plan, str(tmp_path))
    assert same(run(plan, str(tmp_path), repair=True), expected)


def test_the_command_line_says_what_to_do(tmp_path: Path, capsys: Capture) -> None:
    words = ["bench", "scenes", "--part", "object", "--methods", "ixg", "--metrics", "mIoU", "--limit", "2"]
    words += ["--out", str(tmp_path / "run"), "--quiet"]
    assert cli.main(words) == 0
    before = text(Result.of(str(tmp_path / "run")), "csv")
    (name,) = damage(tmp_path / "run" / "object", "ixg-*/*")
    capsys.readouterr()
    for verb in (words, ["report", str(tmp_path / "run")]):
        assert cli.main(verb) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert f"the part '{name}'" in said.err
        assert "start the run again with --repair, which makes it again\n" in said.err
    assert cli.main([*words, "--repair"]) == 0
    after = text(Result.of(str(tmp_path / "run")), "csv")
    assert [line.split(",")[:12] for line in after.splitlines()] == [
        line.split(",")[:12] for line in before.splitlines()
    ], "the same numbers, but for the time they took"


# ------------------------------------------------------------------------------------------------- JSON of other shapes


def nested(depth: int, inner: str = "1") -> str:
    return "[" * depth + inner + "]" * depth


SHAPES = {
    "a list": "[]",
    "a full list": '["model", "weights"]',
    "a number": "7",
    "nothing": "null",
    "words": '"chunk"',
    "empty": "{}",
    "no JSON": "{",
    "no text": "\xff\xfe\xfa",
    "10,000 deep": nested(10_000),
    "900 deep": f'{{"model": {nested(900)}}}',
    "a number of 5,000 digits": f'{{"model": {"9" * 5000}}}',
    "wrong types": '{"model": 1, "weights": [], "images": "x", "chunk": {}, "parts": [[]], "name": null, "ixg": 5}',
}

PROTOCOL_SHAPES: dict[str, Callable[[Any], Any]] = {
    "parts of a name": lambda one: one | {"parts": "object"},
    "no parts, no list": lambda one: one | {"parts": {"object": one["parts"][0]}},
    "a part with more": lambda one: one | {"parts": [one["parts"][0] | {"more": 1}]},
    **{
        f"{key} {value!r}": lambda one, key=key, value=value: one | {"parts": [one["parts"][0] | {key: value}]}
        for key, value in {
            "chunk": "8",
            "limit": [1],
            "size": [1, 2, 3],
            "data": 5,
            "methods": ["ixg"],
            "ours": [1],
            "columns": [],
            "filter": {"correct": "yes"},
            "published": {"IxG": {"mIoU": "x"}},
            "published_for": None,
            "sweep": {"axis": 1, "at": {}},
            "precision": "fp8",
            "name": "../../elsewhere",
            "later": [[]],
        }.items()
    },
    "a column without terms": lambda one: (
        one | {"parts": [one["parts"][0] | {"columns": [{"name": "mIoU", "terms": []}]}]}
    ),
    "a term without weight": lambda one: (
        one | {"parts": [one["parts"][0] | {"columns": [{"name": "mIoU", "terms": [["segmentation"]]}]}]}
    ),
}

FACTS: dict[str, Any] = {
    "chunk": [0, -1, 3, "2", None, 1.5, True, [], 10**30],
    "images": ["4", -1, None, 2.5, {}],
    "filter": [None, [], "x", {"correct": {}}],
    "versions": [None, [], {"torch": 2}],
    "explains": [None, "all", {}],
    "model": [None, 5, {}],
    "weights": [None, 5],
    "precision": [None, "fp8", {}],
    "compiled": [None, "yes", []],
    "images hash": [5],
    "limit": ["5"],
}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shapes") / "run"
    words = ["bench", "scenes", "--part", "object", "--methods", "ixg", "--metrics", "mIoU", "--limit", "4"]
    assert cli.main([*words, "--chunk", "2", "--out", str(place), "--quiet"]) == 0
    return place


def bench_again(place: Path) -> int:
    words = ["bench", "scenes", "--part", "object", "--methods", "ixg", "--metrics", "mIoU", "--limit", "4"]
    return cli.main([*words, "--chunk", "2", "--out", str(place), "--quiet"])


def refused_with_a_sentence(code: int, capsys: Capture, name: str) -> None:
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.startswith("vitrail: ")
    assert said.err.count("\n") == 1
    assert len(said.err) < 1000
    assert name in said.err


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["object/manifest.json", "protocol.json", "object/learned.json"])
def test_json_of_another_shape_is_refused(
    name: str, shape: str, reported: Path, tmp_path: Path, capsys: Capture
) -> None:
    place = tmp_path / "run"
    shutil.copytree(reported, place)
    (place / name).write_text(SHAPES[shape], encoding="latin-1")
    last = name.rpartition("/")[2]
    if name != "object/learned.json":
        refused_with_a_sentence(cli.main(["report", str(place)]), capsys, last)
    if name == "object/learned.json" and shape == "empty":
        assert bench_again(place) == 0
    elif not (name == "object/manifest.json" and shape in ("empty", "wrong types")):
        refused_with_a_sentence(bench_again(place), capsys, last)
    else:  # a mapping: it is compared with what is wanted, and the differences are named
        refused_with_a_sentence(bench_again(place), capsys, "holds another run")


@pytest.mark.parametrize("shape", PROTOCOL_SHAPES)
def test_a_protocol_of_another_shape_is_refused(shape: str, reported: Path, tmp_path: Path, capsys: Capture) -> None:
    place = tmp_path / "run"
    shutil.copytree(reported, place)
    found = json.loads((place / "protocol.json").read_text())
    (place / "protocol.json").write_text(json.dumps(PROTOCOL_SHAPES[shape](found)))
    refused_with_a_sentence(cli.main(["report", str(place)]), capsys, "protocol.json")


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in FACTS.items() for value in values])
def test_facts_of_another_shape_are_refused(
    key: str, value: Any, reported: Path, tmp_path: Path, capsys: Capture
) -> None:
    place = tmp_path / "run"
    shutil.copytree(reported, place)
    found = json.loads((place / "object" / "manifest.json").read_text())
    assert cli.main(["report", str(place)]) == 0
    capsys.readouterr()
    (place / "object" / "manifest.json").write_text(json.dumps(found | {key: value}))
    refused_with_a_sentence(cli.main(["report", str(place)]), capsys, "manifest.json")
    if key not in ("images hash", "limit"):
        (place / "object" / "manifest.json").write_text(json.dumps({k: v for k, v in found.items() if k != key}))
        refused_with_a_sentence(cli.main(["report", str(place)]), capsys, f"it has no {key}")


def test_recommend_refuses_and_repairs_likewise(tmp_path: Path, capsys: Capture) -> None:
    pictures, place = tmp_path / "pictures", tmp_path / "run"
    assert cli.main(["scenes", "--count", "2", "--out", str(tmp_path / "scenes"), "--quiet"]) == 0
    shutil.copytree(tmp_path / "scenes" / "pictures", pictures)
    words = ["recommend", "--model", "demo", "--images", str(pictures), "--methods", "ixg", "--out", str(place)]
    assert cli.main([*words, "--quiet"]) == 0
    kept = {name: (place / name).read_bytes() for name in ("protocol.json", "pictures/manifest.json")}
    for name in kept:
        for shape in ("a list", "10,000 deep", "wrong types"):
            (place / name).write_text(SHAPES[shape])
            another = "manifest" in name and shape == "wrong types"
            refused_with_a_sentence(cli.main(words), capsys, "holds another run" if another else name)
        (place / name).write_bytes(kept[name])
    damage(place / "pictures", "ixg-*/*")
    code = cli.main(words)
    refused_with_a_sentence(code, capsys, "with --repair, which makes it again")
    assert cli.main([*words, "--repair", "--quiet"]) == 0
    damage(place / "randomisation", "random-*/*")
    found = recommend("demo", [str(pictures)], methods=["ixg"], out=str(place), repair=True)
    assert [one.method for one in found.candidates] == ["ixg"]
