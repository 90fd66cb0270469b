"""The explainer: what it sees, what it answers, and its folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.oracle import oracle
from helpers.small import close
from helpers.zoo import ZOO, pictures, view_of
from vitrail.errors import InputError
from vitrail.method.aha import decoder, explainer, features
from vitrail.method.aha.explainer import Explainer
from vitrail.model import FROZEN, View, load


def small_view(seed: int = 0, **options: Any) -> View:
    torch.manual_seed(seed)
    settings = {"img_size": 64, "embed_dim": 48, "depth": 6, "num_heads": 3, "num_classes": 6}
    return load(timm.create_model("vit_tiny_patch16_224", pretrained=False, **(settings | options)))


def made(view: View, seed: int = 0, **options: Any) -> Explainer:
    torch.manual_seed(seed)
    return Explainer.for_view(view, **({"channels": 16, "embedding": 8} | options)).eval()


# ------------------------------------------------------------------------------------------------------- what it sees


@pytest.mark.parametrize(
    ("model", "grids"),
    [
        ("vit_tiny_patch16_224", [(14, 14)] * 4),
        ("dinov2_reg4", [(8, 8)] * 3),
        ("non_square", [(14, 20)] * 3),
        ("hf_vit", [(14, 14)] * 3),
        ("torchvision_vit_b_32", [(7, 7)] * 3),
        ("swin_tiny", [(56, 56), (28, 28), (14, 14), (7, 7)]),
        ("resnet50", [(32, 32), (16, 16), (8, 8), (4, 4)]),
        ("convnext_tiny", [(32, 32), (16, 16), (8, 8), (4, 4)]),
    ],
)
def test_one_pass_gives_logits_features_and_a_map(model: str, grids: list[tuple[int, int]]) -> None:
    view, size = view_of(model), ZOO[model].size
    own, images = made(view), pictures(2, size)
    before = view.meter.forwards
    sight = own.encode(view, images)
    logits, seen = sight.logits, sight.features(torch.tensor([0, 1]))
    assert view.meter.forwards == before + 2, "one forward pass an image"
    assert torch.allclose(logits, view.logits(images), atol=1e-4)
    assert [tuple(one.shape[2:]) for one in seen] == grids
    assert not any(one.requires_grad for one in (logits, *seen))
    maps = own(seen, images, torch.tensor([0, 1]))
    assert maps.shape == (2, *size)
    assert 0 <= maps.min() < maps.max() <= 1
    alone = own.explain(view, images[1:], torch.tensor([1]))
    assert torch.allclose(maps[1:], alone, atol=1e-5), "place in the batch"


def test_tokens_are_those_behind_the_blocks_without_the_prefix() -> None:
    view = small_view()
    images = pictures(2, (64, 64))
    assert features.depths(12) == [3, 6, 9, 12]
    assert features.depths(24) == [6, 12, 18, 24]
    assert features.depths(2) == [1, 2]
    found = features.look(view, images).features(torch.tensor([0, 1]))
    outputs: list[Tensor] = []
    handles = [block.register_forward_hook(lambda *call: outputs.append(call[2])) for block in view.model.blocks]
    view.logits(images)
    for handle in handles:
        handle.remove()
    for seen, behind in zip(found, (2, 3, 5, 6)):
        tokens = outputs[behind - 1][:, 1:]
        tokens = (tokens - tokens.mean(-1, keepdim=True)) / (tokens.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        assert torch.allclose(seen, tokens.transpose(1, 2).unflatten(2, (4, 4)), atol=1e-4)


def test_the_evidence_of_a_transformer() -> None:
    """DecompX's shares, of channels and of tokens, with a mean square of 1."""
    view = small_view()
    images, classes = pictures(2, (64, 64)), torch.tensor([3, 1])
    found = features.look(view, images, evidence=True).features(classes)
    trace = view.trace(images, rule=FROZEN)
    slopes = torch.autograd.grad(trace.logits[[0, 1], classes].sum(), trace.states)
    states = [state.detach() for state in trace.states]

    def level(x: Tensor) -> Tensor:
        patches = (x[:, :, None] if x.ndim == 2 else x)[:, 1:]
        mean = patches.square().sum((1, 2), keepdim=True) / patches[0].numel()
        return (patches / mean.sqrt()).transpose(1, 2).unflatten(2, (4, 4))

    products = [state * slope for state, slope in zip(states, slopes)]
    products[6] = states[6] * slopes[6].mean(1, keepdim=True)
    between = [level(products[block].sum(-1)) for block in (3, 4, 5)]  # the blocks of the later half
    width = states[0].shape[-1]
    assert [one.shape[1] for one in found] == [width + 3] + [2 * width + 4] * 3
    for place, behind in zip(found, (2, 3, 5, 6)):
        told = [] if behind == 2 else [level(products[behind]), level(products[behind].sum(-1))]
        assert torch.allclose(place[:, width:], torch.cat([*told, *between], 1), atol=1e-4)


def test_the_evidence_of_a_network_of_convolutions() -> None:
    """At the last place the gradient is the head's weight: Grad-CAM before its ReLU. The finest place has none."""
    shared = load(Shared(), size=(32, 32))
    images, classes = pictures(2, (32, 32)), torch.tensor([3, 1])
    fine, coarse = features.look(shared, images, evidence=True).features(classes)
    model = shared.model
    maps = F.relu(model.second(F.relu(model.first(images)))).detach()
    cam = torch.einsum("bchw,bc->bhw", maps, model.answer.weight[classes].detach())
    assert fine.shape[1] == 8
    assert coarse.shape[1] == 12 + 12 + 1
    assert torch.allclose(coarse[:, -1], cam / cam.square().mean((1, 2), keepdim=True).sqrt(), atol=1e-4)
    with pytest.raises(InputError, match="evidence is the target's own"):
        made(shared, encoder=small_view(num_classes=0), evidence=True)


class Flat(nn.Module):
    """A classifier without a feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(3 * 32 * 32, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.answer(images.flatten(1))


class Shared(nn.Module):
    """One ReLU for all resolutions: which of its calls is meant must not be mistaken."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1)
        self.relu, self.answer = nn.ReLU(), nn.Linear(12, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.answer(self.relu(self.second(self.relu(self.first(images)))).mean((2, 3)))


def test_unusual_models() -> None:
    images = pictures(2, (32, 32))
    flat = load(Flat(), size=(32, 32))
    assert made(flat).config["widths"] == []
    assert made(flat).explain(flat, images, torch.tensor([0, 1])).shape == (2, 32, 32)
    with pytest.raises(InputError, match="shows no feature maps; keep the image branch"):
        made(flat, image_branch=False)
    shared = load(Shared(), size=(32, 32))
    seen = features.look(shared, images).features(torch.tensor([0, 1]))
    assert [tuple(one.shape[1:]) for one in seen] == [(8, 16, 16), (12, 8, 8)]
    assert made(shared).explain(shared, images, torch.tensor([0, 1])).shape == (2, 32, 32)


def test_levels() -> None:
    assert decoder.level_sizes([(12, 12)] * 4, (144, 144)) == [(36, 36), (18, 18), (9, 9), (5, 5)]
    assert decoder.level_sizes([(28, 28), (14, 14)], (224, 224)) == [(56, 56), (14, 14)]
    assert decoder.level_sizes([(16, 16), (8, 8)], (32, 32)) == [(16, 16), (8, 8)]
    assert decoder.level_sizes([], (32, 48)) == [(8, 12)]


@oracle("aha")
def test_the_decoder_is_what_its_page_says() -> None:
    """In float64, from the stored numbers, with features and embedding side by side as the paper has them."""
    view = load(small_view().model.double())
    own, images, classes = made(view).double(), pictures(2, (64, 64)).double(), torch.tensor([1, 4])
    torch.nn.init.normal_(own.decoder.embedding.weight)
    stored = own.state_dict()
    seen = own.encode(view, images).features(classes)

    def conv(x: Tensor, name: str, **options: int) -> Tensor:
        return F.conv2d(x, stored[f"decoder.{name}.weight"], stored.get(f"decoder.{name}.bias"), **options)

    def unit(x: Tensor, name: str) -> Tensor:
        return x + conv(F.gelu(conv(F.gelu(x), f"{name}.first", padding=1)), f"{name}.second", padding=1)

    def norm(x: Tensor, name: str, groups: int) -> Tensor:
        parts = x.reshape(len(x), groups, -1)
        even = (parts - parts.mean(2, keepdim=True)) / (parts.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
        weight, bias = (stored[f"decoder.{name}.{kind}"][:, None, None] for kind in ("weight", "bias"))
        return even.view_as(x) * weight + bias

    def sized(x: Tensor, side: int) -> Tensor:
        return F.interpolate(x, (side, side), mode="bilinear", align_corners=False)

    fused = None
    for level, side in ((3, 2), (2, 4), (1, 8), (0, 16)):
        about = stored["decoder.embedding.weight"][classes][:, :, None, None].expand(-1, -1, 4, 4)
        weight = torch.cat(
            [
                stored[f"decoder.project.{level}.weight"],
                stored[f"decoder.condition.{level}.weight"][..., None, None],
            ],
            1,
        )
        bias = stored[f"decoder.project.{level}.bias"]
        found = sized(F.gelu(F.conv2d(torch.cat([seen[level], about], 1), weight, bias)), side)
        if level == 0:
            first = F.gelu(conv(images, "branch.first", stride=2, padding=1))
            found = found + F.gelu(conv(first, "branch.second", stride=2, padding=1))
            fused = conv(fused, "narrow.0")
        if fused is not None:
            found = unit(found, f"enter.{level}") + sized(fused, side)
        fused = unit(found, f"leave.{level}")
    x = conv(conv(fused, "head.0", padding=1, groups=8), "head.1")
    x = conv(F.gelu(norm(x, "head.2", 8)), "head.4", padding=1)
    x = conv(F.gelu(norm(x, "head.5", 4)), "head.7")
    expected = 1 / (1 + (-sized(x, 64)[:, 0]).exp())
    assert close(own.explain(view, images, classes), expected)


def test_the_class_and_the_picture_matter() -> None:
    view = small_view()
    images = pictures(2, (64, 64))
    own = made(view)
    maps = own.explain(view, images, torch.tensor([2, 3]))
    assert (maps - own.explain(view, images, torch.tensor([4, 3])))[0].abs().max() > 1e-3
    assert torch.equal(maps[1], own.explain(view, images, torch.tensor([4, 3]))[1])
    blind = made(view, image_branch=False)
    classes = torch.tensor([2, 3])
    seen = blind.encode(view, images).features(classes)
    assert torch.equal(blind(seen, images, classes), blind(seen, images.flip(3), classes))
    seen = own.encode(view, images).features(classes)
    assert not torch.allclose(own(seen, images, classes), own(seen, images.flip(3), classes))


def test_only_the_decoder_is_trained_and_it_is_small() -> None:
    demo = load("demo")
    for channels in (None, 128):
        own = Explainer.for_view(demo, channels=channels)
        assert sum(weight.numel() for weight in own.parameters()) < 3e6
    images = pictures(2, demo.size)
    maps = own(own.encode(demo, images).features(torch.tensor([0, 1])), images, torch.tensor([0, 1]))
    maps.sum().backward()
    assert all(weight.grad is not None for weight in own.parameters())
    assert all(weight.grad is None for weight in demo.model.parameters())


# ---------------------------------------------------------------------------------------------------- another encoder


def test_another_encoder_is_frozen_and_not_saved(tmp_path: Path) -> None:
    view, other = small_view(), small_view(1, num_classes=0, img_size=48)
    own, images = made(view, encoder=other), pictures(2, (64, 64))
    sight = own.encode(view, images)
    seen = sight.features(torch.tensor([0, 1]))
    assert torch.allclose(sight.logits, view.logits(images), atol=1e-5)
    assert [tuple(one.shape[1:]) for one in seen] == [(48, 3, 3)] * 4
    assert not any(weight is mine for weight in other.model.parameters() for mine in own.parameters())
    own.save_pretrained(tmp_path / "it")
    again = Explainer.from_pretrained(tmp_path / "it")
    with pytest.raises(InputError, match=r"sees through VisionTransformer with the weights \w+, but VisionTransformer"):
        again.use_encoder(small_view(2, num_classes=0, img_size=48))
    again.use_encoder(other)
    classes = torch.tensor([0, 1])
    assert torch.equal(again.explain(view, images, classes), own.explain(view, images, classes))


def test_inputs_are_retold_in_the_encoders_normalisation() -> None:
    view, images = small_view(), torch.full((1, 3, 64, 64), 0.25)
    other = load(small_view(1).model, size=(64, 64), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    pixels = images * torch.tensor(view.preprocess.std).view(1, 3, 1, 1) + torch.tensor(view.preprocess.mean).view(
        1, 3, 1, 1
    )
    assert torch.allclose(explainer._retold(images, view, other), pixels)


# ------------------------------------------------------------------------------------------------------------ a folder


def test_saved_and_loaded_it_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = small_view()
    own, images, classes = made(view), pictures(2, (64, 64)), torch.tensor([1, 5])
    own.noted(steps=7, temperature=0.02, contrast=1.5)
    own.save_pretrained(tmp_path / "deep" / "it")
    assert sorted(file.name for file in (tmp_path / "deep" / "it").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["it"]
    again = Explainer.from_pretrained(tmp_path / "deep" / "it")
    assert again.config == own.config == json.loads((tmp_path / "deep" / "it" / "config.json").read_text())
    assert (again.config["steps"], again.config["temperature"], again.config["classes"]) == (7, 0.02, 6)
    assert not again.training
    assert torch.equal(again.explain(view, images, classes), own.explain(view, images, classes))
    stored = load_file(tmp_path / "deep" / "it" / "model.safetensors")
    assert stored.keys() == own.state_dict().keys()
    assert all(name.startswith("decoder.") for name in stored), "nothing of the target"
    assert capsys.readouterr().out == ""


def test_half_is_half_as_large_and_nearly_the_same(tmp_path: Path) -> None:
    view = small_view()
    own, images, classes = made(view), pictures(2, (64, 64)), torch.tensor([1, 5])
    own.save_pretrained(tmp_path / "it")
    full = (tmp_path / "it" / "model.safetensors").stat().st_size
    own.save_pretrained(tmp_path / "it", half=True)  # replaces what is there
    assert (tmp_path / "it" / "model.safetensors").stat().st_size < 0.75 * full  # the rest is the list of names
    again = Explainer.from_pretrained(tmp_path / "it")
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    assert torch.allclose(again.explain(view, images, classes), own.explain(view, images, classes), atol=1e-3)


def test_a_failed_save_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = small_view()
    made(view).save_pretrained(tmp_path / "it")
    before = (tmp_path / "it" / "model.safetensors").read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(explainer, "save_file", full_disk)
    for folder in ("it", "new"):
        with pytest.raises(OSError, match="no space left"):
            made(view, seed=1).save_pretrained(tmp_path / folder)
    assert [file.name for file in tmp_path.iterdir()] == ["it"]
    assert (tmp_path / "it" / "model.safetensors").read_bytes() == before


def test_a_folder_with_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"holds thesis.tex, and would be replaced; give a new folder"):
        made(small_view()).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="give a new folder"):
        made(small_view()).save_pretrained(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_what_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object) -> str:
        raise OSError("no connection")

    monkeypatch.setattr(explainer, "hf_hub_download", offline)
    with pytest.raises(InputError, match=r"there is no folder .*nowhere with an explainer; train one"):
        Explainer.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"there is no folder me/mine .* none on the Hugging Face Hub \(no connection"):
        Explainer.from_pretrained("me/mine")
    with pytest.raises(InputError, match="holds no explainer"):
        Explainer.from_pretrained(tmp_path)
    made(small_view()).save_pretrained(tmp_path / "it")
    (tmp_path / "it" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InputError, match="holds no explainer"):
        Explainer.from_pretrained(tmp_path / "it")
    made(small_view()).save_pretrained(tmp_path / "it")
    config = json.loads((tmp_path / "it" / "config.json").read_text())
    (tmp_path / "it" / "config.json").write_text(json.dumps(config | {"channels": 24}))
    with pytest.raises(InputError, match="holds no explainer"):
        Explainer.from_pretrained(tmp_path / "it")


def test_it_can_be_pushed_and_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        """A hub in a folder."""

        def __init__(self, token: str | None = None) -> None:
            self.repo_id = "me/mine"

        def create_repo(self, **_: object) -> "Hub":
            return self

        def upload_folder(self, *, repo_id: str, folder_path: Path, **_: object) -> str:
            folder_path.rename(tmp_path / "hub")
            return f"https://huggingface.co/{repo_id}"

    view = small_view()
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Hub)
    monkeypatch.setattr(explainer, "hf_hub_download", lambda repo, name, **_: str(tmp_path / "hub" / name))
    assert made(view).push_to_hub("me/mine") == "https://huggingface.co/me/mine"
    assert "vitrail explainer" in (tmp_path / "hub" / "README.md").read_text()
    again = Explainer.from_pretrained("me/mine", revision="main")
    images, classes = pictures(1, (64, 64)), torch.tensor([0])
    assert torch.equal(again.explain(view, images, classes), made(view).explain(view, images, classes))


# ------------------------------------------------------------------------------------------------------- other models


def test_another_model_is_refused() -> None:
    view, other = small_view(), small_view(1)
    own = made(view)
    own.check(view)
    with pytest.raises(InputError) as refusal:
        own.check(other)
    assert view.fingerprint()[:12] in str(refusal.value)
    assert other.fingerprint()[:12] in str(refusal.value)
    assert "other_model=True" in str(refusal.value)
    own.check(other, other_model=True)
    with pytest.raises(InputError, match="knows 6 classes, but VisionTransformer answers 4"):
        own.check(small_view(num_classes=4), other_model=True)
    narrow = small_view(embed_dim=24)
    with pytest.raises(InputError, match=r"reads feature maps of \[51, 100, 100, 100\] channels, but \[27"):
        own.explain(narrow, pictures(1, (64, 64)), torch.tensor([0]))


@pytest.mark.parametrize("options", [{"channels": 12}, {"channels": 0}, {"embedding": 0}])
def test_widths_that_do_not_work(options: dict[str, int]) -> None:
    settings = {"target": "x", "fingerprint": "", "classes": 2, "size": (8, 8), "widths": (4,)} | options
    with pytest.raises(InputError, match="multiples of 8"):
        Explainer(**settings)  # type: ignore[arg-type]
