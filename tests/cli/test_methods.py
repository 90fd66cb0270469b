"""``vitrail methods``: what there is, for people and for programs."""

import json

import pytest

import vitrail
from vitrail import cli
from vitrail.method import METHODS, parse
from vitrail.perturb import BASELINES, baseline

Capture = pytest.CaptureFixture[str]


def listed(capsys: Capture, *arguments: str) -> list[dict[str, object]]:
    assert cli.main(["methods", *arguments, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert isinstance(found, list)
    return found


def test_json_lists_every_method_with_its_facts(capsys: Capture) -> None:
    found = listed(capsys)
    assert [one["id"] for one in found] == sorted(METHODS) == vitrail.methods()
    for one in found:
        assert {"id", "family", "paper", "needs", "cost", "params"} <= one.keys()
        assert isinstance(one["needs"], list)
        assert isinstance(one["params"], dict)
    by_id = {one["id"]: one for one in found}
    assert by_id["ig"]["params"] == {"steps": 50, "gradient": "true"}
    assert by_id["rollout"]["needs"] == ["attention"]
    assert by_id["smoothgrad"]["params"]["base"] == "saliency"


def test_the_defaults_listed_are_the_defaults(capsys: Capture) -> None:
    for one in listed(capsys):
        config = parse(str(one["id"])).config
        for key, value in one["params"].items():
            if isinstance(config[key], dict):
                made = baseline(value) if config[key]["id"] in BASELINES else parse(value)
                assert config[key] == made.config
            else:
                assert config[key] == value


def test_a_pattern_narrows_the_list(capsys: Capture) -> None:
    ids = [one["id"] for one in listed(capsys, "*cam*")]
    assert "gradcam" in ids
    assert all("cam" in str(name) for name in ids)
    assert vitrail.methods("*cam*") == ids
    assert listed(capsys, "nothing*") == []


def test_the_table_names_every_method_in_full(capsys: Capture) -> None:
    assert cli.main(["methods"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert all(name in said.out for name in METHODS)
    assert cli.main(["methods", "roll*"]) == 0
    said = capsys.readouterr()
    assert "rollout" in said.out
    assert "gradcam" not in said.out


def test_a_pattern_without_a_match(capsys: Capture) -> None:
    assert cli.main(["methods", "nothing*"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "vitrail: no method matches 'nothing*'; see all with: vitrail methods\n"


@pytest.mark.parametrize("command", ["methods", "metrics", "protocols"])
def test_a_narrow_window_has_the_columns_that_fit(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines[:-1])
    assert lines[-1].startswith("Not shown, because the window is too narrow: ")
    left_out = lines[-1].split(": ")[1].split(".")[0].split(", ")
    monkeypatch.setenv("COLUMNS", "250")
    assert cli.main([command]) == 0
    wide = capsys.readouterr().out
    assert "Not shown" not in wide
    assert all(heading in wide.splitlines()[1] and heading not in lines[1] for heading in left_out)


def test_one_alone_is_told_in_full(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["methods", "mda"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("family", "parameters", "gamma=0.0", "compat=none"))
