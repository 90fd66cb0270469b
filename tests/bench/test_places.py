"""A protocol's pictures: where they are is the user's to say, and a fresh machine is told how to get them."""

from dataclasses import replace
from pathlib import Path

import pytest

from vitrail import cli
from vitrail.bench import perform, placed, protocols, read_protocol
from vitrail.bench.places import WANTED
from vitrail.data import dataset
from vitrail.data.assets import VARIABLE
from vitrail.errors import InputError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without our files."""
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("name", protocols())
def test_no_protocol_names_a_folder_that_only_we_have(name: str) -> None:
    for part in read_protocol(name).parts:
        assert "assets:" not in part.data
        assert part.data.rpartition(":")[2] in WANTED or dataset(part.data)


@pytest.mark.parametrize("name", protocols())
def test_the_demo_model_takes_scenes_and_a_filter_that_fits_them(name: str) -> None:
    for part, before in zip(placed(read_protocol(name).with_parts(model="demo")).parts, read_protocol(name).parts):
        data = dataset(part.data).limit(4)
        assert len(data) == 4
        assert all(item.accepted for item in data)
        assert all(item.region is not None for item in data)
        if before.data.rpartition(":")[2] in WANTED:
            assert "seed=3" in part.data, "scenes that no network of vitrail's has learned from"
            assert not part.filter.blurs
            assert part.filter.per_class is None
            assert (part.filter.correct, part.filter.confidence) == (before.filter.correct, before.filter.confidence)


def test_a_part_that_compares_the_classes_of_a_picture_gets_pictures_with_several() -> None:
    for part in placed(read_protocol("var/table1").with_parts(model="demo")).parts:
        assert dataset(part.data)[0].present


def test_a_fitted_filter_is_told() -> None:
    table = read_protocol("mda/table5").with_parts(model="demo")
    assert "drawn scenes" in placed(table).note
    assert "drawn scenes" in placed(table, ["scenes:20"]).note
    assert placed(placed(table)).note == placed(table).note
    assert placed(read_protocol("scenes")) == read_protocol("scenes")


def test_sets_go_where_they_are_asked_for() -> None:
    found = placed(read_protocol("var/table1"), ["coco:/c", "imagenet:/i"])
    assert {part.data for part in found.parts} == {"quads:imagenet:/i", "part-quads:imagenet:/i", "coco:/c"}
    found = placed(read_protocol("skipplus/figure3"), ["imagenet:/i"])
    assert [part.data for part in found.parts] == ["imagenet:/i", "pets"]
    found = placed(read_protocol("skipplus/figure3"), ["folder:/f"])
    assert [part.data for part in found.parts] == ["folder:/f", "folder:/f"]
    assert placed(read_protocol("scenes"), ["scenes:8"]).parts[1].data == "scenes:8"
    assert placed(read_protocol("var/table1"), ["quads:folder:/f"]).parts[0].data == "quads:folder:/f"
    assert placed(read_protocol("tis/table1"), ["assets:imagenet_val"]).parts[0].data == "assets:imagenet_val"


def test_a_machine_with_the_small_sets_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/somewhere")
    found = [part.data for part in placed(read_protocol("var/table1")).parts]
    assert found[:3] == ["quads:assets:imagenet_val", "part-quads:assets:imagenet_val", "assets:coco128"]
    assert placed(read_protocol("skipplus/figure3"), ["pets:/p"]).parts[1].data == "pets:/p"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["imagenet:/a", "imagenet:/b"], "are both for tis/table1's imagenet"),
        (["folder:/a", "csv:/b"], "are both for tis/table1's pictures"),
        (["imagenet:/a", "coco:/b"], "no part of tis/table1 takes coco:/b; it asks for imagenet"),
    ],
    ids=" ".join,
)
def test_sets_that_cannot_be_placed(given: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        placed(read_protocol("tis/table1"), given)


@pytest.mark.parametrize("name", sorted({p.rpartition("/")[0] + "/" for p in protocols()} - {"/"}))
def test_what_is_missing_is_said_before_anything_is_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = next(one for one in protocols(f"{name}*") if one != "aha/scenes")
    out = tmp_path / "out"
    assert cli.main(["bench", first, "--limit", "2", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "--data imagenet:FOLDER" in said
    assert "docs/data.md" in said
    assert "--model demo" in said
    assert said.count("\n") == 1
    assert not out.exists()
    table = read_protocol(first)
    table = replace(table, parts=table.parts[:1])
    with pytest.raises(InputError, match="data='imagenet:FOLDER'"):
        perform(table, str(out))
    assert not out.exists()
