"""VAR against its formula written out for every place, and the choice of who competes."""

import math
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitrail
from helpers.oracle import oracle
from helpers.small import close, exact, quick, served_by
from helpers.zoo import pictures, view_of
from vitrail import scenes
from vitrail.method import METHODS, parse
from vitrail.method.composition.var import competitors, share
from vitrail.model import Target, View, load, still


@pytest.fixture(scope="module")
def view() -> View:
    return load("demo", device="cpu")


@pytest.fixture(scope="module")
def images(view: View) -> Tensor:
    return view.preprocess.batch([scenes.make(3).pil, scenes.make(8, objects=2).pil])


def by_hand(heats: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    """H' of the first class at every place of (K, h, w) maps, one number at a time."""
    classes, rows, columns = heats.shape
    out = torch.zeros(rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            q = 0.0
            for t in temperatures:
                weights = [math.exp(float(heats[k, i, j]) / t) for k in range(classes)]
                q += weights[0] / sum(weights) / len(temperatures)
            if q - 1 / classes > 0:
                out[i, j] = float(heats[0, i, j]) * q
    return out


@oracle("var")
@pytest.mark.parametrize("base", ["genatt", "skipplus(decompx)", "gradcam", "plus(ixg)"])
def test_the_formula(view: View, images: Tensor, base: str) -> None:
    classes = (2, 9, 5)
    view, images = load(scenes.classifier().double(), size=view.size), images.double()
    found = exact(f"var({base}, classes=(9, 5), temperatures=(1, 0.05))", view, images, 2)
    heats = torch.stack([exact(base, view, images, c) for c in classes])
    for i in range(2):
        expected = by_hand(heats[:, i], (1, 0.05))
        assert close(found[i], expected)
        assert (expected == 0).any(), "somewhere another class is ahead"


def test_one_forward_serves_all_classes(view: View, images: Tensor) -> None:
    found = vitrail.explain(view, images, "var(genatt, classes=top4)")
    assert found.forwards == 2
    assert found.backwards == 4 * 2


@pytest.mark.parametrize(("base", "passes"), [("lrp", 1), ("lrp(wide=False)", 1), ("ig(steps=6)", 6 + 1)])
def test_classes_share_the_passes_of_a_cnn(base: str, passes: int) -> None:
    """One pass of LRP serves all classes, and one way of IG; it asks for the clean logits besides."""
    view = view_of("tf_efficientnet_lite0")
    images = pictures(2, view.size)
    found = vitrail.explain(view, images, f"var({base}, classes=(4, 5, 6))", 2)
    assert found.forwards == 2 * passes
    heats = torch.stack([vitrail.explain(view, images, base, c).maps for c in (2, 4, 5, 6)])
    expected = share(heats, torch.ones(4, 2, dtype=torch.bool), (1.0, 5.0, 100.0), "none")
    torch.testing.assert_close(found.maps, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("base", ["saliency", "ixg", "genatt", "ig(steps=2)"])
def test_classes_share_the_noisy_copies(view: View, images: Tensor, base: str) -> None:
    smooth = f"smoothgrad({base}, samples=3)"
    found = vitrail.explain(view, images, f"var({smooth}, classes=(9, 5))", 2)
    assert found.forwards == 2 * (3 * (2 if base.startswith("ig") else 1) + 1), "once each, and the clean images"
    assert found.backwards == 3 * (found.forwards - 2)
    heats = torch.stack([vitrail.explain(view, images, smooth, c).maps for c in (2, 9, 5)])
    expected = share(heats, torch.ones(3, 2, dtype=torch.bool), (1.0, 5.0, 100.0), "none")
    torch.testing.assert_close(found.maps, expected)


@pytest.mark.parametrize(("base", "passes"), [("t_attr", 2), ("lrp", 1), ("skipplus(lrp)", 1)])
def test_classes_share_the_pass_that_carries_relevance(view: View, images: Tensor, base: str, passes: int) -> None:
    found = vitrail.explain(view, images, f"var({base}, classes=(9, 5))", 2)
    assert found.forwards == 2 * passes
    heats = torch.stack([vitrail.explain(view, images, base, c).maps for c in (2, 9, 5)])
    expected = share(heats, torch.ones(3, 2, dtype=torch.bool), (1.0, 5.0, 100.0), "none")
    torch.testing.assert_close(found.maps, expected)


@pytest.mark.parametrize("base", ["bt_h(steps=6)", "t_attn(steps=6)"])
@pytest.mark.parametrize("most", [2**32, 300_000, 0])
def test_one_way_serves_all_classes(
    view: View, images: Tensor, base: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The passes on the way from the mean colour to the image do not depend on the class; if they are too large to
    be kept they are made again."""
    monkeypatch.setattr(still, "MOST_RECALLED", most)
    found = vitrail.explain(view, images, f"var({base}, classes=(9, 5))", 2)
    assert found.forwards == 2 * 6 if most == 2**32 else found.forwards > 2 * 6
    heats = torch.stack([vitrail.explain(view, images, base, c).maps for c in (2, 9, 5)])
    expected = share(heats, torch.ones(3, 2, dtype=torch.bool), (1.0, 5.0, 100.0), "none")
    torch.testing.assert_close(found.maps, expected)


def exactly(heats: Tensor, temperatures: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """What `share` is to give for the first of (K, places) maps, and where it is to keep it, in sixty digits."""
    with localcontext() as context:
        context.prec = 60
        values, kept = [], []
        for place in heats.T.tolist():
            exponents = [[(Decimal(h) / Decimal(t)).exp() for h in place] for t in temperatures]
            q = sum((e[0] / sum(e) for e in exponents), Decimal(0)) / len(temperatures)
            kept.append(q * len(place) > 1)
            values.append(float(Decimal(place[0]) * q) if kept[-1] else 0.0)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_small_maps_keep_what_large_ones_keep(classes: int, dtype: torch.dtype) -> None:
    """In float32 a share near 1 / K loses all digits of its difference to 1 / K where maps are small."""
    heats = torch.randn(classes, 1, 8, 10, generator=torch.Generator().manual_seed(classes)).to(dtype)
    everybody, temperatures = torch.ones(classes, 1, dtype=torch.bool), (1.0, 5.0, 100.0)
    limit = (heats[0] > heats.mean(0)).flatten()
    for exponent in (-12, -9, -7, -6, -3, 0, 3):
        scaled = heats * 10.0**exponent
        found = share(scaled, everybody, temperatures, "none")[0].flatten()
        expected, kept = exactly(scaled[:, 0].flatten(1), temperatures)
        assert torch.equal(found != 0, kept), f"maps of 1e{exponent}"
        assert found.dtype == dtype
        assert torch.allclose(found.double(), expected, rtol=1e-6 if dtype == torch.float32 else 1e-13, atol=0)
        if exponent <= -6:
            assert torch.equal(kept, limit), "the limit: what lies above the mean over the classes"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "base"),
    [
        ("tf_efficientnet_lite0", "guided_gradcam(reduce=sum)"),
        ("tf_efficientnet_lite0", "lrp(wide=False)"),
        ("vit_tiny_patch16_224", "inflow"),
        ("vit_tiny_patch16_224", "t_attr"),
    ],
)
def test_real_maps_lose_no_evidence(assets: Path, model: str, base: str) -> None:
    view = load(f"timm/{model}", checkpoint=assets / f"weights/{model}.safetensors", device="cpu")
    picture = sorted((assets / "data/imagenet_val/images").iterdir())[100]
    heats = torch.stack([vitrail.explain(view, picture, base, c).maps for c in (207, 281, 3, 950)])
    found = share(heats, torch.ones(4, 1, dtype=torch.bool), (1.0, 5.0, 100.0), "none")[0].flatten()
    places = torch.arange(0, len(found), max(1, len(found) // 200))
    expected, _ = exactly(heats[:, 0].flatten(1)[:, places], (1.0, 5.0, 100.0))
    assert torch.equal(found[places] != 0, expected != 0)
    assert (expected != 0).any()
    assert torch.allclose(found[places].double(), expected, rtol=1e-6, atol=0)


CLASSLESS = sorted(name for name in METHODS if name != "aha" and not parse(name).tells_classes())
MADE_OF_THEM = (
    *("rollout(alti)", "plus(globenc)", "skipplus(raw_attention)", "smoothgrad(eigencam, samples=2)"),
    *(
        "rollout(genatt)",
        "plus(decompx)",
        "skipplus(ixg, start=1)",
        "smoothgrad(ixg, samples=2)",
        "var(genatt, classes=(1, 2))",
    ),
)


@pytest.mark.parametrize("name", [*sorted(set(METHODS) - {"aha"}), *MADE_OF_THEM])
def test_methods_say_whether_they_tell_classes_apart(name: str) -> None:
    """By their maps of two classes: the same where they say so, others everywhere else."""
    method = quick(name)
    if name == "less_is_more":
        method = parse("less_is_more(regions=(1, 4))")  # its order of four regions is often the same by chance
    view = served_by(method)
    images = pictures(3, view.size)
    first, second = (vitrail.explain(view, images, method, c).maps for c in (1, 4))
    assert torch.equal(first, second) != method.tells_classes()


@pytest.mark.parametrize("base", [*CLASSLESS, "rollout(alti)", "plus(globenc)", "skipplus(raw_attention)"])
def test_bases_without_classes_are_refused_before_the_work(base: str) -> None:
    with pytest.raises(vitrail.InputError, match=r"the same map for every class; use .* by itself, or var over"):
        parse(f"var({base})")


def test_classes_by_name(view: View, images: Tensor) -> None:
    names = view.classes
    assert names is not None
    by_name = vitrail.explain(view, images, f"var(genatt, classes=({names[9]!r}, 5))", 2)
    assert parse(by_name.method) == parse(f"var(genatt, classes=({names[9]}, 5))"), "the spec says it again"
    assert torch.equal(by_name.maps, vitrail.explain(view, images, "var(genatt, classes=(9, 5))", 2).maps)


@pytest.mark.parametrize("classes", ["top3+worst", "best_worst", "present", "(3, whale)"])
def test_who_else_is_explained_does_not_matter(view: View, classes: str) -> None:
    pictures_ = [scenes.make(seed).pil for seed in (3, 8, 11)]
    target = Target(torch.tensor([2, 5, 9]), rivals=torch.tensor([[5, -1], [-1, -1], [2, 3]]))
    one, two, all_three = (
        vitrail.explain(view, pictures_, f"var(genatt, classes={classes})", target, batch=size).maps
        for size in (1, 2, 3)
    )
    scale = float(all_three.abs().max())
    assert scale > 0
    torch.testing.assert_close(one, all_three, rtol=0, atol=1e-5 * scale)
    torch.testing.assert_close(two, all_three, rtol=0, atol=1e-5 * scale)


def test_huge_maps_are_no_overflow() -> None:
    heats = torch.tensor([[1e6, -1e6, 3e4], [-1e6, 1e6, 3e4 + 1]])[:, None, None]
    found = share(heats, torch.ones(2, 1, dtype=torch.bool), (1.0, 5.0), "none")
    assert found.flatten().tolist() == [1e6, 0.0, 0.0]


def test_who_competes() -> None:
    logits = torch.tensor([[9.0, 1, 2, 3, 4, 5], [0.0, 5, 4, 3, 2, 1]])
    target = torch.tensor([0, 5])
    assert competitors("top3+worst", logits, target).tolist() == [[0, 5, 4, 1, -1], [5, 1, 2, 3, 0]]
    assert competitors("top2", logits, target).tolist() == [[0, 5, -1], [5, 1, 2]]
    assert competitors("best_worst", logits, target).tolist() == [[0, 1, -1], [5, 1, 0]]
    shown = torch.tensor([[4, 0, 4], [-1, 2, -1]])
    assert competitors("present", logits, target, shown).tolist() == [[0, 4], [5, 2]]
    assert competitors("present", logits, target, shown[:, :0]).tolist() == [[0], [5]]
    assert competitors((3, 3, 1), logits, target).tolist() == [[0, 3, 1], [5, 3, 1]]
    assert competitors("top99", logits, target).shape == (2, 6)


def test_an_image_with_fewer_rivals_is_as_if_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    heats = torch.randn(3, 2, 4, 5, generator=generator)
    takes_part = torch.tensor([[True, True], [True, True], [True, False]])
    together = share(heats, takes_part, (1.0,), "none")
    alone = share(heats[:2, 1:], torch.ones(2, 1, dtype=torch.bool), (1.0,), "none")
    assert torch.equal(together[1], alone[0])


def test_a_target_alone_keeps_its_map() -> None:
    heats = torch.randn(2, 1, 4, 5, generator=torch.Generator().manual_seed(0))
    alone = torch.tensor([[True], [False]])
    assert torch.equal(share(heats, alone, (1.0, 5.0), "none")[0], heats[0, 0])
    scaled = share(heats, alone, (1.0, 5.0), "joint_absmax")[0]
    assert torch.equal(scaled, heats[0, 0] / heats[0, 0].abs().max())


def test_the_classes_that_a_picture_shows(view: View, images: Tensor) -> None:
    rivals = torch.tensor([[9, -1, 5], [-1, -1, -1]])
    found = vitrail.explain(view, images, "var(genatt, classes=present)", Target(torch.tensor([2, 3]), rivals=rivals))
    compared = vitrail.explain(view, images[:1], "var(genatt, classes=(9, 5))", 2)
    base = vitrail.explain(view, images[1:], "genatt", 3)
    assert torch.allclose(found.maps[0], compared.maps[0], atol=1e-7)
    assert torch.allclose(found.maps[1], base.maps[0], atol=1e-7), "nothing else is there to compare with"
    one_by_one = vitrail.explain(
        view, images, "var(genatt, classes=present)", Target(torch.tensor([2, 3]), rivals=rivals), batch=1
    )
    assert torch.allclose(found.maps, one_by_one.maps, atol=1e-7)


def test_what_the_pictures_show_must_be_known(view: View, images: Tensor) -> None:
    for target in (None, 3, Target(torch.tensor([2, 3]))):
        with pytest.raises(vitrail.InputError, match=r"must be told which other classes .* give a target with rivals"):
            vitrail.explain(view, images, "var(genatt, classes=present)", target)


def test_normalise_makes_the_scale_irrelevant() -> None:
    generator = torch.Generator().manual_seed(0)
    heats, all_take_part = torch.randn(3, 1, 6, 6, generator=generator), torch.ones(3, 1, dtype=torch.bool)
    for normalise in ("joint_absmax", "per_class_absmax"):
        small, large = (share(k * heats, all_take_part, (0.1,), normalise) for k in (1e-4, 1e4))
        assert torch.allclose(small, large, rtol=1e-4)
    literal_small, literal_large = (share(k * heats, all_take_part, (0.1,), "none") / k for k in (1e-4, 1e4))
    assert not torch.allclose(literal_small, literal_large, rtol=1e-2), "the paper's own form depends on the scale"


def test_zero_maps_stay_zero() -> None:
    assert share(torch.zeros(3, 1, 2, 2), torch.ones(3, 1, dtype=torch.bool), (1.0,), "joint_absmax").abs().sum() == 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("var(classes=top)", "must be like top5"),
        ("var(classes=(3, 99))", "0 to 13"),
        ("var(classes=(3, walf))", "no class called 'walf'; did you mean"),
        ("var(classes=all_targets)", "depend on which images are explained together; name the classes"),
        ("var(temperatures=(0,))", "temperatures to be above 0"),
    ],
)
def test_nonsense_is_refused(view: View, images: Tensor, spec: str, words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        vitrail.explain(view, images, spec)


def test_a_function_of_the_logits_has_no_rivals(view: View, images: Tensor) -> None:
    with pytest.raises(vitrail.InputError, match="must be a class"):
        vitrail.explain(view, images, "var", target=lambda logits: logits[:, 0])
