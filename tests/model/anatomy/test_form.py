"""The last block's short form: the same answers as the whole chain, used where it can be and nowhere else."""

import copy
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor, nn

from helpers import small
from helpers.homemade import SMALL, HandMade, Unfolded, half_kept, near
from helpers.zoo import TOKEN_MODELS, ZOO, double_view, pictures, view_of
from vitrail.model import Tap, View, load
from vitrail.model.anatomy import form as blockform
from vitrail.model.kernels.route import compiled
from vitrail.perturb import roofline

CLASS_TOKEN = [name for name in TOKEN_MODELS if ZOO[name].reads == "prefix"]
OTHERS = [name for name in TOKEN_MODELS if ZOO[name].reads != "prefix"]

OTHER_FORMS = {
    "query-key norm": ("vit_tiny_patch16_224", {"qk_norm": True}),
    "a norm behind the attention": ("vit_tiny_patch16_224", {"scale_attn_norm": True}),
    "post-norm": ("vit_base_patch16_rpn_224", {"class_token": True, "global_pool": "token"}),
    "position biases": ("beit_base_patch16_224", {"global_pool": "token"}),
    "rotary embeddings": ("eva02_tiny_patch14_224", {"global_pool": "token", "img_size": 56}),
    "average pooling": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "attention pool": ("vit_base_patch16_siglip_224", {}),
}

USUAL_FORMS = {
    "no bias": ("vit_tiny_patch16_224", {"qkv_bias": False, "proj_bias": False}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 4}),
    "LayerScale": ("deit3_small_patch16_224", {"init_values": 0.5}),
    "gated MLP": ("vit_giant_patch14_dinov2", {"init_values": 0.5, "img_size": 56}),
    "QuickGELU": ("vit_base_patch32_clip_quickgelu_224", {}),
}


def built(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **(small.SIZES | options)).eval()
    for weight in model.parameters():  # branches that count, and no bias of zeros
        nn.init.normal_(weight, 0.1, 0.2)
    return model


def tokens_of(view: View, count: int = 3) -> Tensor:
    return view.embed(pictures(count, view.size).to(view.dtype)).detach()


def answers(view: View, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """With the short form, and through every block as it is."""
    layout = view.layout(view.size)
    return view.answer(tokens, layout), view.answer(tokens, layout, plain=True)


def short_of(view: View) -> nn.Module | None:
    """The last block's short form, if it has one."""
    return view.passage.last_block(view, block_of(view), tokens_of(view, 1).shape[-1], view.layout(view.size))


def is_short(view: View) -> bool:
    return short_of(view) is not None


def block_of(view: View) -> nn.Module:
    assert view.blocks is not None
    return view.blocks.modules[-1]


# ------------------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize("name", CLASS_TOKEN)
def test_every_class_token_model_answers_the_same(name):
    view = view_of(name)
    assert is_short(view)
    tokens, passes = tokens_of(view), view.meter.forwards
    found, expected = answers(view, tokens)
    assert near(found, expected, 1e-5)
    assert view.meter.forwards - passes == 2 * 3


@pytest.mark.parametrize("name", CLASS_TOKEN)
def test_and_in_float64(name):
    view = double_view(name)
    assert is_short(view)
    assert near(*answers(view, tokens_of(view)), 1e-10)


@pytest.mark.parametrize("name", OTHERS)
def test_heads_that_read_more_are_left_alone(name):
    view = view_of(name)
    assert not is_short(view)
    found, expected = answers(view, tokens_of(view))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("name", "options"), OTHER_FORMS.values(), ids=OTHER_FORMS)
def test_blocks_of_other_forms_are_left_alone(name, options):
    view = load(built(name, **options))
    assert not is_short(view)
    found, expected = answers(view, tokens_of(view))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("name", "options"), USUAL_FORMS.values(), ids=USUAL_FORMS)
def test_variants_of_the_usual_form(name, options):
    view = load(built(name, **options).double())
    assert is_short(view)
    found, expected = answers(view, tokens_of(view))
    assert near(found, expected, 1e-10)
    assert not near(found[:1], expected[1:2], 1e-4)  # the answers do tell the images apart


@pytest.mark.parametrize("model", [HandMade(), Unfolded().eval()], ids=["by hand", "torch encoder layers"])
def test_home_made_models(model):
    view = load(model, size=(32, 40))
    assert is_short(view)
    assert near(*answers(view, tokens_of(view)))


@pytest.mark.parametrize("patches", [0, 1, 50])
@pytest.mark.parametrize("name", [SMALL, "dinov2_reg4", "torchvision_vit_b_32", "hf_vit"])
def test_fewer_tokens(name, patches):
    view = double_view(name)
    assert near(*answers(view, tokens_of(view)[:, : ZOO[name].prefix + patches]), 1e-10)


def test_removal_runs_through_it(monkeypatch):
    view = view_of(SMALL)
    tokens, layout, keep = tokens_of(view), view.layout(view.size), half_kept(3, 196, ragged=True)
    gathered = view.respond(tokens, keep, layout, "gather")
    assert is_short(view)
    assert near(gathered, view.respond(tokens, keep, layout, "mask"))
    monkeypatch.setattr(view.passage, "last_block", lambda *_: None)
    assert near(gathered, view.respond(tokens, keep, layout, "gather"))


def test_pictures_of_another_size():
    view = load(built("vit_tiny_patch16_224", dynamic_img_size=True))
    images = pictures(2, (96, 48))
    tokens, layout = view.embed(images), view.layout((96, 48))
    assert near(view.answer(tokens, layout), view.logits(images))
    assert is_short(view)


def test_a_mask_that_only_one_size_has():
    view = load(built("vit_tiny_patch16_224"))
    tokens, layout = tokens_of(view), view.layout(view.size)
    mask = torch.ones(layout.tokens, layout.tokens, dtype=torch.bool).tril()
    masked = replace(layout, extras=(*layout.extras[:-1], ((), {"attn_mask": mask})))
    assert is_short(view)
    found, expected = view.answer(tokens, masked), view.answer(tokens, masked, plain=True)
    assert torch.equal(found, expected)
    assert not near(found, view.answer(tokens, layout), 1e-3)


@pytest.mark.parametrize("name", [SMALL, "hf_vit", "torchvision_vit_b_32"])
def test_gradients(name):
    view = double_view(name)
    layout, given = view.layout(view.size), tokens_of(view, 2).requires_grad_()
    found, expected = (
        torch.autograd.grad(view.answer(given, layout, plain=plain)[:, 1].sum(), given)[0] for plain in (False, True)
    )
    assert is_short(view)
    assert near(found, expected, 1e-10)


# ------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
def test_precision(precision):
    view = load(built("vit_tiny_patch16_224"))
    tokens = tokens_of(view)
    exact = view.answer(tokens, view.layout(view.size))
    with view.using(precision):
        found, expected = answers(view, tokens)
        assert is_short(view)
    assert found.dtype == expected.dtype
    assert near(found.float(), exact, 3e-2)
    assert near(found.float(), expected.float(), 3e-2)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_first_asked_at_a_low_precision(precision):
    view = load(built("vit_tiny_patch16_224"))
    with view.using(precision):
        assert is_short(view)
    assert near(*answers(view, tokens_of(view)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_half_precision(dtype):
    view = load(built("vit_tiny_patch16_224").to(dtype))
    found, expected = answers(view, tokens_of(view))
    assert is_short(view)
    assert found.dtype == expected.dtype == dtype
    assert near(found.float(), expected.float(), 3e-2)


# ------------------------------------------------------------------------------------------------------- changes


def _in_place(model: nn.Module) -> None:
    with torch.no_grad():
        model.blocks[-1].attn.qkv.weight.mul_(1.5)


def _behind_torchs_back(model: nn.Module) -> None:  # no version is counted
    for weight in model.blocks[-1].parameters():
        weight.data.mul_(1.5)


def _replaced(model: nn.Module) -> None:
    model.blocks[-1].mlp.fc2.weight = nn.Parameter(2 * model.blocks[-1].mlp.fc2.weight.detach())


def _loaded(model: nn.Module) -> None:
    model.load_state_dict({key: 1.2 * value for key, value in model.state_dict().items()}, assign=True)


def _another_activation(model: nn.Module) -> None:
    model.blocks[-1].mlp.act = nn.ReLU()


def _another_head(model: nn.Module) -> None:
    model.head = nn.Linear(48, 6, dtype=torch.float64)


@pytest.mark.parametrize(
    "change", [_in_place, _behind_torchs_back, _replaced, _loaded, _another_activation, _another_head]
)
def test_what_changes_afterwards_is_followed(change):
    model = built("vit_tiny_patch16_224").double()
    view = load(model)
    tokens = tokens_of(view)
    before, _ = answers(view, tokens)
    change(model)
    found, expected = answers(view, tokens)
    assert is_short(view)
    assert near(found, expected, 1e-10)
    assert not near(found, before, 1e-3)


def test_another_type_afterwards():
    model = built("vit_tiny_patch16_224")
    view = load(model)
    tokens = tokens_of(view)
    assert is_short(view)
    model.double()
    assert near(*answers(view, tokens.double()), 1e-10)
    assert is_short(view)


def test_another_form_afterwards():
    model = built("vit_tiny_patch16_224")
    view = load(model)
    assert is_short(view)
    model.blocks[-1].attn.q_norm = nn.LayerNorm(16)
    assert not is_short(view)
    found, expected = answers(view, tokens_of(view))
    assert torch.equal(found, expected)


class Skewed(nn.Module):
    """A linear layer with a second one beside it that starts at zero, as LoRA has it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.beside = nn.Linear(layer.in_features, layer.out_features, bias=False)
        nn.init.zeros_(self.beside.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.beside(x)


def test_weights_that_do_nothing_yet_are_of_another_form():
    model = built("vit_tiny_patch16_224")
    model.blocks[-1].attn.qkv = Skewed(model.blocks[-1].attn.qkv)
    assert not is_short(load(model))


def test_a_head_of_zeros_tells_nothing():
    model = built("vit_tiny_patch16_224", global_pool="avg")
    head = copy.deepcopy(model.head.state_dict())
    nn.init.zeros_(model.head.weight)
    view = load(model)
    assert not view.readout.patches  # a guess, and here a wrong one
    answers(view, tokens_of(view))
    model.head.load_state_dict(head)
    images = pictures(2, view.size)
    with torch.no_grad():
        assert near(view.answer(view.embed(images), view.layout(view.size)), model(images))


# ------------------------------------------------------------------------------------------------------- onlookers


def _on_forward(block: nn.Module, seen: list[object]) -> torch.utils.hooks.RemovableHandle:
    return block.mlp.fc1.register_forward_hook(lambda *_: seen.append(1))


def _before_forward(block: nn.Module, seen: list[object]) -> torch.utils.hooks.RemovableHandle:
    return block.register_forward_pre_hook(lambda *_: seen.append(1))


def _on_backward(block: nn.Module, seen: list[object]) -> torch.utils.hooks.RemovableHandle:
    return block.attn.register_full_backward_hook(lambda *_: seen.append(1))


def _everywhere(block: nn.Module, seen: list[object]) -> torch.utils.hooks.RemovableHandle:
    return nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(1) if module is block else None
    )


@pytest.mark.parametrize("watch", [_on_forward, _before_forward, _on_backward, _everywhere])
def test_a_watched_block_runs_as_it_is(watch):
    view, seen = load(built("vit_tiny_patch16_224")), []
    assert is_short(view)
    handle = watch(block_of(view), seen)
    try:
        assert not is_short(view)
        given = tokens_of(view).requires_grad_()
        view.answer(given, view.layout(view.size)).sum().backward()
        assert seen
    finally:
        handle.remove()
    assert is_short(view)


def test_a_covered_forward_is_called():
    view = load(built("vit_tiny_patch16_224"))
    tokens = tokens_of(view)
    before, _ = answers(view, tokens)
    block_of(view).mlp.forward = lambda x: torch.zeros_like(x)
    found, expected = answers(view, tokens)
    assert torch.equal(found, expected)
    assert not near(found, before, 1e-3)


def test_a_tap_sees_all_of_the_attention():
    view = load(built("vit_tiny_patch16_224"))
    layout = view.layout(view.size)
    assert is_short(view)
    with Tap(read=True) as tap:
        view.answer(tokens_of(view, 1), layout)
    assert [attention.shape[-2] for attention in tap.attention] == [layout.tokens] * view.depth


def test_it_is_looked_for_once(monkeypatch):
    view, calls = load(built("vit_tiny_patch16_224")), []
    find = blockform.find_short
    monkeypatch.setattr(blockform, "find_short", lambda *given: calls.append(1) or find(*given))
    for _ in range(3):
        answers(view, tokens_of(view))
    view.answer(tokens_of(view)[:, :9], view.layout(view.size))
    assert len(calls) == 1


def test_the_model_comes_back_as_it_was():
    model = built("vit_tiny_patch16_224").train()
    weights = dict(model.named_parameters())
    view = load(model)
    answers(view, tokens_of(view))
    assert is_short(view)
    assert all(weight is weights[name] and weight.requires_grad for name, weight in model.named_parameters())
    assert model.blocks[-1].training
    own = {weight.untyped_storage().data_ptr() for weight in model.blocks[-1].parameters()}
    short = short_of(view)
    assert {weight.untyped_storage().data_ptr() for weight in short.parameters()} == own  # nothing is kept twice


def test_the_yardstick_is_the_plain_chain(monkeypatch):
    view = load(built("vit_tiny_patch16_224"))
    monkeypatch.setattr(view.passage, "last_block", lambda *_: pytest.fail("the short form was asked for"))
    assert roofline(view) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [SMALL, "hf_vit"])
def test_compiled(name):
    view = view_of(name)
    tokens, layout = tokens_of(view), view.layout(view.size)
    compiled.cache_clear()
    torch.compiler.reset()
    for given in (tokens, tokens[:2], tokens[:2, :60], tokens[:, :30]):
        with torch.no_grad():
            expected = view.answer(given, layout, plain=True)
            with view.using(None, True):
                assert is_short(view)
                assert near(view.answer(given, layout), expected)


@pytest.mark.slow
def test_compiled_without_blocks():
    """A CNN is compiled in one piece; what wants gradients is not."""
    view = view_of("tf_efficientnet_lite0")
    torch.compiler.reset()
    images = pictures(3, view.size)
    with torch.no_grad():
        for given in (images, images[:2], images[:1]):
            expected = view.logits(given)
            with view.using(None, True):
                assert near(view.logits(given), expected)
    with view.using(None, True):
        view.passage._whole = None
        view.logits(images.requires_grad_()).sum().backward()
    assert view.passage._whole is None
    assert images.grad is not None
