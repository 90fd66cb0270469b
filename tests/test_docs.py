"""Every example in README and docs runs, every command parses, every file named exists."""

import re
import shlex
from pathlib import Path

import pytest
import tyro

from vitrail.cli import Verb, merged
from vitrail.method import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = set(METHODS)
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        for block in _blocks(page, "python"):
            exec(compile(block, str(page), "exec"), names)
    finally:
        for extra in set(METHODS) - known:  # an example of a new method stays in its example
            del METHODS[extra]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    for block in _blocks(page, "bash"):
        for line in block.splitlines():
            if line.startswith("vitrail "):
                tyro.cli(Verb, args=merged(shlex.split(line, comments=True)[1:]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} points to {link}"


def test_every_method_is_in_the_readme_and_on_the_methods_page() -> None:
    families = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/methods").glob("*.md"))
    for place, text in {"README": (ROOT / "README.md").read_text(encoding="utf-8"), "docs/methods": families}.items():
        missing = [name for name in METHODS if not re.search(rf"`{re.escape(name)}(?![\w+])", text)]
        assert not missing, f"{place} does not mention {missing}"
