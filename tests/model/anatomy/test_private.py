"""Names that torch keeps to itself come and go with its releases: none is used without a way round."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import vitrail
from vitrail.model import Tap
from vitrail.model.anatomy import hooks
from vitrail.model.rules.tap import is_tapped

PRIVATE = re.compile(r"\._(?!_)")
WAYS_ROUND = {("half.py", "torch._addmm_activation")}
"""Asked for with ``hasattr`` first."""


def private(file: Path) -> Iterator[tuple[str, str]]:
    """The private names of torch that a file imports or reads from its modules."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "torchvision", "timm"):
            path = f"{node.module}.{{}}".format
            yield from ((file.name, path(alias.name)) for alias in node.names if PRIVATE.search(path(alias.name)))
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.startswith(("torch.", "nn.")) and PRIVATE.search(name) and "(" not in name:
                yield file.name, name


def test_no_private_name_of_torch_is_needed() -> None:
    found = {name for file in Path(vitrail.__file__).parent.rglob("*.py") for name in private(file)}
    assert found == WAYS_ROUND


def test_a_hook_on_all_modules_is_noticed() -> None:
    assert not hooks.is_watched_everywhere()
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
    ):
        handle = register(lambda *_: None)
        assert hooks.is_watched_everywhere()
        handle.remove()
        assert not hooks.is_watched_everywhere()


def test_a_tap_is_noticed() -> None:
    assert not is_tapped()
    with Tap():
        with Tap(read=True):
            assert is_tapped()
        assert is_tapped()
        assert torch.ones(1).softmax(0) == 1
    assert not is_tapped()
