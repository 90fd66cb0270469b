"""The tap: reading changes nothing, hiding hides, and each backward rule is what its matrix says."""

import copy
import math
import threading

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from helpers.zoo import module, pictures
from vitrail.errors import InputError
from vitrail.model import FROZEN, TRUE, Tap

RULES = [TRUE, FROZEN]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------------- reading


def test_gradient_of_attention_is_that_of_timms_open_attention():
    model, images = module("deit_tiny_distilled"), pictures(2, (224, 224))
    opened = copy.deepcopy(model)
    expected: list[Tensor] = []
    for block in opened.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, output: expected.append(output))
    gradients = torch.autograd.grad(opened(images)[:, 7].sum(), expected)
    with Tap(read=True) as tap:
        found = torch.autograd.grad(model(images)[:, 7].sum(), tap.attention)
    assert len(found) == len(gradients) == 3
    for probabilities, its, gradient, its_gradient in zip(tap.attention, expected, found, gradients):
        assert torch.allclose(probabilities, its, atol=1e-6)
        assert torch.allclose(gradient, its_gradient, rtol=1e-4, atol=1e-5 * its_gradient.abs().max())


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["torchvision_vit_b_32", "open_clip_vit_b_32", "deit_tiny_distilled", "eva02_tiny"])
def test_reading_does_not_change_the_answer(name, grad):
    images = pictures(1, (224, 224))
    with torch.set_grad_enabled(grad):
        expected = module(name)(images)
        with Tap(read=True) as tap:
            found = module(name)(images)
        with Tap():
            untouched = module(name)(images)
    assert len(tap.attention) in (3, 12)
    assert (found - expected).abs().max() <= 2e-6 * max(1, expected.abs().max())
    assert (untouched - expected).abs().max() <= 2e-6 * max(1, expected.abs().max())


def test_a_tap_sees_its_own_thread_only():
    query = random(1, 2, 4, 8)
    other = threading.Thread(target=lambda: F.scaled_dot_product_attention(query, query, query))
    with Tap(read=True) as tap:
        other.start()
        other.join()
        assert tap.attention == []
        F.scaled_dot_product_attention(query, query, query)
    assert len(tap.attention) == 1
    F.scaled_dot_product_attention(query, query, query)
    assert len(tap.attention) == 1


MASKS = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": random(5, 7, seed=4) > -0.5},
    "boolean for each image": {"attn_mask": random(3, 1, 5, 7, seed=4) > -0.5},
    "float": {"attn_mask": random(5, 7, seed=5)},
    "float for each head": {"attn_mask": random(3, 6, 5, 7, seed=5)},
    "scaled": {"scale": 0.3},
}


@pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped queries"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("mask", MASKS)
def test_open_attention_equals_the_fused_kernel(mask, rule, grouped):
    options = {**MASKS[mask], "enable_gqa": grouped}
    if isinstance(options.get("attn_mask"), Tensor) and options["attn_mask"].dtype == torch.bool:
        options["attn_mask"] = options["attn_mask"].clone()
        options["attn_mask"][..., 0] = True  # every query sees something
    heads = 2 if grouped else 6
    query, key, value = random(3, 6, 5, 8), random(3, heads, 7, 8, seed=1), random(3, heads, 7, 4, seed=2)
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    with Tap(read=True, rule=rule) as tap:
        found = F.scaled_dot_product_attention(query, key, value, **options)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert tap.attention[0].shape == (3, 6, 5, 7)
    assert torch.allclose(tap.attention[0].sum(-1), torch.ones((), dtype=torch.float64))


ATTENTIONS = {
    "plain": ({}, {}),
    "without bias": ({"bias": False}, {}),
    "batch first": ({"batch_first": True}, {}),
    "other widths": ({"kdim": 9, "vdim": 5}, {}),
    "weights": ({}, {"need_weights": True}),
    "weights of each head": ({}, {"need_weights": True, "average_attn_weights": False}),
    "float mask": ({}, {"attn_mask": random(4, 6, seed=3)}),
    "boolean mask": ({}, {"attn_mask": torch.ones(4, 6, dtype=torch.bool).triu(1)}),
    "mask for each head": ({}, {"attn_mask": random(2 * 3, 4, 6, seed=3)}),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_multi_head_attention(name):
    options, call = ATTENTIONS[name]
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3, **options).double().eval()
    query, key, value = random(4, 2, 12), random(6, 2, layer.kdim, seed=1), random(6, 2, layer.vdim, seed=2)
    if options.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    call = {"need_weights": False, **call}
    expected, shown = layer(query, key, value, **call)
    with Tap(read=True) as tap:
        found, weights = layer(query, key, value, **call)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert tap.attention[0].shape == (2, 3, 4, 6)
    assert (weights is None) == (shown is None)
    assert shown is None or torch.allclose(weights, shown, rtol=0, atol=1e-12)


def test_multi_head_attention_called_as_a_function_with_a_boolean_mask():
    """Here True means hidden, in scaled_dot_product_attention it means seen."""
    layer = nn.MultiheadAttention(12, 3).double()
    query, mask = random(4, 2, 12), torch.ones(4, 4, dtype=torch.bool).triu(1)

    def call() -> Tensor:
        return F.multi_head_attention_forward(
            *(query, query, query, 12, 3, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0),
            *(layer.out_proj.weight, layer.out_proj.bias),
            training=False,
            attn_mask=mask,
        )[0]

    expected = call()
    with Tap(read=True) as tap:
        assert torch.allclose(call(), expected, rtol=0, atol=1e-12)
    assert (tap.attention[0][..., mask] == 0).all()


def test_multi_head_attention_with_extra_keys_is_refused():
    layer = nn.MultiheadAttention(12, 3, add_bias_kv=True)
    query = torch.randn(4, 2, 12)
    expected = layer(query, query, query)
    with Tap():  # nothing is read here, so nothing can be wrong
        assert all(torch.equal(a, b) for a, b in zip(layer(query, query, query), expected))
    with Tap(read=True), pytest.raises(InputError, match="extra keys or padding, which vitrail cannot read"):
        layer(query, query, query)


# ------------------------------------------------------------------------------------------------------- hiding


def attend_fused(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def attend_softmax(x: Tensor) -> Tensor:
    return (x @ x.transpose(-2, -1)).softmax(-1) @ x


def attend_function(x: Tensor) -> Tensor:
    return F.softmax(input=x @ x.transpose(-2, -1), dim=3) @ x


def attend_module(x: Tensor) -> Tensor:
    return nn.Softmax(dim=-1)(x @ x.transpose(-2, -1)) @ x


def attend_layer(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(24, 3, batch_first=True).double()
    tokens = x.transpose(1, 2).flatten(2)
    return layer(tokens, tokens, tokens, need_weights=False)[0].unflatten(-1, (3, 8)).transpose(1, 2)


ATTENDS = [attend_fused, attend_softmax, attend_function, attend_module, attend_layer]


@pytest.mark.parametrize("attend", ATTENDS)
def test_hidden_keys_get_nothing(attend):
    x, hidden = random(2, 3, 9, 8), torch.zeros(2, 9, dtype=torch.bool)
    hidden[0, [2, 5]] = hidden[1, 8] = True
    with Tap(hidden=hidden, read=True) as tap:
        found = attend(x)
    probabilities = tap.attention[0].transpose(1, 3)  # (batch, keys, queries, heads)
    assert (probabilities[hidden] == 0).all()
    assert (probabilities[~hidden] > 0).all()
    assert torch.allclose(probabilities.sum(1), torch.ones((), dtype=torch.float64))
    with Tap(hidden=hidden):
        assert torch.allclose(attend(x), found, rtol=0, atol=1e-12)
    for i in range(2):
        left = attend(x[i : i + 1, :, ~hidden[i]])
        assert torch.allclose(found[i : i + 1, :, ~hidden[i]], left, rtol=0, atol=1e-12)


def test_hiding_adds_to_the_models_own_mask():
    x, hidden = random(2, 3, 5, 8), torch.tensor([[False, False, False, True, True]] * 2)
    with Tap(hidden=hidden, read=True) as tap:
        found = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    assert (tap.attention[0].triu(1) == 0).all()
    assert (tap.attention[0][..., 3:] == 0).all()
    with Tap(hidden=hidden):
        assert torch.allclose(F.scaled_dot_product_attention(x, x, x, is_causal=True), found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attend", ATTENDS)
def test_scaled_keys_get_less(attend):
    x, factors = random(2, 3, 9, 8), torch.ones(2, 9, dtype=torch.float64)
    factors[0, 2], factors[1, 8] = 0.1, 0.5
    with Tap(read=True) as clean:
        attend(x)
    with Tap(scaled=factors, read=True) as tap:
        found = attend(x)
    scores = clean.attention[0].log()  # up to a number for each query, which the lowest score takes away
    expected = ((scores - scores.amin(-1, keepdim=True)) * factors[:, None, None]).softmax(-1)
    assert torch.allclose(tap.attention[0], expected, rtol=0, atol=1e-12)
    with Tap(scaled=factors):
        assert torch.equal(attend(x), found)
    with Tap(scaled=factors[:, :5]):  # of another length: not for this call
        assert torch.allclose(attend(x), attend(x.clone()), rtol=0, atol=1e-12)


def test_hidden_of_another_length_is_not_for_this_call():
    x = random(2, 3, 9, 8)
    with Tap(hidden=torch.ones(2, 5, dtype=torch.bool)):
        assert torch.equal(attend_softmax(x), attend_softmax(x.clone()))
        assert torch.isfinite(attend_fused(x)).all()


# ------------------------------------------------------------------------------------------------------- frozen


@pytest.mark.parametrize("name", ["deit_tiny_distilled", "average_pooled", "eva02_tiny", "hf_vit"])
def test_frozen_does_not_change_a_bit_of_the_answer(name):
    """Read with the true rule: both open the attention, so that nothing but the rule differs."""
    images = pictures(2, (224, 224))
    answers = []
    for rule in RULES:
        with Tap(rule=rule, read=True):
            answers.append(getattr(out := module(name)(images), "logits", out))
    assert torch.equal(*answers)


X, G = random(6), random(6, seed=1)
WEIGHT, BIAS = random(6, seed=2), random(6, seed=3)
EYE = torch.eye(6, dtype=torch.float64)
DEVIATION = ((X - X.mean()).square().mean() + 1e-3).sqrt()
GATE = 0.5 * (1 + torch.erf(X / math.sqrt(2)))
TANH_GATE = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)))


def hand_made_rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * WEIGHT


FROZEN_MATRICES = {
    "layer_norm": (
        lambda x: F.layer_norm(x, (6,), WEIGHT, BIAS, 1e-3),
        WEIGHT[:, None] * (EYE - 1 / 6) / DEVIATION,
    ),
    "layer_norm without weights": (lambda x: F.layer_norm(x, (6,), eps=1e-3), (EYE - 1 / 6) / DEVIATION),
    "layer_norm over two axes": (
        lambda x: F.layer_norm(x.view(2, 3), [2, 3], WEIGHT.view(2, 3), None, 1e-3).flatten(),
        WEIGHT[:, None] * (EYE - 1 / 6) / DEVIATION,
    ),
    "nn.LayerNorm": (lambda x: nn.LayerNorm(6, eps=1e-3).double()(x), (EYE - 1 / 6) / DEVIATION),
    "gelu": (F.gelu, GATE.diag()),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), TANH_GATE.diag()),
    "nn.GELU": (nn.GELU("tanh"), TANH_GATE.diag()),
    "silu": (F.silu, X.sigmoid().diag()),
    "nn.SiLU in place": (lambda x: nn.SiLU(inplace=True)(x + 0), X.sigmoid().diag()),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), (1.702 * X).sigmoid().diag()),
    "quick gelu, method": (lambda x: x * (1.702 * x).sigmoid(), (1.702 * X).sigmoid().diag()),
    "gelu written out": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2))), GATE.diag()),
    "rms_norm": (
        lambda x: F.rms_norm(x, (6,), WEIGHT, 1e-3),
        (WEIGHT / (X.square().mean() + 1e-3).sqrt()).diag(),
    ),
    "rms_norm, default eps": (lambda x: F.rms_norm(x, (6,)), EYE / X.square().mean().sqrt()),
    "rms_norm written out": (hand_made_rms, (WEIGHT / (X.square().mean() + 1e-3).sqrt()).diag()),
    "normalize": (lambda x: F.normalize(x, dim=-1), EYE / X.norm()),
    "normalize, p=1": (lambda x: F.normalize(x, 1.0, 0), EYE / X.abs().sum()),
    "relu": (F.relu, (X > 0).double().diag()),
    "linear": (lambda x: F.linear(x, X.outer(G), BIAS), X.outer(G)),
}


@pytest.mark.parametrize("name", FROZEN_MATRICES)
def test_frozen_matrix(name):
    function, matrix = FROZEN_MATRICES[name]
    with Tap(rule=FROZEN):
        found = jacobian(function, X)
        value = function(X)
    assert torch.allclose(found, matrix, rtol=0, atol=1e-10)
    assert torch.equal(value, function(X))
    if name not in ("relu", "linear"):
        assert not torch.allclose(jacobian(function, X), matrix, atol=1e-3)  # the true gradient is another one


GATED_UNITS = {
    "silu first": lambda g, x: F.silu(g) * x,
    "silu second": lambda g, x: x * F.silu(g),
    "torch.mul": lambda g, x: torch.mul(F.silu(g), x),
    "method": lambda g, x: F.silu(g).mul(x),
}


@pytest.mark.parametrize("name", GATED_UNITS)
def test_frozen_gated_unit(name):
    with Tap(rule=FROZEN):
        gate, straight = jacobian(GATED_UNITS[name], (G, X))
        value = GATED_UNITS[name](G, X)
    assert (gate == 0).all()
    assert torch.allclose(straight, F.silu(G).diag(), rtol=0, atol=1e-12)
    assert torch.equal(value, GATED_UNITS[name](G, X))


def test_frozen_gated_layer_of_timm():
    layer = timm.layers.SwiGLU(6, 10).double()
    x = random(2, 6)
    with Tap(rule=FROZEN):
        found = jacobian(lambda x: layer(x).sum(0), x)
    for i in range(2):
        gate = F.silu(layer.fc1_g(x[i]))
        expected = layer.fc2.weight @ gate.diag() @ layer.fc1_x.weight
        assert torch.allclose(found[:, i], expected, rtol=0, atol=1e-12)


def test_a_layer_scale_is_no_gate():
    scale = random(6, seed=4)
    with Tap(rule=FROZEN):
        by_scale, by_input = jacobian(lambda s, x: (F.gelu(x[None]) * s)[0], (scale, X))
    assert torch.allclose(by_scale, F.gelu(X).diag())
    assert torch.allclose(by_input, (scale * GATE).diag())


def test_frozen_attention_is_constant_and_can_be_asked():
    query, key, value = (random(1, 2, 4, 8, seed=s).requires_grad_() for s in range(3))
    with Tap(rule=FROZEN, read=True) as tap:
        out = F.scaled_dot_product_attention(query, key, value)
    cotangent = random(1, 2, 4, 8, seed=9)
    found = torch.autograd.grad((out * cotangent).sum(), [query, key, value, tap.attention[0]], allow_unused=True)
    assert found[0] is None
    assert found[1] is None
    probabilities = (query @ key.transpose(-2, -1) / math.sqrt(8)).softmax(-1)
    assert torch.allclose(found[2], probabilities.transpose(-2, -1) @ cotangent)
    assert torch.allclose(found[3], cotangent @ value.transpose(-2, -1))


SMALL = {"depth": 3, "embed_dim": 24, "num_heads": 3, "num_classes": 5, "img_size": 64}
WHOLE = {
    "class token": ("vit_tiny_patch16_224", {}),
    "registers, layer scale, average": (
        "vit_small_patch14_reg4_dinov2",
        {"global_pool": "avg", "img_size": 56, "init_values": 0.3},
    ),
    "gated units": ("vit_small_patch16_224", {"mlp_layer": timm.layers.SwiGLUPacked}),
    "normalised queries and keys": ("vit_tiny_patch16_224", {"qk_norm": True}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_frozen_gradient_is_complete(name):
    """Logit = what the tokens of layer l bring + what every bias from there on brings, for every l."""
    architecture, options = WHOLE[name]
    torch.manual_seed(0)
    model = timm.create_model(architecture, **{**SMALL, **options}).double().eval()
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    states: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    model.blocks[-1].register_forward_hook(lambda _, __, output: states.append(output))
    with Tap(rule=FROZEN):
        logits = model(pictures(2, ((SMALL | options)["img_size"],) * 2).double())
    biases = {key: p for key, p in model.named_parameters() if key.endswith("bias") and "patch_embed" not in key}
    for image, label in ((0, 1), (1, 4)):
        logit = logits[image, label]
        gradients = torch.autograd.grad(logit, [*states, *biases.values()], retain_graph=True, allow_unused=True)
        brought = {key: 0 if g is None else (p * g).sum() for (key, p), g in zip(biases.items(), gradients[4:])}
        for layer, (state, gradient) in enumerate(zip(states, gradients)):
            later = [b for key, b in brought.items() if not key.startswith(tuple(f"blocks.{i}." for i in range(layer)))]
            total = (state * gradient).sum() + sum(later)
            assert abs(total - logit) <= 1e-9 * abs(logit), f"layer {layer}"
            assert abs((state * gradient).sum() - logit) > 1e-3 * abs(logit)  # biases do count
