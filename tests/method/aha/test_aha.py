"""The method: a spec string, a saved folder, and maps of any model's pictures; the model left as it was.

What `test_contract` asks of every method is asked here of this one, which needs an explainer made for each model.
"""

import copy
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import vitrail
from helpers.small import exact
from helpers.zoo import ZOO, pictures, view_of
from vitrail import scenes
from vitrail.data import dataset
from vitrail.errors import InputError
from vitrail.method import parse
from vitrail.method.aha import method
from vitrail.method.aha.explainer import Explainer
from vitrail.method.aha.method import AHA
from vitrail.model import Likeness, View, load, representation


def small_vit(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    settings = {"img_size": 64, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 6}
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, **settings).eval()


def saved(view: View, folder: Path) -> str:
    """An untrained explainer's folder."""
    torch.manual_seed(0)
    Explainer.for_view(view, channels=16, embedding=8).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def view() -> View:
    return load(small_vit())


@pytest.fixture
def folder(view: View, tmp_path: Path) -> str:
    return saved(view, tmp_path / "explainer")


# --------------------------------------------------------------------------------------------------------- spec strings


def test_specs_there_and_back() -> None:
    assert parse("aha") == AHA()
    assert parse("aha").spec == "aha"
    assert parse("aha(refine=0)").spec == "aha"
    for text, path in {
        "aha(explainer=runs/aha-1/explainer, refine=3)": "runs/aha-1/explainer",
        "aha('/tmp/my explainer', refine=3)": "/tmp/my explainer",
        "aha(explainer='../it', refine=3)": "../it",
    }.items():
        found = parse(text)
        assert found == AHA(explainer=path, refine=3)
        assert parse(found.spec) == found
    for text, words in {
        "aha(refine=-1)": "refine to be 0 to 1,000",
        "aha(refine=3, rate=0)": "rate to be above 0, up to 1",
    }.items():
        with pytest.raises(InputError, match=words):
            parse(text)


# ---------------------------------------------------------------------------------------------------- that of the demo


def test_the_demo_has_an_explainer_and_it_knows_what_matters() -> None:
    """On scenes that it did not learn from. All figures are in docs/results/aha-scenes.md; here the gap is plain."""
    held_out = [item.picture() for item in dataset("scenes:6,seed=3").items]
    curves = ["insertion(step=1296)", "deletion(step=1296)"]
    found = vitrail.evaluate("demo", held_out, ["aha", "genatt", "gradcam", "random"], curves)

    def score(spec: str) -> float:
        return found.row(curves[0], spec).value - found.row(curves[1], spec).value

    assert score("aha") > score("genatt") + 0.02
    assert score("aha") > max(score("gradcam"), score("random")) + 0.2
    assert AHA().stamp() == AHA(refine=3).stamp() != ""
    assert sum(file.stat().st_size for file in method.SHIPPED.iterdir()) < 6e6


# -------------------------------------------------------------------------------------------------------- from a folder


@pytest.mark.parametrize("refine", [0, 1])
def test_the_demo_from_a_folder(tmp_path: Path, refine: int) -> None:
    view = load("demo", device="cpu")
    spec = f"aha(explainer='{saved(view, tmp_path / 'it')}', refine={refine}{', rate=0.001' * bool(refine)})"
    shown = [scene.pil for _, scene in scenes.samples()[:2]]
    found = vitrail.explain("demo", shown, spec)
    assert found.maps.shape == (2, 144, 144)
    assert parse(found.method) == parse(spec)
    assert found.forwards == 2 + 2 * refine * 2 * method.CURVE
    assert found.backwards == 2 + 2 * refine * 2 * method.CURVE
    other = vitrail.explain("demo", shown[:1], spec, target=3)
    assert (other.maps[0] - found.maps[0]).abs().max() > 1e-4, "another class, another map"


@pytest.mark.parametrize(
    "model", ["dinov2_reg4", "siglip", "non_square", "hf_dinov2_registers", "swin_tiny", "resnet50"]
)
def test_on_many_models(model: str, tmp_path: Path) -> None:
    view, size = view_of(model), ZOO[model].size
    spec = f"aha(explainer='{saved(view, tmp_path / 'it')}')"
    images = pictures(3, size)
    found = vitrail.explain(view, images, spec)
    assert found.maps.shape == (3, *size)
    assert found.maps[0].std() > 0
    assert found.forwards == 3
    assert torch.allclose(found.logits, view.logits(images), atol=1e-4)
    alone = vitrail.explain(view, images[2:], spec)
    assert torch.allclose(found.maps[2], alone.maps[0], atol=1e-5)
    assert torch.equal(found.maps, vitrail.explain(view, images, spec).maps)


def test_a_folder_is_read_once_and_again_when_it_changes(view: View, folder: str) -> None:
    aha = AHA(folder)
    assert aha.loaded(view) is aha.loaded(view)
    other = Explainer.for_view(view, channels=24)
    other.save_pretrained(folder)
    assert aha.loaded(view).config["channels"] == 24


def test_inside_other_methods(view: View, folder: str) -> None:
    images = pictures(2, (64, 64))
    before = view.meter.forwards
    vitrail.explain(view, images, f"var(aha('{folder}'), classes=top3)")
    assert view.meter.forwards == before + 2, "several classes share the pass"
    assert vitrail.explain(view, images, f"smoothgrad(aha('{folder}'), samples=2)").maps.shape == (2, 64, 64)


# ------------------------------------------------------------------------------------------------------ as every method


@pytest.mark.parametrize("refine", [0, 1])
def test_no_grad_and_inference_mode_change_nothing(view: View, folder: str, refine: int) -> None:
    images, aha = pictures(2, (64, 64)), AHA(folder, refine)
    expected = vitrail.explain(view, images, aha).maps
    method._load.cache_clear()
    with torch.inference_mode():
        assert torch.equal(vitrail.explain(view, images.clone(), aha).maps, expected)
    with torch.no_grad():
        assert torch.equal(vitrail.explain(view, images, aha).maps, expected)


@pytest.mark.parametrize("refine", [0, 1])
def test_bf16_stays_close(view: View, folder: str, refine: int) -> None:
    images, aha = pictures(2, (64, 64)), AHA(folder, refine)
    full = vitrail.explain(view, images, aha, [1, 2]).maps
    half = vitrail.explain(view, images, aha, [1, 2], precision="bf16").maps
    assert half.dtype == torch.float32
    for a, b in zip(full, half):
        assert np.corrcoef(a.flatten(), b.flatten())[0, 1] > 0.9


@pytest.mark.parametrize("refine", [0, 1])
@pytest.mark.parametrize(("weights", "digits"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_maps_have_all_digits_of_the_model(folder: str, weights: torch.dtype, digits: torch.dtype, refine: int) -> None:
    view = load(small_vit().to(weights))
    maps = exact(AHA(folder, refine, other_model=True), view, pictures(2, (64, 64)).to(weights), [1, 2])
    assert maps.dtype == digits
    assert torch.isfinite(maps).all()


@pytest.mark.parametrize("refine", [0, 1])
def test_the_model_is_left_as_it_was(folder: str, refine: int) -> None:
    model = small_vit().train()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    calls: list[int] = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    hooks = [len(module._forward_hooks) for module in model.modules()]
    vitrail.explain(load(model, size=(64, 64)), pictures(2, (64, 64)), AHA(folder, refine))
    assert calls, "the user's own hook still runs"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(weight.requires_grad for weight in model.parameters())
    assert [name for name, weight in model.named_parameters() if weight.grad is not None] == ["head.weight"]
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), random)


def test_attribute_in_captums_manner(view: View, folder: str) -> None:
    images = pictures(2, (64, 64))
    maps = AHA(folder).attribute(view, images, target=1)
    assert torch.equal(maps, vitrail.explain(view, images, AHA(folder), 1).maps)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_without_an_explainer_it_says_what_to_do(view: View, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(method, "SHIPPED", tmp_path / "scenes_aha")
    words = r"no explainer for VisionTransformer comes with vitrail; train one with: vitrail train .* aha\(explainer='D"
    with pytest.raises(InputError, match=words):
        parse("aha").check(view)
    demo = load("demo", device="cpu")
    saved(demo, tmp_path / "scenes_aha")
    parse("aha").check(demo)
    with pytest.raises(InputError, match=words):
        vitrail.explain(view, pictures(1, (64, 64)), "aha(refine=3)")
    with pytest.raises(InputError, match="there is no folder /no/where with an explainer; train one with"):
        vitrail.explain(view, pictures(1, (64, 64)), "aha('/no/where')")


def test_another_model_is_refused(folder: str) -> None:
    other, images = load(small_vit(1)), pictures(1, (64, 64))
    with pytest.raises(InputError, match="was trained for VisionTransformer with the weights"):
        vitrail.explain(other, images, AHA(folder))
    assert vitrail.explain(other, images, AHA(folder, other_model=True)).maps.shape == (1, 64, 64)


def first(logits: Tensor) -> Tensor:
    return logits[:, 0]


def test_targets_that_are_no_class(view: View, folder: str) -> None:
    images = pictures(2, (64, 64))
    with pytest.raises(InputError, match="aha explains classes, but a function of the logits was given"):
        vitrail.explain(view, images, AHA(folder), first)
    reference = representation(view, images[:1])
    with pytest.raises(InputError, match="was trained for VisionTransformer"):
        vitrail.explain(view, images, AHA(folder), Likeness(reference))
    with pytest.raises(InputError, match="class 5000 does not exist"):
        vitrail.explain(view, images, AHA(folder), 5000)
