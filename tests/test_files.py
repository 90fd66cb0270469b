"""Files appear whole or not at all, under names that no two things share."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.files import slug, write_whole


def test_a_written_file_is_readable_like_any_other(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write_whole(tmp_path / "a", lambda file: file.write(b"new"))
    finally:
        os.umask(mask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    write_whole(tmp_path / "a", lambda file: file.write(b"newer"))
    assert (tmp_path / "a").read_bytes() == b"newer"
    with pytest.raises(ZeroDivisionError):
        write_whole(tmp_path / "a", lambda file: (file.write(b"half"), 1 / 0))
    assert (tmp_path / "a").read_bytes() == b"newer", "the old file stays until the new one is whole"


ALIKE = [
    *("a/b", "a-b", "a(b)", "a b", "ab", "A/B", "a_b", "a.b", "a.b.", "a(b", "a(b(c))", "a(b(c), d=1)", "a(b(c, d=1))"),
    *("shark", "Shark", "SHARK", "tabby cat", "tabby-cat", "a(c=True)", "a(c=true)", "a(c=1.)", "a(c=1)", "a(c=-1)"),
    *("a(b=(1, 2))", "a(b=(1, -2))", "a(b='x/../y')", "", " ", "-", ".", "..", "x" * 60, "x" * 61, "X" * 60, "\udcff"),
    *("a(5ab640fa)", "a-5ab640fa", "a.", "caf\u00e9", "cafe\u0301", "a\0b", "a\nb"),
]


def assert_told_apart(texts: list[str], **how: object) -> None:
    names = [slug(text, **how) for text in texts]
    assert len({name.casefold() for name in names}) == len(texts), "also where shark and Shark are one folder"
    for name in names:
        assert not set(name) & set('/\\:*?"<>|\0\n ()')
        assert name.strip(" .") not in ("", "con", "nul")
        assert len(os.fsencode(name)) < 255


@pytest.mark.parametrize("how", [{}, {"stamped": True}, {"words": True, "longest": 40}], ids=str)
def test_names_tell_texts_apart(how: dict[str, object]) -> None:
    assert_told_apart(ALIKE, **how)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("aAb1-/ ().=,'\u00e9", max_size=6), unique=True))
def test_names_tell_any_texts_apart(texts: list[str]) -> None:
    assert_told_apart(texts)
    assert_told_apart(texts, words=True)
    assert_told_apart(texts, words=True, longest=3)


def test_names_are_legible_where_words_tell_enough() -> None:
    assert slug("gradcam") == "gradcam"
    assert slug("ig(steps=20)") == "ig-steps=20"
    assert slug("gradcam++(relu=False)") == "gradcam++-relu=False"
    assert slug("smoothgrad(random, seed=1)") == "smoothgrad-random,seed=1"
    assert slug("tabby cat", words=True) == "tabby-cat"


def test_the_folders_of_stored_runs_keep_their_names() -> None:
    assert slug("ig(steps=20)", stamped=True) == "ig-steps=20-5a7a351a"
    assert slug("aha(explainer='my folder/x')", stamped=True) == "aha-explainer=-myfolder-x-bc1bf3c5"
    assert slug("filter", stamped=True) == "filter-dfc3376b"
    assert slug("x" * 90, stamped=True) == "x" * 60 + "-efdfd9ee"
