"""The command line speaks its own language: a message names a flag or a spec's parameter, never Python's keywords."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vitrail
from helpers.foreign import GAP, foreign
from vitrail import cli
from vitrail.cli.bench import Bench
from vitrail.cli.evaluate import Evaluate
from vitrail.cli.explain import Explain
from vitrail.cli.words import flags_of
from vitrail.errors import InputError, option, speaking

SOURCE = Path(vitrail.__file__).parent


def messages() -> Iterator[tuple[str, str]]:
    """Where each sentence for a user stands in the source, and the sentence."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("InputError", "note", "warn", "skip"):
                for argument in node.args:
                    yield f"{file.relative_to(SOURCE)}:{node.lineno}", said(argument)


def said(node: ast.AST) -> str:
    """The text of an expression, with gaps for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else GAP
    if isinstance(node, ast.JoinedStr):
        return "".join(said(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return said(node.left) + said(node.right)
    if isinstance(node, ast.IfExp):
        return f"{said(node.body)} {said(node.orelse)}"
    return GAP


def test_no_message_of_the_source_names_a_keyword() -> None:
    found = {place: names for place, text in messages() if (names := foreign(text))}
    assert not found, "name these by vitrail.errors.option, or as a spec has them: " + str(found)


def test_the_scan_finds_what_it_is_for() -> None:
    assert len(list(messages())) > 300
    for text in ("give masks= or boxes=", "or use precision='bf16'", "pass size=(height, width)", "allow nobody=True"):
        assert foreign(text), text
    for text in (f"{GAP} needs a step, but steps={GAP} was given", "use tis(masks=8)", "add shortcut=always"):
        assert not foreign(text), text


@pytest.mark.parametrize(
    ("verb", "name", "value", "expected"),
    [
        (Explain(images=()), "precision", "bf16", "--precision bf16"),
        (Explain(images=()), "classes", ["a cat", "a dog"], "--classes 'a cat' 'a dog'"),
        (Explain(images=()), "masks", None, "masks"),
        (Explain(images=()), "boxes", None, "boxes"),
        (Evaluate(images=()), "masks", None, "--masks"),
        (Evaluate(images=()), "boxes", None, "boxes in a column of --labels"),
        (Bench(protocol="scenes"), "batch", None, "--chunk"),
    ],
)
def test_a_setting_is_called_by_its_flag(verb: object, name: str, value: Any, expected: str) -> None:
    with speaking(flags_of(verb)):
        assert option(name, value) == expected
    assert option(name, value) == (name if value is None else f"{name}={value!r}"), "Python's own again"


def test_the_language_ends_with_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "a.png"
    vitrail.scenes.make(1).pil.save(picture)
    assert cli.main(["explain", str(picture), "--batch", "0", "--out", str(tmp_path / "out")]) == 2
    assert "--batch must be 1 or more" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"^batch must be 1 or more"):
        vitrail.explain("demo", picture, "random", batch=0)
