"""One registry for all that is asked for by name: names, patterns, names of before, and packages that add to it."""

import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from vitrail import InputError, cli, data
from vitrail.bench import PROTOCOLS, protocols, read_protocol
from vitrail.errors import BrokenPlugin, Renamed
from vitrail.fields import checked, number, schema, value
from vitrail.method import METHODS, parse
from vitrail.metric import METRICS
from vitrail.model import SOURCES
from vitrail.perturb import BASELINES, baseline
from vitrail.registry import Registry

# ------------------------------------------------------------------------------------------------------------- names


@pytest.fixture
def fruit() -> Registry[int]:
    made: Registry[int] = Registry("fruit", "vitrail.nothing.of.this.name")
    for i, name in enumerate(("pear", "apple", "pineapple")):
        made.enter(name, i)
    made.enter("quince", 9, was=("pome",))
    return made


def test_names_and_patterns(fruit: Registry[int]) -> None:
    assert fruit.names() == ["apple", "pear", "pineapple", "quince"]
    assert fruit.names("*apple") == ["apple", "pineapple"]
    assert fruit["pear"] == 0
    assert "pear" in fruit
    assert "plum" not in fruit
    assert len(fruit) == 4
    assert fruit.schema("p*") == [{"id": "pear"}, {"id": "pineapple"}]
    fruit["plum"] = 5
    del fruit["pear"]
    assert list(fruit) == ["apple", "pineapple", "quince", "plum"]


def test_close_matches(fruit: Registry[int]) -> None:
    assert fruit.find("pear", "look around") == 0
    with pytest.raises(InputError, match=r"^there is no fruit called 'aple'; did you mean apple or pineapple\?$"):
        fruit.find("aple", "look around")
    with pytest.raises(InputError, match=r"^there is no fruit called 'zzz'; look around$"):
        fruit.find("zzz", "look around")


def test_a_name_is_entered_once(fruit: Registry[int]) -> None:
    for name in ("pear", "pome"):
        with pytest.raises(ValueError, match=f"two fruits are called {name}"):
            fruit.enter(name, 3)
    with pytest.raises(ValueError, match="two fruits are called apple"):
        fruit.enter("fig", 3, was=("apple",))
    assert "fig" not in fruit


def test_a_name_of_before_is_found_with_a_warning(fruit: Registry[int]) -> None:
    with pytest.warns(FutureWarning, match="the fruit pome is called quince now; write quince"):
        assert fruit["pome"] == 9
    assert "pome" not in fruit.names()


# ---------------------------------------------------------------------------------------------- words of before


@checked
@dataclass(frozen=True)
class Renaming:
    """Something whose words have changed.

    Attributes:
        samples: How many.
        compat: Whose form.
    """

    id = "renaming"
    samples: int = number(3, low=1, high=9, was=("masks",))
    compat: str = value("paper", words={"none": "paper"})


def test_an_old_parameter_keeps_working_with_a_warning() -> None:
    old: dict[str, Any] = {"masks": 5}
    with pytest.warns(Renamed, match="renaming's parameter masks is called samples now; write samples"):
        assert Renaming(**old) == Renaming(samples=5)
    with pytest.warns(Renamed, match="renaming's compat=none is called compat=paper now; write paper"):
        assert Renaming(compat="none") == Renaming()
    with pytest.warns(Renamed), pytest.raises(InputError, match="given its parameter samples twice, once by its old"):
        Renaming(samples=4, **old)
    with pytest.warns(Renamed), pytest.raises(InputError, match="renaming needs samples to be 1 to 9"):
        Renaming(masks=10)  # type: ignore[arg-type]
    assert {one["name"]: one["was"] for one in schema(Renaming)} == {"samples": ["masks"], "compat": []}


def test_what_is_no_parameter_at_all_is_pythons_to_tell() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Renaming(wrong=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values"):
        Renaming(3, samples=4)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional arguments"):
        Renaming(3, "paper", 4)  # type: ignore[call-arg]


# ------------------------------------------------------------------------------------------------- installed packages

GROUPS = {
    "vitrail.methods": {"zzedges": "zzplug.methods:Edges", "zzbroken": "zzplug.broken:Thing", "zzempty": "zzplug"},
    "vitrail.metrics": {"zzpeak": "zzplug.metrics:Peak"},
    "vitrail.baselines": {"zzgrey": "zzplug.baselines:Grey"},
    "vitrail.models": {"zzzoo": "zzplug.models:build"},
    "vitrail.datasets": {"zzdots": "zzplug.datasets:dots"},
    "vitrail.protocols": {"zzlab": "zzplug.tables"},
}

FILES = {
    "__init__.py": "",
    "broken.py": "raise OSError('the disk is upside down')\n",
    "methods.py": '''
from dataclasses import dataclass
from vitrail.fields import number
from vitrail.method import Method, register

@register("zzedges", paper="none", cost="none", needs=())
@dataclass(frozen=True)
class Edges(Method):
    """How fast the picture changes.

    Attributes:
        power: Of the change.
    """

    power: float = number(1.0, above=0, high=8)
    pixels = True

    def maps(self, view, batch):
        batch.settle(view)
        grey = batch.images.mean(1)
        return (grey - grey.roll(1, 2)).abs() ** self.power

@register("zzmore", paper="none", cost="none", needs=())
@dataclass(frozen=True)
class More(Edges):
    """Another one of the same file, without an entry point of its own."""
''',
    "metrics.py": '''
from dataclasses import dataclass
from vitrail.metric import Metric, register

@register("zzpeak", "none", higher_is_better=True)
@dataclass(frozen=True)
class Peak(Metric):
    """The largest value."""

    def measure(self, case):
        return case.maps.flatten(1).amax(1)
''',
    "baselines.py": '''
from dataclasses import dataclass
import torch
from vitrail.perturb import Baseline, register

@register("zzgrey")
@dataclass(frozen=True)
class Grey(Baseline):
    """A value everywhere."""

    def fill(self, view, images, target):
        return torch.full_like(images, 0.5)
''',
    "models.py": """
from torch import nn

def build(name, pretrained):
    if name != "tiny":
        raise KeyError(name)
    return nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
""",
    "datasets.py": """
from vitrail.data import dataset

def dots(argument, spec):
    return dataset("scenes:" + argument)
""",
    "tables/__init__.py": "",
    "tables/first.yaml": """
title: A table of our own
model: demo
data: scenes:4
methods: [random]
columns: [sparseness]
""",
}


def installed(site: Path, name: str, files: dict[str, str], groups: dict[str, dict[str, str]]) -> None:
    """A package with its metadata, as pip leaves it."""
    for path, text in files.items():
        file = site / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    facts = site / f"{name}-1.5.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    points = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in groups.items()]
    (facts / "entry_points.txt").write_text("\n".join(points))


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that adds to every registry, as long as the test lasts."""
    installed(tmp_path, "zzplug", FILES, GROUPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    registries: tuple[Registry[Any], ...] = (METHODS, METRICS, BASELINES, SOURCES, data.KINDS, PROTOCOLS)
    before = [(dict(one._things), set(one._tried), dict(one._broken)) for one in registries]
    yield
    for one, (things, tried, broken) in zip(registries, before):
        one._things, one._tried, one._broken = things, tried, broken
    for module in [name for name in sys.modules if name.partition(".")[0] == "zzplug"]:
        del sys.modules[module]


@pytest.mark.usefixtures("plugged")
def test_a_package_is_imported_only_when_its_name_is_asked_for() -> None:
    assert parse("ig").id == "ig"
    assert "zzplug" not in sys.modules
    assert parse("smoothgrad(zzedges(power=2), samples=2)").spec == "smoothgrad(zzedges(power=2.0), samples=2)"
    assert "zzplug.methods" in sys.modules
    assert "zzplug.broken" not in sys.modules
    assert type(parse("zzedges")).family == "zzplug"
    with pytest.raises(InputError, match=r"^zzedges needs power to be above 0, up to 8, but power=9\.0 was given$"):
        parse("zzedges(9)")
    found = vitrail.explain("demo", torch.zeros(1, 3, 144, 144), "zzedges")
    assert found.maps.shape == (1, 144, 144)


@pytest.mark.usefixtures("plugged")
def test_a_package_adds_to_every_registry() -> None:
    assert baseline("zzgrey").spec == "zzgrey"
    assert vitrail.metric.parse("insertion(baseline=zzgrey)").config["baseline"] == {"id": "zzgrey"}
    assert vitrail.metric.parse("zzpeak").higher_is_better
    view = vitrail.load("zzzoo/tiny", size=(64, 64))
    assert (view.name, view.num_classes) == ("zzzoo/tiny", 3)
    with pytest.raises(InputError, match=r"the model zzzoo/large cannot be made: its plug-in raised KeyError: 'large'"):
        vitrail.load("zzzoo/large")
    assert len(data.dataset("zzdots:3")) == 3
    assert read_protocol("zzlab/first").title == "A table of our own"
    assert "zzlab/first" in protocols("zzlab/*")
    with pytest.raises(InputError, match="did you mean zzlab/first"):
        read_protocol("zzlab/frst")


@pytest.mark.usefixtures("plugged")
def test_a_module_may_enter_more_than_its_entry_points_are_called() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrokenPlugin)
        assert parse("zzmore").id == "zzmore"


@pytest.mark.usefixtures("plugged")
def test_a_broken_package_gets_a_sentence() -> None:
    sentence = (
        r"^the method 'zzbroken' is a plug-in of zzplug 1.5, which cannot be loaded "
        r"\(OSError: the disk is upside down\); repair that package, or uninstall it$"
    )
    for _ in range(2):
        with pytest.raises(InputError, match=sentence):
            parse("zzbroken")
    with pytest.raises(InputError, match=r"'zzempty' .* \(LookupError: zzplug registers no method of this name\)"):
        parse("zzempty")
    assert parse("zzedges").id == "zzedges", "the others work"


@pytest.mark.usefixtures("plugged")
def test_a_list_of_all_names_those_of_packages_and_warns_of_the_broken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(BrokenPlugin, match="zzbroken"):
        assert {"zzedges", "zzmore", "ig"} <= set(vitrail.methods())
    assert cli.main(["methods", "zz*", "--json"]) == 0
    said = capsys.readouterr()
    assert [one["id"] for one in json.loads(said.out)] == ["zzedges", "zzmore"]
    assert "vitrail: the method 'zzbroken' is a plug-in of zzplug 1.5, which cannot be loaded" in said.err
    assert "Traceback" not in said.err
    assert "warn" not in said.err.lower()


@pytest.mark.usefixtures("plugged")
def test_two_packages_with_one_name(tmp_path: Path) -> None:
    files = {"__init__.py": FILES["methods.py"].replace("zzedges", "ig").replace("zzmore", "zzother")}
    installed(tmp_path, "zzthief", files, {"vitrail.methods": {"ig": "zzthief", "zzlost": "zzthief"}})
    assert type(parse("ig")) is vitrail.method.IntegratedGradients
    with pytest.raises(InputError, match=r"'zzlost' .* zzthief 1.5.* \(ValueError: two methods are called ig"):
        parse("zzlost")
    sys.modules.pop("zzthief", None)


# --------------------------------------------------------------------------------------------------- the command line


def test_one_method_is_told_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["methods", "ig"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "steps=50 (1 to 2,000): Points on the way." in said
    assert "gradient=true (true or frozen): The model's own gradient, or the frozen one." in said


def test_json_tells_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["metrics", "irof", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["schema"] == schema(METRICS["irof"])
    assert told["schema"][0]["range"] == {"low": 1, "high": 10_000}
