"""What others keep with a view, and views that stand in for another: nothing is hidden elsewhere."""

import copy
import gc
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import vitrail
from helpers.odd import SIZE, cnn, vit
from helpers.zoo import pictures
from vitrail import Likeness, explain
from vitrail.model import View, load, representation, resolve
from vitrail.model.memo import Memo
from vitrail.perturb.canvas import embeds_patches_apart

SOURCE = Path(vitrail.__file__).parent


class Large:
    """Something that can be told to be gone."""


def test_a_value_is_made_once_for_a_key() -> None:
    memo, made = Memo(), []
    for what, key in [("a", 1), ("a", 1), ("a", 2), ("b", 1), ("a", 1)]:
        assert memo.once(what, key, lambda what=what, key=key: (made.append((what, key)), what, key)[1:]) == (what, key)
    assert made == [("a", 1), ("a", 2), ("b", 1)]
    memo.forget()
    assert memo.once("a", 1, lambda: "anew") == "anew"


def test_of_large_values_the_latest_is_kept() -> None:
    memo = Memo()
    first = weakref.ref(memo.latest("a", 1, Large, lambda _: True))
    assert memo.latest("a", 1, Large, lambda _: True) is first()

    def second() -> Large:
        gc.collect()
        assert first() is None, "gone before the next one is made"
        return Large()

    kept = memo.latest("a", 2, second, lambda _: True)
    assert memo.latest("a", 2, Large, lambda _: True) is kept
    large = memo.latest("a", 3, Large, lambda _: False)
    assert memo.latest("a", 3, Large, lambda _: False) is not large
    with pytest.raises(KeyError):
        memo.latest("a", 4, lambda: {}["nothing"], lambda _: True)


def test_what_is_kept_goes_with_the_view() -> None:
    view = load(vit(), size=SIZE)
    assert embeds_patches_apart(view, SIZE)
    assert view.memo.once("perturb/canvas: apart", SIZE, lambda: None) is True
    kept = weakref.ref(view.memo.once("test: large", (), Large))
    other = copy.deepcopy(view)
    assert other.memo is not view.memo
    assert other.memo.once("perturb/canvas: apart", SIZE, lambda: None) is None
    del view
    gc.collect()
    assert kept() is None


def test_nothing_is_kept_by_views_elsewhere() -> None:
    """No table of the package is keyed by views, and no file makes a part of a copy of one."""
    files = {file.name: file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")}
    assert {name for name, text in files.items() if "WeakKeyDictionary" in text} == {"still.py"}  # locks, by models
    assert {name for name, text in files.items() if re.search(r"(?<![\w\"'])View\((?!\w+\):)", text)} == {"names.py"}


# ----------------------------------------------------------------------------------------------- one view like another


def changed(view: View) -> View:
    """A view whose settings are all unusual."""
    view.precision, view.fused, view.compiled = "bf16", False, True
    view.name, view.classes = "own", ("a", "b", "c", "d", "e", "f")
    return view


def test_what_a_view_like_another_shares() -> None:
    view = changed(load(vit(), size=SIZE))
    other = View.of(copy.deepcopy(view.model), like=view)
    for fact in ("name", "preprocess", "classes", "precision", "fused", "meter", "_lock"):
        assert getattr(other, fact) is getattr(view, fact), fact
    for fact in ("memo", "passage", "_offers", "_layouts", "model"):
        assert getattr(other, fact) is not getattr(view, fact), fact
    assert not other.compiled, "worth it for many passes of one model alone"
    assert View.of(cnn(), like=view, classes=tuple("abcde")).classes == tuple("abcde")


def test_a_likeness_counts_and_waits_where_its_view_does() -> None:
    view, images = load(vit(), size=SIZE), pictures(1, SIZE)
    similar, _ = resolve(view, Likeness(representation(view, images)[0]), 1)
    assert similar is not view
    assert load(similar.model, size=SIZE)._lock is view._lock, "also other views of its model"
    before = view.meter.forwards
    found = explain(view, images, "saliency", Likeness(representation(view, images)[0]))
    assert found.forwards == view.meter.forwards - before == 1


def test_a_view_like_another_has_its_own_facts() -> None:
    view = load(vit(), size=SIZE)
    other = View.of(nn.Sequential(cnn(), nn.Linear(5, 6)).eval(), like=view)
    assert (view.depth, other.depth) == (2, 0)
    assert other.fingerprint() != view.fingerprint()
    with torch.no_grad():
        assert not torch.equal(other.logits(pictures(1, SIZE)), view.logits(pictures(1, SIZE)))
