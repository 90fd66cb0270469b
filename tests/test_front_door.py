"""The front door opens at once, says what is behind it, and the rooms behind it use each other one way only."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrail

SOURCE = Path(vitrail.__file__).parent


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["vitrail", "vitrail.cli", "vitrail.errors"])
def test_importing_is_instant(module: str) -> None:
    loaded = json.loads(python(f"import sys, json, {module}; print(json.dumps(list(sys.modules)))"))
    assert module in loaded
    assert not {"torch", "matplotlib", "timm", "numpy", "PIL"} & set(loaded)


def test_the_door_names_everything() -> None:
    names = dir(vitrail)
    assert names == sorted(names)
    assert set(vitrail.__all__) <= set(names)
    assert {"load", "explain", "methods", "Explanation", "InputError"} <= set(vitrail.__all__)
    for name in vitrail.__all__:
        assert getattr(vitrail, name) is not None
    namespace: dict[str, object] = {}
    exec("from vitrail import *", namespace)
    assert set(vitrail.__all__) <= namespace.keys()
    assert vitrail.__version__ == importlib.metadata.version("vitrail")


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'vitrail' has no attribute 'explian'"):
        _ = vitrail.explian
    assert not hasattr(vitrail, "torch")


def test_the_command_line_leaves_the_door_as_it_is() -> None:
    code = "import vitrail; from vitrail.cli import main; print(main(['explain']), callable(vitrail.explain))"
    assert python(code).strip() == "2 True"


def test_no_file_shadows_a_name_of_the_door() -> None:
    code = """
import importlib, types, vitrail
for home in vitrail._HOMES.values():
    importlib.import_module("vitrail." + home)
print([name for name in vitrail._HOMES if isinstance(getattr(vitrail, name), types.ModuleType)])
"""
    assert python(code).strip() == "[]"


def test_no_name_of_a_door_hides_a_file() -> None:
    """``import vitrail.bench.protocol as p`` gives the module, not something of that name on the door."""
    code = """
import importlib, pkgutil, types, vitrail
hidden = []
for found in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
    if "__main__" in found.name or found.name.endswith("kernels.triton"):
        continue
    importlib.import_module(found.name)
    package, _, name = found.name.rpartition(".")
    if not isinstance(getattr(importlib.import_module(package), name), types.ModuleType):
        hidden.append(found.name)
print(hidden)
"""
    assert python(code).strip() == "[]"


# ------------------------------------------------------------------------------------------------- one way through

# image -> model -> method -> explanation -> metric -> bench -> report: a room may use the rooms before it on that way.
# Tools lie beside the way, for all: sentences, files, events, and how things are named and configured. Three more rooms
# know no other: scenes (a world to look at), show (how to draw numbers) and notes (how to sum up what is said of maps).
TOOLS: dict[str, set[str]] = {
    "errors": set(),
    "events": {"errors"},
    "files": {"errors"},
    "registry": {"errors"},
    "fields": {"errors"},
    "spec": {"errors", "registry", "fields"},
}
MAY_USE: dict[str, set[str]] = TOOLS | {
    room: {*TOOLS, *before}
    for room, before in {
        "scenes": set(),
        "show": set(),
        "notes": set(),
        "model": {"scenes"},
        "perturb": {"model"},
        "data": {"scenes", "model"},
        "method": {"model", "perturb"},
        "explanation": {"show", "model", "method"},
        "front": {"model", "method", "explanation"},
        "metric": {"show", "notes", "model", "data", "perturb", "method", "explanation", "front"},
        "bench": {"scenes", "show", "notes", "model", "data", "perturb", "method", "explanation", "front", "metric"},
    }.items()
}
MAY_USE["train"] = {*MAY_USE}
MAY_USE["serve"] = {*MAY_USE}
MAY_USE["cli"] = {*MAY_USE}
MAY_USE["__init__"] = {*MAY_USE}
MAY_USE["__main__"] = {"cli"}

FILES = sorted(SOURCE.rglob("*.py"))


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Every import from vitrail in a file, wherever it stands, as (module, name); name is "" for ``import module``."""
    package = ["vitrail", *file.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "vitrail")
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if module.split(".")[0] == "vitrail":
                yield from ((module, alias.name) for alias in node.names)


def used(module: str, name: str) -> str | None:
    """The room that an import reaches into; None for the door's own facts, such as the version."""
    parts = module.split(".")
    if len(parts) > 1:
        return parts[1]
    return vitrail._HOMES.get(name, name if name in MAY_USE else None)


def test_every_room_is_in_the_table() -> None:
    assert {room_of(file) for file in FILES} <= MAY_USE.keys()
    before: set[str] = set()
    for room, others in MAY_USE.items():
        assert others <= before | {room}, f"{room} uses a room that comes after it"
        before.add(room)


def test_the_walk_over_the_source_sees_all_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    file = tmp_path / "model" / "new.py"
    file.parent.mkdir()
    file.write_text(
        "import os\nimport vitrail.show\nfrom ..cli import main\nfrom . import view\nfrom .tap import Tap\n"
        "def f():\n    from vitrail import explain, __version__\n    from vitrail.method.spec import parse\n"
    )
    found = [used(*one) for one in imports(file)]
    assert sorted(found, key=str) == [None, "cli", "front", "method", "model", "model", "show"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_room_uses_only_the_rooms_before_it(file: Path) -> None:
    room = room_of(file)
    reached = {used(*one) for one in imports(file)} - {room, None}
    assert reached <= MAY_USE[room], f"{room} must not use {', '.join(sorted(map(str, reached - MAY_USE[room])))}"


def door_names(room: str) -> set[str]:
    """What a door offers: its ``__all__``; for a room of one file every name without an underscore.

    ``method/aha`` is a door inside the room ``method``.
    """
    door = SOURCE / room / "__init__.py"
    tree = ast.parse((door if door.is_file() else SOURCE / f"{room}.py").read_text(encoding="utf-8"))
    if not door.is_file():
        named = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        typed = {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        return {name for name in named | typed if not name.startswith("_")}
    lists = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    return {str(name) for one in lists for name in ast.literal_eval(one)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_room_is_entered_through_its_door(file: Path) -> None:
    for module, name in imports(file):
        room = used(module, name)
        if room in (None, room_of(file)) or module == "vitrail":
            continue
        door = module.removeprefix("vitrail.").replace(".", "/")
        assert door == room or (SOURCE / door / "__init__.py").is_file(), f"{module} is inside the room {room}"
        assert name in door_names(door), f"{name} is not on the door of {module}"
