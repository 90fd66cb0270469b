"""One rule of signs a method: what it says of itself is what its maps are, in every composition too."""

import inspect

import pytest
import timm
import torch

import vitrail
from helpers.small import quick, small_vit
from helpers.zoo import pictures
from vitrail.method import METHODS, parse
from vitrail.method.layered import Layered, Mixing
from vitrail.model import load

WITHOUT_SIDES = {"eigencam": "a principal component has no sign of its own: values below zero are not against a class"}

layered = sorted(name for name, cls in METHODS.items() if issubclass(cls, Layered) and not inspect.isabstract(cls))
mixing = [name for name in layered if issubclass(METHODS[name], Mixing)]

SPECS = [
    *sorted(set(METHODS) - {"aha", "random"}),
    *(f"plus({name})" for name in layered),
    *(f"skipplus({name})" for name in layered),
    *(f"rollout({name})" for name in mixing),
    *(f"{name}(relu={relu})" for name in ("gradcam", "gradcam++", "hirescam", "attcam") for relu in (True, False)),
    *(f"{name}(channels=4, relu={relu})" for name in ("scorecam", "ablationcam") for relu in (True, False)),
    *(f"{name}(reduce={how})" for name in ("saliency", "gbp", "guided_gradcam") for how in ("abs", "sum", "norm2")),
    *(f"plus(saliency(reduce={how}))" for how in ("abs", "norm2")),
    *(f"smoothgrad({base}, samples=2)" for base in ("saliency", "ixg", "gradcam(relu=False)")),
    *(f"var({base})" for base in ("ixg", "genatt", "skipplus(decompx)")),
]


def test_every_method_keeps_its_own_rule() -> None:
    """A method that calls its maps unsigned never gives a negative value; one that calls them signed does."""
    images, wrong = pictures(3, (64, 64)), {}
    vit = load(small_vit(depth=6))  # of fewer blocks the later half of att_ixg is zero by construction, and refused
    cnn = load(timm.create_model("resnet18", num_classes=6).eval())
    for spec in SPECS:
        method = quick(spec)
        if method.id in WITHOUT_SIDES:
            assert not method.signed
            continue
        try:
            found = vitrail.explain(vit, images, method, target=[0, 1, 2]).maps
        except vitrail.InputError:  # for models with ReLUs, or of convolutions
            found = vitrail.explain(cnn, images, method, target=[0, 1, 2]).maps
        below = bool((found < 0).any())
        if below != method.signed:
            wrong[spec] = (
                f"says signed={method.signed}, least {float(found.min()):.3g} of {float(found.abs().max()):.3g}"
            )
    assert not wrong


def test_methods_without_sides_are_few_and_say_why() -> None:
    assert set(WITHOUT_SIDES) <= set(METHODS)
    for name, reason in WITHOUT_SIDES.items():
        print(f"{name}: {reason}")
        assert reason


@pytest.mark.parametrize("spec", ["decompx", "ig(steps=2)", "gradcam", "plus(gradcam)", "saliency(reduce=sum)"])
def test_drawing_follows_the_rule_whatever_the_numbers(spec: str) -> None:
    """A signed map without a negative value stays red on the picture; an unsigned one stays dark to bright."""
    found = vitrail.explain("demo", pictures(1, (144, 144)), spec)
    for maps in (found.maps.abs(), -found.maps.abs(), found.maps):
        changed = vitrail.Explanation(**{**vars(found), "maps": maps})
        assert changed.is_signed() == parse(spec).signed
        assert changed.is_signed("heat") is False
        assert changed.is_signed("signed") is True
    with pytest.raises(vitrail.InputError, match="'auto', 'signed' or 'heat', but 'red' was given"):
        found.is_signed("red")  # type: ignore[arg-type]


def test_a_method_that_is_not_here_is_drawn_by_all_its_maps() -> None:
    found = vitrail.explain("demo", pictures(2, (144, 144)), "gradcam")
    earlier = {"method": "gone(x=1)", "signed": None, "enlargement": None}  # files of schema 1 do not say these two
    stored = vitrail.Explanation(**{**vars(found), **earlier})
    assert not stored.is_signed()
    maps = stored.maps.clone()
    maps[1, 0, 0] = -1
    assert vitrail.Explanation(**{**vars(stored), "maps": maps, **earlier}).is_signed()
    assert stored.upsample().shape == (2, 144, 144)
    assert torch.equal(stored.upsample(), found.upsample())
