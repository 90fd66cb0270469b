"""Every family of models, with every method: nothing wrong, nothing crashes (slow; see docs/models_sweep.md)."""

import pytest
import timm

from sweep.catalogue import TIMM, Family, families
from sweep.judge import GROUPS, WRAPPERS, group_of, judge
from vitrail.method import METHODS, parse


def test_every_module_of_timm_is_swept() -> None:
    assert set(timm.list_modules()) == set(TIMM)


def test_every_method_is_swept() -> None:
    asked = {parse(spec).id for specs in GROUPS.values() for spec in specs}
    assert asked | {*WRAPPERS} == set(METHODS)
    assert [group_of(parse(name)) for name in ("ixg", "gradcam", "genatt", "cat", "alti", "rise")] == [
        *("gradient", "cam", "attention", "tokens", "block parts", "masking")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("family", families(), ids=lambda family: family.id)
def test_nothing_is_wrong_and_nothing_crashes(family: Family) -> None:
    assert judge(family.view).bad == {}
