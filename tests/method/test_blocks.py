"""A block can be named on a model of any depth: from the front, from the end, or by a word; others are refused."""

import typing
from dataclasses import fields

import pytest
import torch
from torch import Tensor

import vitrail
from helpers.small import SIZES, build, exact
from helpers.zoo import pictures
from vitrail.method import METHODS, parse
from vitrail.method.layered import Block, block_of
from vitrail.model import View, load

LRPS = ("lrp", "start")
"""What relevance starts from, not where."""
DEPTH = SIZES["depth"]
NAMES = [(0, -DEPTH), (1, 1 - DEPTH), (2, "middle"), (2, -2)]


def block_fields() -> list[tuple[str, str]]:
    """Every parameter of every method that says which block."""
    found = []
    for name, cls in sorted(METHODS.items()):
        hints = typing.get_type_hints(cls)
        named = [field.name for field in fields(cls) if field.name in ("start", "layer") and (name, field.name) != LRPS]
        assert all(hints[field] in (Block, Block | None) for field in named)
        found += [(name, field) for field in named]
    return found


@pytest.fixture(scope="module")
def view() -> View:
    return load(build("class token"))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return pictures(2, (64, 64)).double()


def test_there_are_blocks_to_name() -> None:
    assert {("genatt", "start"), ("skipplus", "start"), ("att_ixg", "layer")} <= set(block_fields())


@pytest.mark.parametrize(("name", "field"), block_fields())
@pytest.mark.parametrize(("number", "same"), NAMES)
def test_a_block_has_more_than_one_name(
    view: View, images: Tensor, name: str, field: str, number: int, same: int | str
) -> None:
    # What att_ixg reads behind the last blocks is zero by construction, and refused.
    more = ", compat=authors, gradient=frozen" if name == "att_ixg" else ""
    one, other = (exact(f"{name}({field}={block}{more})", view, images, [1, 4]) for block in (number, same))
    assert torch.equal(one, other)
    another = exact(f"{name}({field}={(number + 1) % 3}{more})", view, images, [1, 4])
    assert not torch.equal(one, another)


@pytest.mark.parametrize(("name", "field"), block_fields())
def test_the_last_block_is_minus_one_or_refused(view: View, images: Tensor, name: str, field: str) -> None:
    names = [f"{name}({field}={block})" for block in ("last", -1, DEPTH - 1)]
    if name == "att_ixg":
        for spec in names:
            with pytest.raises(vitrail.InputError, match="where att_ixg reads none; take an earlier block"):
                exact(spec, view, images, [1, 4])
        names = [spec.replace(")", ", compat=authors, gradient=frozen)") for spec in names]
    maps = [exact(spec, view, images, [1, 4]) for spec in names]
    assert torch.equal(maps[0], maps[1])
    assert torch.equal(maps[0], maps[2])


@pytest.mark.parametrize(("name", "field"), block_fields())
@pytest.mark.parametrize("block", [DEPTH, -DEPTH - 1, 50])
def test_blocks_that_do_not_exist_are_refused(view: View, images: Tensor, name: str, field: str, block: int) -> None:
    words = rf"{field} must be 0 to 3, -4 to -1 \(counted from the end\), middle or last on .*, but {block} was given"
    with pytest.raises(vitrail.InputError, match=words):
        exact(f"{name}({field}={block})", view, images, [1, 4])


def test_other_words_are_refused(view: View) -> None:
    with pytest.raises(vitrail.InputError, match=r"must be a whole number or 'middle' or 'last', but 'lst' was given"):
        parse("genatt(start=lst)")
    with pytest.raises(vitrail.InputError, match=r"start must be 0 to 3, .* but lst was given"):
        block_of("lst", view)  # type: ignore[arg-type]


def test_the_words_survive_a_round_trip() -> None:
    assert parse("genatt(start=last)").spec == "genatt(start=last)"
    assert parse("skipplus(ixg, start=-2)").spec == "skipplus(ixg, start=-2)"
