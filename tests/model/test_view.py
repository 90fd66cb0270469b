"""The view: every model is taken apart into parts that make up the model again, and is left as it was found."""

import copy
import threading

import pytest
import timm
import torch
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.model import FROZEN, Need, View, load, removal, view
from zoo import OTHER_MODELS, TOKEN_MODELS, ZOO, module, pictures, view_of

READOUTS = {  # (any prefix token, patches, attention pool)
    "prefix": (True, False, False),
    "patches": (False, True, False),
    "both": (True, True, False),
    "pool": (False, True, True),
}
SMALL = "deit_tiny_distilled"  # quick to run, with two prefix tokens
ROTARY_OR_BIASED = {"beit_base", "eva02_tiny"}


class HandMade(nn.Module):
    """A tiny ViT as one would write it at home: attention is a softmax between two matrix products."""

    class Block(nn.Module):
        def __init__(self, dim: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
            weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
            x = x + self.proj((weights @ v).transpose(1, 2).flatten(2))
            return x + self.mlp(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 21, 24))
        self.layers = nn.ModuleList([self.Block(24, 3) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Assembled(nn.Module):
    """A ViT put together from torch's own nn.TransformerEncoder."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


class Wrapper(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone(images)


class Refuses(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        raise RuntimeError("sizes of tensors must match")


def own_logits(name: str, images: Tensor) -> Tensor:
    with torch.no_grad():
        return view.logits_of(module(name)(images))


def half_kept(images: int, patches: int, *, ragged: bool) -> Tensor:
    """Which patches stay: the same number for every image, or another for each."""
    scores = torch.rand(images, patches, generator=torch.Generator().manual_seed(5))
    counts = torch.tensor([patches // 2 - (i * 5 if ragged else 0) for i in range(images)])
    return scores.argsort(1).argsort(1) < counts[:, None]


def near(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def parts(model: View, images: Tensor) -> Tensor:
    layout = model.layout(tuple(images.shape[-2:]))
    return model.head(model.encode(model.embed(images), layout)[-1], layout)


# ------------------------------------------------------------------------------------------------------- anatomy


@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_anatomy_is_what_the_zoo_says(name):
    entry, found = ZOO[name], view_of(name)
    layout = found.layout(entry.size)
    assert found.size == entry.size
    assert found.grid == layout.grid == entry.grid
    assert layout.prefix == entry.prefix
    assert layout.tokens == entry.prefix + entry.grid[0] * entry.grid[1]
    assert found.depth == len(layout.extras) == entry.depth
    readout = found.readout
    assert (bool(readout.prefix), readout.patches, readout.attention) == READOUTS[entry.reads]


def test_the_head_reads_the_class_token_and_no_register():
    assert view_of("dinov2_reg4").readout.prefix == (0,)
    assert view_of("hf_dinov2_registers").readout.prefix == (0,)
    assert view_of("deit_tiny_distilled").readout.prefix == (0, 1)


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_models_without_token_blocks_offer_features(name):
    found = view_of(name)
    assert found.grid == ZOO[name].grid
    assert found.depth == 0
    assert found.offers == {Need.GRADIENTS, Need.FEATURES}
    images = pictures(1, found.size)
    trace = found.trace(images)
    assert near(trace.logits.detach(), own_logits(name, images))
    assert found.spatial(trace.entry, found.size).shape[2:] == found.grid
    (gradient,) = found.gradient(trace.logits[:, 0], [trace.entry])
    assert gradient.abs().sum() > 0
    with pytest.raises(InputError, match="no chain of transformer blocks"):
        found.embed(images)


@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_transformers_offer_everything(name):
    assert view_of(name).offers == set(Need)


def test_a_model_without_layers_offers_gradients_and_a_pixel_grid():
    class Plain(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3))

    found = load(Plain(), size=(20, 30))
    assert found.offers == {Need.GRADIENTS}
    assert found.grid == (20, 30)
    assert "3 classes" in repr(found)


def test_another_size_than_the_models_own():
    found = view_of("hf_dinov2_registers")
    images = pictures(1, (196, 280))
    assert found.grid_at((196, 280)) == (14, 20)
    assert near(parts(found, images), own_logits("hf_dinov2_registers", images))
    assert found.grid == (16, 16)
    assert view_of("resnet50").grid_at((160, 96)) == (5, 3)


def test_a_size_the_model_refuses():
    found = view_of(SMALL)
    for ask in (found.layout, found.grid_at, lambda size: found.embed(pictures(1, size))):
        with pytest.raises(InputError, match=r"cannot take pictures of 100 x 224 pixels.*it wants 224 x 224"):
            ask((100, 224))


@pytest.mark.parametrize("name", [SMALL, "swin_tiny"])
def test_a_size_the_model_refuses_whoever_asks(name):
    found, images = view_of(name), pictures(1, (100, 224))
    for ask in (found.logits, found.trace, lambda x: found.grid_at((100, 224))):
        with pytest.raises(InputError, match=r"cannot take pictures of 100 x 224 pixels.*it wants 224 x 224"):
            ask(images)


def test_a_model_that_cannot_run():
    with pytest.raises(
        InputError, match=r"could not be run on a \(1, 3, 224, 224\).*must match.*size=\(height, width\)"
    ):
        load(Refuses())


def test_a_model_that_answers_no_logits():
    with pytest.raises(InputError, match=r"must answer \(batch, classes\) logits, but it answered \(2, 3, 8, 8\)"):
        load(nn.Conv2d(3, 3, 1), size=(8, 8))


# ------------------------------------------------------------------------------------------------------- the parts


@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_embed_encode_head_make_the_model(name):
    images = pictures(2, ZOO[name].size)
    assert (parts(view_of(name), images) - own_logits(name, images)).abs().max() < 1e-4


@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_trace(name):
    found, images = view_of(name), pictures(2, ZOO[name].size, seed=1)
    layout = found.layout(found.size)
    trace = found.trace(images, attention=True)
    assert (trace.logits.detach() - own_logits(name, images)).abs().max() < 1e-4
    assert len(trace.attention) == found.depth
    for attention in trace.attention:
        assert attention.shape == (2, attention.shape[1], layout.tokens, layout.tokens)
        assert (attention >= 0).all()
        assert torch.allclose(attention.sum(-1), torch.ones(()), atol=1e-5)
    assert [state.shape[:2] for state in trace.states] == [(2, layout.tokens)] * (found.depth + 1)
    assert trace.entry.shape == trace.states[-1].shape
    assert (trace.pool is not None) == (ZOO[name].reads == "pool")
    weights = found.readout_weights(trace, layout)
    assert weights.shape == (2, layout.tokens)
    assert torch.allclose(weights.sum(1), torch.ones(2))
    wanted = [*trace.states, *trace.attention, trace.entry]
    gradients = found.gradient(trace.logits[:, 0], wanted)
    assert all(gradient.abs().sum() > 0 for gradient in (gradients[0], gradients[found.depth + 1], gradients[-1]))


def test_trace_to_the_pixels_agrees_with_autograd():
    found, images = view_of(SMALL), pictures(2, (224, 224))
    trace = found.trace(images, pixels=True)
    (gradient,) = found.gradient(trace.logits[:, 3], [trace.images])
    leaf = images.clone().requires_grad_()
    (expected,) = torch.autograd.grad(module(SMALL)(leaf)[:, 3].sum(), leaf)
    assert near(gradient, expected, 1e-4)


def test_gradient_of_what_has_no_influence_is_zero():
    found = view_of("average_pooled")
    trace = found.trace(pictures(1, (224, 224)))
    (gradient,) = found.gradient(trace.logits[:, 0], [trace.states[-1]])
    assert (gradient[:, 0] == 0).all()  # the class token is not read
    assert (gradient[:, 1:] != 0).any()
    (nothing,) = found.gradient(found.trace(pictures(1, (224, 224))).logits[:, 0], [trace.states[0]])
    assert (nothing == 0).all()


def test_patch_map_leaves_the_prefix_out():
    found = view_of("non_square")
    layout = found.layout(found.size)
    values = torch.arange(layout.tokens)[None]
    assert found.patch_map(values, layout).shape == (1, 14, 20)
    assert found.patch_map(values, layout)[0, 1, 2] == 1 + 20 + 2
    assert (found.patch_map(values[:, 1:], layout) == found.patch_map(values, layout)).all()


def test_meter_counts_images():
    found = load(HandMade(), size=(32, 40))
    before = copy.copy(found.meter)
    trace = found.trace(pictures(3, (32, 40)))
    found.gradient(trace.logits[:, 0], [trace.states[0]])
    found.logits(pictures(2, (32, 40)))
    assert (found.meter.forwards - before.forwards, found.meter.backwards - before.backwards) == (5, 3)


# ------------------------------------------------------------------------------------------------------- home-made


def test_hand_made_vit():
    torch.manual_seed(0)
    model = HandMade()
    images = pictures(3, (32, 40))
    found = load(model, size=(32, 40))
    layout = found.layout((32, 40))
    assert (found.grid, layout.prefix, found.depth, found.readout.prefix) == ((4, 5), 1, 4, (0,))
    assert found.offers == set(Need)
    assert len(found.trace(images, attention=True).attention) == 4
    with torch.no_grad():
        assert near(parts(found, images), model(images))
    tokens = found.embed(images)
    for ragged in (False, True):
        keep = (
            half_kept(3, 20, ragged=ragged) if not ragged else torch.rand(3, 20) < torch.tensor([[0.2], [0.5], [0.9]])
        )
        assert near(found.respond(tokens, keep, layout, "gather"), found.respond(tokens, keep, layout, "mask"))


@pytest.mark.parametrize("norm_first", [False, True])
def test_vit_of_torch_encoder_layers(norm_first):
    torch.manual_seed(0)
    model = Assembled(norm_first).eval()
    images = pictures(2, (32, 32))
    found = load(model, size=(32, 32))
    layout = found.layout((32, 32))
    assert (found.grid, layout.prefix, found.depth) == ((4, 4), 0, 2)
    assert found.readout.patches
    with torch.no_grad():
        assert near(parts(found, images), model(images))
    trace = found.trace(images, attention=True, rule=FROZEN)
    assert [tuple(a.shape) for a in trace.attention] == [(2, 3, 16, 16)] * 2
    assert near(trace.logits.detach(), found.logits(images))
    tokens, keep = found.embed(images), half_kept(2, 16, ragged=False)
    assert near(found.respond(tokens, keep, layout, "gather"), found.respond(tokens, keep, layout, "mask"))


def test_attention_that_cannot_be_read_leaves_gradients():
    model = Assembled(norm_first=True).eval()
    for layer in model.encoder.layers:
        layer.self_attn = nn.MultiheadAttention(24, 3, batch_first=True, add_bias_kv=True).eval()
    images = pictures(2, (32, 32))
    found = load(model, size=(32, 32))
    assert found.offers == {Need.GRADIENTS, Need.FEATURES}
    trace = found.trace(images)
    assert near(trace.logits.detach(), model(images).detach())
    (gradient,) = found.gradient(trace.logits[:, 0], [trace.images])
    assert (gradient != 0).any()


def test_wrapper_around_a_vit():
    inner = view_of(SMALL)
    found = load(Wrapper(module(SMALL)))
    assert (found.grid, found.depth, found.readout) == (inner.grid, inner.depth, inner.readout)
    assert found.layout(found.size).prefix == 2
    assert found.offers == set(Need)
    images = pictures(1, (224, 224))
    assert near(found.trace(images).logits.detach(), own_logits(SMALL, images))


# ------------------------------------------------------------------------------------------------------- hiding tokens


@pytest.mark.parametrize("ragged", [False, True], ids=["equal", "ragged"])
@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_gather_and_mask_agree(name, ragged):
    found = view_of(name)
    layout = found.layout(found.size)
    tokens = found.embed(pictures(3, found.size))
    keep = half_kept(3, layout.patches, ragged=ragged)
    masked = found.respond(tokens, keep, layout, "mask")
    if name in ROTARY_OR_BIASED:
        assert not removal.can_gather(found, tokens[:1], layout)
        assert near(found.respond(tokens, keep, layout), masked, 1e-6)
        return
    assert removal.can_gather(found, tokens[:1], layout)
    assert near(found.respond(tokens, keep, layout, "gather"), masked)
    everything = torch.ones_like(keep)
    assert not near(masked, found.respond(tokens, everything, layout), 1e-4)  # hiding half does change the answer


@pytest.mark.parametrize("form", ["gather", "mask"])
def test_respond_against_timms_own_blocks(form):
    """The independent check: timm's fused blocks, run by hand on the tokens that are left."""
    found, model, images = view_of("vit_tiny_patch16_224"), module("vit_tiny_patch16_224"), pictures(2, (224, 224))
    assert model.blocks[0].attn.fused_attn
    layout = found.layout((224, 224))
    keep = half_kept(2, 196, ragged=True)
    with torch.no_grad():
        tokens = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
        assert near(found.embed(images), tokens, 1e-6)
        everything = found.respond(tokens, torch.ones_like(keep), layout, form)
        assert near(everything, model(images))
        expected = []
        for row, stays in zip(tokens, keep):
            left = torch.cat([row[:1], row[1:][stays]])[None]
            for block in model.blocks:
                left = block(left)
            expected.append(model.forward_head(model.norm(left)))
        assert near(found.respond(tokens, keep, layout, form), torch.cat(expected))


@pytest.mark.parametrize("form", ["gather", "mask"])
def test_dropped_tokens_are_left_out_of_the_mean(form):
    found, model, images = view_of("average_pooled"), module("average_pooled"), pictures(1, (224, 224))
    layout, keep = found.layout((224, 224)), half_kept(1, 196, ragged=False)
    with torch.no_grad():
        tokens = model._pos_embed(model.patch_embed(images))
        left = torch.cat([tokens[:, :1], tokens[:, 1:][keep][None]], 1)
        for block in model.blocks:
            left = block(left)
        expected = model.head(model.fc_norm(model.norm(left)[:, 1:].mean(1)))
    assert near(found.respond(tokens, keep, layout, form), expected)


@pytest.mark.parametrize("name", ["average_pooled", "siglip", "hf_dinov2_registers", "eva02_tiny"])
def test_a_model_that_pools_patches_needs_one(name):
    found = view_of(name)
    layout, tokens = found.layout(found.size), found.embed(pictures(2, found.size))
    keep = torch.zeros(2, layout.patches, dtype=torch.bool)
    keep[0, 3] = True
    with pytest.raises(InputError, match="at least one patch must be kept"):
        found.respond(tokens, keep, layout)
    keep[1, 0] = True
    assert torch.isfinite(found.respond(tokens, keep, layout)).all()


@pytest.mark.parametrize("name", ["deit_tiny_distilled", "dinov2_reg4", "torchvision_vit_b_32"])
def test_a_class_token_answers_without_any_patch(name):
    found = view_of(name)
    layout, tokens = found.layout(found.size), found.embed(pictures(2, found.size))
    keep = torch.zeros(2, layout.patches, dtype=torch.bool)
    gathered = found.respond(tokens, keep, layout, "gather")
    assert torch.isfinite(gathered).all()
    assert near(found.respond(tokens, keep, layout, "mask"), gathered)
    assert near(gathered[:1], gathered[1:])  # nothing of the pictures is left to tell them apart


@pytest.mark.parametrize(
    "keep",
    [
        torch.ones(2, 195, dtype=torch.bool),
        torch.ones(2, 197, dtype=torch.bool),
        torch.ones(1, 196, dtype=torch.bool),
        torch.ones(196, dtype=torch.bool),
        torch.ones(2, 196),
        torch.ones(2, 196, dtype=torch.long),
    ],
    ids=lambda keep: f"{keep.dtype} {tuple(keep.shape)}",
)
def test_keep_of_a_wrong_shape_or_type(keep):
    found = view_of("vit_tiny_patch16_224")
    tokens = torch.zeros(2, 197, 192)
    with pytest.raises(InputError, match=r"keep must be a boolean \(2, 196\) tensor, but a torch\.\w+ \(.*was given"):
        found.respond(tokens, keep, found.layout((224, 224)))


# ------------------------------------------------------------------------------------------------------- standing still


def state_of(model: nn.Module) -> tuple[object, ...]:
    """All that must not change."""
    hooks = tuple(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    return (
        tuple(m.training for m in model.modules()),
        tuple(p.requires_grad for p in model.parameters()),
        tuple(p.grad is None for p in model.parameters()),
        hooks,
        tuple("forward" in vars(m) for m in model.modules()),
        tuple(p.sum().item() for p in model.parameters()),
        bytes(torch.get_rng_state().numpy()),
        torch.is_grad_enabled(),
    )


@pytest.fixture
def mixed() -> nn.Module:
    """A model in train mode, with one part in eval mode and one frozen."""
    torch.manual_seed(0)
    model = HandMade().train()
    model.layers[1].eval()
    model.layers[2].requires_grad_(False)
    return model


def test_still_gives_the_model_back(mixed):
    before = state_of(mixed)
    found = load(mixed, size=(32, 40))
    assert state_of(mixed) == before
    with found.still():
        assert not any(m.training for m in mixed.modules())
        assert not any(p.requires_grad for p in mixed.parameters())
        torch.rand(7)
        with found.still():
            torch.rand(7)
            found.trace(pictures(1, (32, 40)), attention=True, pixels=True, rule=FROZEN)
        assert not any(m.training for m in mixed.modules())  # the inner one must not undo the outer one's work
        assert not any(p.requires_grad for p in mixed.parameters())
    assert state_of(mixed) == before


def test_still_gives_the_model_back_after_an_exception(mixed, monkeypatch):
    found = load(mixed, size=(32, 40))
    before = state_of(mixed)
    with pytest.raises(KeyError), found.still(), found.still():
        raise KeyError(torch.rand(7))
    assert state_of(mixed) == before

    def explode(*_: object) -> Tensor:
        raise KeyError

    images = pictures(1, (32, 40))
    tokens, layout = found.embed(images), found.layout((32, 40))
    asks = (
        lambda: found.trace(images),
        lambda: found.embed(images),
        lambda: found.head(tokens, layout),
        lambda: found.logits(images),
        lambda: found.respond(tokens, torch.ones(1, 20, dtype=torch.bool), layout),
    )
    with monkeypatch.context() as patch:
        patch.setattr(HandMade.Block, "forward", explode)
        patch.setattr(nn.LayerNorm, "forward", explode)
        for ask in asks:
            with pytest.raises(KeyError):
                ask()
            assert state_of(mixed) == before
    assert near(found.trace(images).logits.detach(), mixed(images))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_under_modes_that_forbid_them(mode):
    found, images, home = view_of(SMALL), pictures(1, (224, 224)), HandMade()

    def gradients(images: Tensor) -> list[Tensor]:
        to_pixels, to_tokens = found.trace(images, pixels=True), found.trace(images, attention=True)
        assert near(to_pixels.logits.detach(), to_tokens.logits.detach())
        inside = [to_tokens.states[0], to_tokens.attention[0]]
        pixels = found.gradient(to_pixels.logits[:, 1], [to_pixels.images])
        return pixels + found.gradient(to_tokens.logits[:, 1], inside)

    expected = gradients(images)
    with mode():
        inner = images * 1.0  # in inference mode this is an inference tensor
        with found.still():
            again = gradients(inner)
        assert near(found.logits(inner), module(SMALL)(images).detach())
        layout = found.layout((224, 224))
        found.respond(found.embed(inner), torch.ones(1, 196, dtype=torch.bool), layout)
        assert load(home, size=(32, 40)).depth == 4
    assert all(near(a, b) for a, b in zip(again, expected))


def test_two_threads_at_once():
    found = view_of(SMALL)
    batches = [pictures(2, (224, 224), seed=seed) for seed in range(6)]

    def ask(images: Tensor) -> tuple[Tensor, ...]:
        trace = found.trace(images, attention=True, rule=FROZEN)
        gradient = found.gradient(trace.logits[:, 2], [trace.states[0]], again=True)
        return (trace.logits.detach(), gradient[0], trace.attention[-1].detach(), found.logits(images))

    expected = [ask(images) for images in batches]
    answers: list[tuple[Tensor, ...] | None] = [None] * len(batches)
    start = threading.Barrier(2)

    def work(mine: range) -> None:
        start.wait()
        for i in mine:
            answers[i] = ask(batches[i])

    before = state_of(module(SMALL))
    threads = [threading.Thread(target=work, args=(range(i, len(batches), 2),)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state_of(module(SMALL)) == before
    for found_there, found_here in zip(answers, expected):
        assert found_there is not None
        assert all(near(a, b) for a, b in zip(found_there, found_here))


# ------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("name", [SMALL, "dinov2_reg4", "eva02_tiny", "hf_vit"])
def test_bfloat16_weights(name):
    model = copy.deepcopy(module(name)).to(torch.bfloat16)
    found = load(model, size=ZOO[name].size)
    assert (found.depth, found.dtype, found.offers) == (ZOO[name].depth, torch.bfloat16, set(Need))
    images = pictures(1, ZOO[name].size)
    layout = found.layout(found.size)
    trace = found.trace(images, attention=True, rule=FROZEN)
    exact = own_logits(name, images)
    assert near(trace.logits.detach().float(), exact, 0.1)
    (gradient,) = found.gradient(trace.logits[:, 0], [trace.states[0]])
    assert gradient.dtype == torch.bfloat16
    assert torch.isfinite(gradient).all()
    keep = half_kept(1, layout.patches, ragged=False)
    coarse = found.respond(found.embed(images), keep, layout)
    fine = view_of(name).respond(view_of(name).embed(images), keep, layout)
    assert near(coarse, fine, 0.1)


@pytest.mark.parametrize("name", [SMALL, "hf_vit", "tf_efficientnet_lite0"])
def test_autocast(name):
    found, images = load(module(name), size=ZOO[name].size), pictures(1, ZOO[name].size)
    found.precision = "bf16"
    trace = found.trace(images, attention=True, rule=FROZEN)
    assert near(trace.logits.detach().float(), own_logits(name, images), 0.1)
    assert trace.logits.dtype == torch.bfloat16


# ------------------------------------------------------------------------------------------------------- names


def test_fingerprint_follows_the_weights():
    model = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=3)
    found = load(model)
    first = found.fingerprint()
    assert first == load(copy.deepcopy(model)).fingerprint()
    with torch.no_grad():
        model.head.bias[1] += 1e-3
    assert load(copy.deepcopy(model)).fingerprint() != first
    assert found.fingerprint() != first  # also for a view that was asked before
    with torch.no_grad():
        model.head.bias[1] = 0
    assert found.fingerprint() == first
    assert load(copy.deepcopy(model).to(torch.bfloat16)).fingerprint() != first


def test_class_names():
    assert view_of("vit_tiny_patch16_224").class_name(207) == "golden retriever"
    assert view_of("beit_base").class_name(3) == "class 3"


class Unfolded(nn.Module):
    """A ViT whose patches are cut by reshaping and embedded by a linear layer: no convolution tells the grid."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(3 * 8 * 8, 24)
        self.cls = nn.Parameter(torch.randn(1, 2, 24))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 2, 48, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(24, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = images.shape[2] // 8, images.shape[3] // 8
        cut = (
            images.unflatten(2, (rows, 8)).unflatten(4, (columns, 8)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        )
        tokens = torch.cat([self.cls.expand(len(images), -1, -1), self.embedding(cut)], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens[:, 0])


def test_patches_cut_without_a_convolution():
    view = load(Unfolded().eval(), size=(32, 48))
    assert view.grid == (4, 6)
    assert view.layout(view.size).prefix == 2
    assert view.depth == 2


def test_views_of_one_model_take_turns():
    model = Unfolded().eval()
    first, second = load(model, size=(32, 48)), load(model, size=(32, 48))
    assert first._lock is second._lock
    assert load(Unfolded().eval(), size=(32, 48))._lock is not first._lock


def test_the_trial_of_gathering_is_not_counted():
    view = load(Unfolded().eval(), size=(32, 48))
    tokens, layout = view.embed(torch.randn(2, 3, 32, 48)), view.layout(view.size)
    before = view.meter.forwards
    view.respond(tokens, torch.ones(2, 24, dtype=torch.bool), layout)
    assert view.meter.forwards - before == 2
