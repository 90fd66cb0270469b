"""The tests that hold a method or a metric to a slow definition, or to a peer's code, say so themselves."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest


def oracle(*names: str) -> pytest.MarkDecorator:
    """Mark a test that compares these methods or metrics with a slow definition, or with somebody else's code."""
    return pytest.mark.oracle(*names)


def compared(file: Path) -> Iterator[tuple[str, str]]:
    """The names that the marks of a file give, and the test that each stands on."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "oracle":
                    yield from ((ast.literal_eval(name), node.name) for name in mark.args)
