"""Shares become numbers of cells in one place, which does not lose one to the rounding of a product."""

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from vitrail.metric.case import Path as Way
from vitrail.metric.faithfulness.pic import random_mask
from vitrail.perturb import counted

ALLOWED = {
    "method/attention/rollout.py": "the authors' own cut, of nine tenths of a matrix",
    "model/inputs.py": "sizes of pictures, with a tolerance of their own",
    "scenes/backgrounds.py": "a random length",
}
"""Where a product is cut to a whole number on purpose."""


def test_no_product_is_cut_to_a_whole_number_elsewhere() -> None:
    """``int(99 / 196 * 196)`` is 98: whoever needs a number of cells asks `counted`, or rounds."""
    root = Path(vitrail.__file__).parent
    found = {}
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
                products = [n for one in node.args for n in ast.walk(one) if isinstance(n, ast.BinOp)]
                if any(isinstance(n.op, ast.Mult) for n in products):
                    found[str(file.relative_to(root))] = ast.unparse(node)
    assert set(found) == set(ALLOWED), found


@pytest.mark.parametrize("cells", [9, 49, 144, 196, 576, 1024, 224 * 224, 384 * 384])
def test_every_number_of_cells_can_be_said(cells: int) -> None:
    numbers = range(cells + 1) if cells < 2000 else range(0, cells + 1, 97)
    assert [counted(number / cells, cells) for number in numbers] == list(numbers)
    assert Way(True, None, shares=tuple(n / cells for n in numbers)).counts(cells).tolist() == list(numbers)


def test_the_pixels_of_a_random_mask() -> None:
    assert [int(random_mask((7, 7), seed=0, share=n / 49).sum()) for n in range(50)] == list(range(50))


@given(share=st.fractions(0, 1, max_denominator=10**4), cells=st.integers(1, 10**6))
def test_it_is_the_exact_product_rounded_down(share: Fraction, cells: int) -> None:
    assert counted(float(share), cells) == int(np.floor_divide(share.numerator * cells, share.denominator))
