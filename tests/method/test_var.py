"""VAR against its formula written out for every place, and the choice of who competes."""

import math

import pytest
import torch
from torch import Tensor

import vitrail
from small import close, exact
from vitrail import scenes
from vitrail.method.var import competitors, share
from vitrail.model import Target, View, load, still
from zoo import pictures, view_of


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


@pytest.mark.parametrize(("base", "passes"), [("t_attr", 2), ("lrp", 1), ("skipplus(lrp(to=tokens))", 1)])
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


def test_who_competes() -> None:
    logits = torch.tensor([[9.0, 1, 2, 3, 4, 5], [0.0, 5, 4, 3, 2, 1]])
    target = torch.tensor([0, 5])
    assert competitors("top3+worst", logits, target).tolist() == [[0, 5, 4, 1, -1], [5, 1, 2, 3, 0]]
    assert competitors("top2", logits, target).tolist() == [[0, 5, -1], [5, 1, 2]]
    assert competitors("best_worst", logits, target).tolist() == [[0, 1, -1], [5, 1, 0]]
    assert competitors("all_targets", logits, target).tolist() == [[0, 5], [5, 0]]
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
        with pytest.raises(
            vitrail.InputError, match=r"must be told which other classes .* give target=vitrail.model.T"
        ):
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
        ("var(temperatures=(0,))", "positive"),
    ],
)
def test_nonsense_is_refused(view: View, images: Tensor, spec: str, words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        vitrail.explain(view, images, spec)


def test_a_function_of_the_logits_has_no_rivals(view: View, images: Tensor) -> None:
    with pytest.raises(vitrail.InputError, match="must be a class"):
        vitrail.explain(view, images, "var", target=lambda logits: logits[:, 0])
