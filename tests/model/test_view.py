"""The view: every model is taken apart into parts that make up the model again."""

import copy

import pytest
import timm
import torch
from torch import Tensor, nn

from helpers.homemade import SMALL, Assembled, HandMade, Unfolded, half_kept, near, own_logits
from helpers.zoo import OTHER_MODELS, TOKEN_MODELS, ZOO, module, pictures, view_of
from vitrail.errors import InputError
from vitrail.model import FROZEN, Need, View, load

READOUTS = {  # (any prefix token, patches, attention pool)
    "prefix": (True, False, False),
    "patches": (False, True, False),
    "both": (True, True, False),
    "pool": (False, True, True),
}


class Wrapper(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone(images)


class Refuses(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        raise RuntimeError("sizes of tensors must match")


def parts(model: View, images: Tensor) -> Tensor:
    layout = model.layout(tuple(images.shape[-2:]))
    return model.head(model.encode(model.embed(images), layout)[-1], layout)


# ------------------------------------------------------------------------------------------------------- anatomy


class Convolved(nn.Module):
    """Notes how its pictures lie in memory; ``strict`` calls ``view`` on what a convolution made."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 8 * 8, 5)
        self.strict, self.seen = strict, list[bool]()

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images.is_contiguous(memory_format=torch.channels_last))
        features = self.convolution(images)
        return self.linear(features.view(len(images), -1) if self.strict else features.flatten(1))


@pytest.mark.parametrize("strict", [False, True])
def test_convolutions_on_a_cpu_see_channels_side_by_side_where_the_model_can(strict: bool) -> None:
    model = Convolved(strict)
    view, images = load(model, size=(8, 8)), pictures(3, (8, 8))
    expected = model(images).detach()
    model.seen.clear()
    assert near(view.logits(images), expected)
    trace = view.trace(images, pixels=True)
    assert near(trace.logits, expected)
    assert model.seen == [not strict] * 2
    (found,) = view.gradient(trace.logits[:, 1], [trace.images])
    leaf = images.clone().requires_grad_()
    assert near(found, torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)[0])


def test_float64_pictures_stay_as_they_are() -> None:
    model = Convolved(strict=False).double()
    view = load(model, size=(8, 8))
    model.seen.clear()
    view.logits(pictures(2, (8, 8)).double())
    assert not any(model.seen)


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
    # The head of transformers 4.48 averages the registers with the patches.
    assert view_of("hf_dinov2_registers").readout.prefix in ((0,), (0, 1, 2, 3, 4))
    assert view_of("deit_tiny_distilled").readout.prefix == (0, 1)


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_models_without_token_blocks_offer_features(name):
    found = view_of(name)
    assert found.grid == ZOO[name].grid
    assert found.depth == 0
    images = pictures(1, found.size)
    trace = found.trace(images)
    assert near(trace.logits.detach(), own_logits(name, images))
    assert found.spatial(trace.entry, found.size).shape[2:] == found.grid
    (gradient,) = found.gradient(trace.logits[:, 0], [trace.entry])
    assert gradient.abs().sum() > 0
    with pytest.raises(InputError, match="no chain of transformer blocks"):
        found.embed(images)


@pytest.mark.parametrize("name", ZOO)
def test_models_offer_what_the_zoo_says(name):
    assert view_of(name).offers == ZOO[name].offers


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
    with pytest.raises(InputError, match=r"could not be run on a \(1, 3, 224, 224\).*must match.*give the size"):
        load(Refuses())


def test_a_model_that_answers_no_logits():
    with pytest.raises(
        InputError, match=r"must answer \(batch, classes\) logits in floating point, but it answered \(2, 3, 8, 8\)"
    ):
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
    assert not images.requires_grad  # the leaf of the graph shares their numbers, and nothing else
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
    assert found.offers == set(Need) - {Need.RELU}
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
    assert found.offers - {Need.RELU} == {Need.GRADIENTS, Need.FEATURES}
    trace = found.trace(images)
    assert near(trace.logits.detach(), model(images).detach())
    (gradient,) = found.gradient(trace.logits[:, 0], [trace.images])
    assert (gradient != 0).any()


def test_wrapper_around_a_vit():
    inner = view_of(SMALL)
    found = load(Wrapper(module(SMALL)))
    assert (found.grid, found.depth, found.readout) == (inner.grid, inner.depth, inner.readout)
    assert found.layout(found.size).prefix == 2
    assert found.offers == set(Need) - {Need.RELU}
    images = pictures(1, (224, 224))
    assert near(found.trace(images).logits.detach(), own_logits(SMALL, images))


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


def test_patches_cut_without_a_convolution():
    view = load(Unfolded().eval(), size=(32, 48))
    assert view.grid == (4, 6)
    assert view.layout(view.size).prefix == 2
    assert view.depth == 2
