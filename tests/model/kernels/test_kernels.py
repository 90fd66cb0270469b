"""Blocks by our own kernels, as exact as the model's: on the GPU where there is one, else in Triton's interpreter."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import small
from helpers.homemade import near
from helpers.zoo import pictures, view_of
from vitrail.model import Tap, View, load
from vitrail.model.anatomy import form as blockform
from vitrail.model.kernels import choose as fused
from vitrail.model.kernels.pairs import PairBlock, halves
from vitrail.model.kernels.patchwise import Patchwise

kernels = pytest.importorskip("vitrail.model.kernels.triton", reason="the kernels are written in Triton")

ON = torch.device("cuda" if torch.cuda.is_available() else "cpu")

FORMS = {
    "usual": ("vit_tiny_patch16_224", {}),
    "no bias": ("vit_tiny_patch16_224", {"qkv_bias": False, "proj_bias": False}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 4}),
    "LayerScale": ("deit3_small_patch16_224", {"init_values": 0.5}),
    "gated MLP": ("vit_giant_patch14_dinov2", {"init_values": 0.5, "img_size": 56}),
    "QuickGELU": ("vit_base_patch32_clip_quickgelu_224", {}),
    "average pooling": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "attention pool": ("vit_base_patch16_siglip_224", {}),
    "odd widths": ("vit_tiny_patch16_224", {"embed_dim": 40, "num_heads": 5}),
}


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fused, "can_fuse", lambda _: True)
    with torch.no_grad():
        yield


def built(name: str, **options: object) -> View:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **(small.SIZES | {"depth": 2} | options)).eval()
    for weight in model.parameters():  # branches that count, and no bias of zeros
        nn.init.normal_(weight, 0.1, 0.2)
    return load(model, device=str(ON))


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(ON)


def whole(pair: tuple[Tensor, Tensor]) -> Tensor:
    return pair[0].double() + pair[1].double()


def off(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


# ------------------------------------------------------------------------------------------------------- the kernels


@pytest.mark.parametrize(("rows", "ins", "outs"), [(200, 192, 192), (129, 64, 320), (5, 40, 24), (130, 768, 128)])
def test_a_product_is_as_exact_as_float32(rows, ins, outs):
    x, weight, bias = drawn(rows, ins), drawn(outs, ins) * 0.05, drawn(outs)
    found = kernels.linear(halves(x * 1024), halves(weight * 4096), bias, 2.0**-22)
    exact = F.linear(x.double(), weight.double(), bias.double())
    assert off(found, exact) <= max(3 * off(F.linear(x, weight, bias), exact), 5e-7)


def test_what_follows_a_product():
    x, weight, bias, residual = drawn(70, 64), drawn(96, 64), drawn(96), drawn(70, 96)
    exact = F.linear(x.double(), weight.double(), bias.double())
    given = halves(x), halves(weight), bias, 1.0
    assert off(kernels.linear(*given, residual=residual), exact + residual) < 1e-6
    assert off(whole(kernels.linear(*given, gelu=True, scale=8.0)) / 8, F.gelu(exact)) < 1e-6


@pytest.mark.parametrize("width", [24, 192, 1024])
def test_the_norm(width):
    x, weight, bias = drawn(37, width) * 3 + 5, drawn(width), drawn(width)
    exact = F.layer_norm(x.double(), (width,), weight.double(), bias.double(), 1e-6)
    assert off(whole(kernels.norm(x, weight, bias, 1e-6)[1]), exact) < 1e-6


@pytest.mark.parametrize(("tokens", "heads", "channels", "queries"), [(37, 2, 64, 37), (70, 3, 24, 1), (19, 1, 16, 17)])
def test_attention(tokens, heads, channels, queries):
    x = drawn(2 * tokens, 3 * heads * channels)
    q, k, v = (y.transpose(1, 2).double() for y in x.view(2, tokens, 3, heads, channels).unbind(2))
    exact = F.scaled_dot_product_attention(q[:, :, :queries], k, v).transpose(1, 2).flatten(2).flatten(0, 1)
    found = whole(kernels.attention(halves(x * 4), tokens, heads, queries, 1 / 16)) / 4
    assert found.shape == exact.shape
    assert off(found, exact) < 1e-6


# ------------------------------------------------------------------------------------------------------- the answers


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("plain", [False, True])
def test_every_form_answers_the_same(name, plain):
    view = built(FORMS[name][0], **FORMS[name][1])
    layout = view.layout(view.size)
    tokens = view.embed(pictures(3, view.size).to(ON))
    found = view.answer(tokens, layout, plain=plain)
    assert [block is not None for _, block in view.passage.fused.values()] == [True] * view.depth
    view.fused = False
    assert near(found, view.answer(tokens, layout, plain=plain), 1e-5)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision(precision):
    view = built("vit_tiny_patch16_224")
    layout = view.layout(view.size)
    tokens = view.embed(pictures(3, view.size).to(ON))
    view.fused = False
    exact = view.answer(tokens, layout)
    with view.using(precision):
        usual = view.answer(tokens, layout).float()
        view.fused = True
        found = view.answer(tokens, layout).float()
    assert [block is not None for _, block in view.passage.fused.values()] == [True] * view.depth
    assert 0 < off(found, exact) <= 1.5 * off(usual, exact)


def test_pictures_go_through_it_too():
    view = built("vit_tiny_patch16_224")
    images, passes = pictures(2, view.size), view.meter.forwards
    found = view.logits(images)
    assert view.meter.forwards - passes == 2
    assert view.passage.fused
    view.fused = False
    assert near(found, view.logits(images), 1e-5)


def test_fewer_tokens():
    view = built("vit_tiny_patch16_224")
    layout = view.layout(view.size)
    tokens = view.embed(pictures(2, view.size).to(ON))
    found = view.answer(tokens, layout), view.answer(tokens[:, :9], layout)
    view.fused = False
    assert near(found[0], view.answer(tokens, layout), 1e-5)
    assert near(found[1], view.answer(tokens[:, :9], layout), 1e-5)


@pytest.mark.parametrize("magnitude", [1e-12, 1e-4, 1e4, 1e12])
def test_no_magnitude_overflows_or_is_lost(magnitude):
    view = built("vit_tiny_patch16_224")
    block = view.blocks.modules[0]
    block.norm1.weight *= magnitude  # attention then looks at one token, or at all alike
    block.mlp.fc1.weight *= magnitude
    form = blockform.find_form(block, view.layout(view.size).extras[0], 1, block.norm1.weight.numel())
    x = drawn(2, 17, block.norm1.weight.numel())
    found, expected = PairBlock(form)(x, None)[0], form(x)
    exact = block.double()(x.double())
    assert found.isfinite().all()
    assert off(found, exact) <= max(3 * off(expected, exact), 1e-6)


@pytest.mark.parametrize("name", ["deit_tiny_distilled", "hf_vit", "torchvision_vit_b_32", "open_clip_vit_b_32"])
def test_patches_are_embedded_alike(name):
    view = view_of(name)
    images = pictures(2, view.size)
    found = view.embed(images)
    view.fused = False
    expected = view.embed(images)
    view.fused = True
    assert found.shape == expected.shape
    assert near(found, expected, 1e-5)
    with view.using("bf16"):
        assert near(view.embed(images).float(), expected, 2e-2)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 8, "padding": 1},
        {"stride": 8, "dilation": 2},
        {"stride": 4},
        {"stride": 8, "groups": 3},
        {"stride": 7},
    ],
)
def test_other_convolutions_are_as_they_were(options):
    layer = nn.Conv2d(3, 6, 8, **options)
    images = drawn(2, 3, 28, 28).cpu()
    expected = layer(images)
    with Patchwise():
        assert torch.equal(layer(images), expected)


# ------------------------------------------------------------------------------------------------------- when


def used(view: View) -> bool:
    view.passage.fused.clear()
    view.answer(view.embed(pictures(1, view.size).to(ON)), view.layout(view.size))
    return any(block is not None for _, block in view.passage.fused.values())


def test_only_where_nothing_else_was_asked_for():
    view = built("vit_tiny_patch16_224")
    assert used(view)
    with torch.enable_grad():
        assert not used(view)
    with torch.autocast(ON.type, torch.bfloat16):
        assert not used(view)
    with view.using("tf32"):
        assert not used(view)
    with Tap(read=True):
        assert not used(view)
    view.fused = False
    assert not used(view)


def test_changed_weights_are_read_again():
    view = built("vit_tiny_patch16_224")
    layout, tokens = view.layout(view.size), view.embed(pictures(2, view.size).to(ON))
    before = view.answer(tokens, layout)
    view.blocks.modules[0].mlp.fc1.weight *= 1.5
    found = view.answer(tokens, layout)
    view.fused = False
    assert not near(found, before, 1e-5)
    assert near(found, view.answer(tokens, layout), 1e-5)


def test_a_block_of_another_form_runs_itself():
    view = built("vit_tiny_patch16_224")
    watched: list[int] = []
    view.blocks.modules[0].register_forward_hook(lambda *_: watched.append(1))
    layout, tokens = view.layout(view.size), view.embed(pictures(2, view.size).to(ON))
    watched.clear()
    found = view.answer(tokens, layout)
    assert watched
    assert [block is not None for _, block in view.passage.fused.values()] == [True]
    view.fused = False
    assert near(found, view.answer(tokens, layout), 1e-5)


def test_a_mask_is_heeded():
    view = built("vit_tiny_patch16_224")
    layout, tokens = view.layout(view.size), view.embed(pictures(2, view.size).to(ON))
    mask = torch.zeros(layout.tokens, layout.tokens, device=ON)
    mask[:, 3] = float("-inf")
    masked = replace(layout, extras=tuple(((mask,), {}) for _ in layout.extras))
    found = view.answer(tokens, masked)
    view.fused = False
    assert near(found, view.answer(tokens, masked), 1e-5)
    assert not near(found, view.answer(tokens, layout), 1e-5)


@pytest.mark.parametrize(
    ("name", "options"), [("eva02_tiny_patch14_224", {"img_size": 56}), ("vit_tiny_patch16_224", {"qk_norm": True})]
)
def test_blocks_of_another_form_are_left_to_the_model(name, options):
    view = built(name, **options)
    images, runs = pictures(2, view.size).to(ON), []
    first = view.logits(images)
    view.model.register_forward_hook(lambda _, given, __: runs.append(len(given[0])))
    second = view.logits(images)
    assert runs == [2], "the model answers itself, in one pass"
    assert near(first, second, 1e-5)


def test_weights_that_are_not_numbers_run_themselves():
    view = built("vit_tiny_patch16_224")
    view.blocks.modules[1].mlp.fc1.bias[0] = float("nan")
    view.answer(view.embed(pictures(1, view.size).to(ON)), view.layout(view.size))
    assert [block is not None for _, block in view.passage.fused.values()] == [True, False]


class Minding(nn.Module):
    """A block that does more when it is given more than a few tokens."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) if x.shape[1] <= 17 else self.block(x) + x.mean(1, keepdim=True)


def test_a_block_that_minds_how_many_tokens_there_are_runs_itself():
    view = built("vit_tiny_patch16_224", img_size=96)
    view.model.blocks = nn.Sequential(*map(Minding, view.model.blocks))
    view = load(view.model, device=str(ON))
    layout, tokens = view.layout(view.size), view.embed(pictures(2, view.size).to(ON))
    found = view.answer(tokens, layout)
    assert [block is not None for _, block in view.passage.fused.values()] == [False, False]
    view.fused = False
    assert near(found, view.answer(tokens, layout), 1e-5)
