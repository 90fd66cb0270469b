"""Relevance propagation against the layer-by-layer form, in float64."""

import copy
import gc
from typing import Any

import captum.attr
import pytest
import timm
import torch
from captum.attr._utils.lrp_rules import EpsilonRule
from torch import nn

import oracles.lrp
import vitrail
from helpers.oracle import oracle
from helpers.small import close, exact, off
from helpers.zoo import pictures
from vitrail.method import LRP, Batch, PartialLRP, TAttr
from vitrail.method.relevance.lrp import CONSERVING
from vitrail.model import Target, View, load
from vitrail.model.rules import shares
from vitrail.model.rules.relevance import Relevance, relevances, trace_pixels, trace_tokens

_SMALL = {"img_size": 64, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 6}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "class token": ("vit_tiny_patch16_224", {}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "average pooling": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "init_values": 0.5}),
    "not square": ("vit_tiny_patch16_224", {"img_size": (64, 96)}),
}


def vit(model: str = "class token") -> nn.Module:
    name, options = MODELS[model]
    torch.manual_seed(1)
    return timm.create_model(name, pretrained=False, **(_SMALL | options)).double().eval()


def cnn() -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    for norm in (model[1], model[4]):
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
            tensor.copy_(torch.rand_like(tensor) + 0.2)
    model[1].weight.data[0] *= -1  # a factor below zero turns positive weights into negative ones
    return model.double().eval()


@oracle("lrp", "partial_lrp", "t_attr")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("method", "oracle", "options"),
    [
        (TAttr(), "t_attr", {}),
        (TAttr(normalise=True), "t_attr", {"normalise": True}),
        (PartialLRP(), "partial_lrp", {}),
        (LRP(to="tokens"), "lrp_tokens", {}),
        (LRP(to="tokens", rules="conserving"), "lrp_tokens", {"rules": "conserving"}),
    ],
    ids=lambda value: value.spec if isinstance(value, vitrail.method.Method) else "",
)
def test_agrees_with_the_layer_by_layer_form(
    model: str, method: vitrail.method.Method, oracle: str, options: dict[str, Any]
) -> None:
    module = vit(model)
    view = load(module, size=(64, 96) if model == "not square" else None)
    images = pictures(2, view.size).double()
    maps = exact(method, view, images, [0, 5])
    for image, target, found in zip(images, (0, 5), maps):
        assert close(found, getattr(oracles.lrp, oracle)(module, image, target, **options))


def test_lrp_reaches_the_pixels_of_a_vit() -> None:
    module = vit()
    images = pictures(2, (64, 64)).double()
    maps = exact("lrp", module, images, [0, 5])
    for image, target, found in zip(images, (0, 5), maps):
        assert close(found, oracles.lrp.lrp_pixels(module, image, target))


@pytest.mark.parametrize("entry", ["box", "flat", "plain"])
def test_lrp_of_a_cnn_agrees_with_its_matrices(entry: str) -> None:
    module = cnn()
    view = load(module, size=(12, 16))
    images = pictures(2, (12, 16)).double()
    maps = exact(f"lrp(entry={entry}, epsilon=0.01)", view, images, [1, 4])
    for image, target, found in zip(images, (1, 4), maps):
        assert close(found, oracles.lrp.cnn(module, image, target, entry, 0.01))


@pytest.mark.parametrize("entry", ["box", "flat", "plain"])
def test_padding_before_the_first_convolution_is_padding_in_it(entry: str) -> None:
    """As "same" padding is written out, in EfficientNets from TensorFlow for one."""
    module = cnn()
    first = copy.deepcopy(module[0])
    first.padding = (0, 0)
    padded = nn.Sequential(nn.Sequential(nn.ZeroPad2d(1), first), *module[1:])
    images = pictures(2, (12, 16)).double()
    found, expected = (
        exact(f"lrp(entry={entry})", load(model, size=(12, 16)), images, [1, 4]) for model in (padded, module)
    )
    assert close(found, expected)


def test_a_rule_for_pixels_is_refused_where_no_convolution_sees_them() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 16, 5))
    with pytest.raises(vitrail.InputError, match="begins with none; leave it out"):
        vitrail.explain(load(module, size=(12, 16)), pictures(1, (12, 16)), "lrp(entry=flat)", 1)


@pytest.mark.parametrize("entry", ["box", "flat", "plain"])
def test_a_cnn_without_bias_in_its_last_layer_conserves_relevance(entry: str) -> None:
    module = cnn()
    nn.init.zeros_(module[-1].bias)
    view = load(module, size=(12, 16))
    maps = exact(f"lrp(entry={entry}, epsilon=1e-12)", view, pictures(3, (12, 16)).double(), [0, 1, 4])
    assert close(maps.sum((1, 2)), torch.ones(3).double())


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "mobilenetv3_small_100"])  # no max pool decides by a hair
def test_a_cnn_needs_no_float64(name: str) -> None:
    torch.manual_seed(0)
    view = load(timm.create_model(name, num_classes=6), size=(96, 96))
    images = pictures(2, view.size)
    narrow, wide = (LRP(wide=wide).attribute(view, images, [0, 5]) for wide in (False, True))
    assert narrow.dtype == wide.dtype == torch.float32
    assert not torch.equal(narrow, wide), "they are two calculations"
    assert off(narrow.double(), wide.double()) <= 1e-5


@pytest.mark.parametrize("to", ["pixels", "tokens"])
def test_a_score_may_start_with_its_logit(to: str) -> None:
    """Bach et al. hand back the logit itself: what arrives is the share of one times the logit, its sign included."""
    view = load(vit())
    images = pictures(2, view.size).double()
    logits = view.logits(images).detach()
    classes = [int(logits[0].argmin()), int(logits[1].argmax())]
    assert logits[0, classes[0]] < 0 < logits[1, classes[1]]
    of_one, of_all = (exact(f"lrp(to={to}, start={start})", view, images, classes) for start in ("one", "logit"))
    assert close(of_all, of_one * logits[[0, 1], classes].view(-1, 1, 1))


class _Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.ReLU()
        self.head = nn.Linear(4 * 6 * 8, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.relu(self.conv(x)).flatten(1))
        return out


def test_lrp_of_the_logit_is_captums() -> None:
    """A chain of layers without bias has one epsilon rule; Captum starts with the logit as well."""
    torch.manual_seed(0)
    net = _Chain().double()
    captums = captum.attr.LRP(net)
    net.conv.rule, net.head.rule = EpsilonRule(1e-9), EpsilonRule(1e-9)
    images = pictures(2, (12, 16)).double()
    expected = captums.attribute(images.clone(), torch.tensor([1, 4])).detach()
    view = load(net.eval(), size=(12, 16))
    with view.still():
        rules = Relevance(dense="epsilon", convolution="epsilon", epsilon=1e-9)
        logits, leaves = trace_pixels(view, images, rules, "plain")
        found = relevances(view, logits[[0, 1], [1, 4]], leaves, whole=True)[0]
    assert off(found, expected) <= 1e-5
    assert off(found.sum((1, 2, 3)), logits[[0, 1], [1, 4]]) <= 1e-5, "all of the logit arrives"


def test_what_is_asked_again_is_built_once_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(shares, "_built", lambda *args, make=shares._built: (built.append(1), make(*args))[1])
    view = load(cnn(), size=(12, 16))
    images = pictures(2, (12, 16)).double()
    alone = [exact("lrp", view, images, c) for c in (1, 4)]
    once = len(built) // 2
    with view.still(), view.remembering(images):
        kept = LRP().maps_of(view, Batch(images), [Target(torch.tensor([c, c])) for c in (1, 4)])
    assert len(built) == 3 * once
    assert all(torch.equal(*pair) for pair in zip(alone, kept))


def test_what_was_kept_for_several_classes_goes() -> None:
    view = load(cnn(), size=(12, 16))
    images = pictures(2, (12, 16)).double()

    def alive() -> int:
        exact("var(lrp, classes=(1, 2, 3))", view, images, 0)
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    assert alive() == alive()


def test_the_conserving_rules_keep_the_relevance_of_all_tokens() -> None:
    view = load(vit())
    images = pictures(2, view.size).double()
    trace = trace_tokens(view, images, CONSERVING)
    found = relevances(view, trace.logits[:, 3], trace.states)
    for one in found:
        assert close(one.sum((1, 2)), torch.ones(2).double())


@pytest.mark.parametrize("method", [TAttr(), PartialLRP(), LRP(), LRP(to="tokens", rules="conserving")])
def test_an_image_does_not_see_its_neighbours(method: vitrail.method.Method) -> None:
    view = load(vit())
    images = pictures(3, view.size).double()
    images[0] *= 50
    together = exact(method, view, images, 2)
    alone = exact(method, view, images[2:], 2)
    assert close(together[2], alone[0])


@pytest.mark.parametrize("method", [TAttr(start=1), PartialLRP(layer=1)])
def test_attention_written_out_by_hand_gives_the_same(method: vitrail.method.Method) -> None:
    module = vit()
    images = pictures(1, (64, 64)).double()
    fused = exact(method, module, images, 2)
    for block in module.blocks:
        block.attn.fused_attn = False
    # There the stabiliser of 1e-9 is added to products that are scaled already.
    assert off(exact(method, module, images, 2), fused) <= 1e-5


def test_the_values_stay_the_models_own() -> None:
    view: View = load(vit("registers"))
    images = pictures(2, view.size).double()
    assert close(trace_tokens(view, images, CONSERVING).logits.detach(), view.logits(images))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("partial_lrp(layer=3)", "has 3 blocks"),
        ("t_attr(start=3)", "start must be 0 to 2"),
        ("lrp(epsilon=0)", "epsilon to be above 0"),
        ("lrp(wide=False)", "has token blocks; use lrp"),
        ("lrp(wide=False, to=tokens)", "leave out to=tokens"),
    ],
)
def test_bad_settings_are_told(spec: str, words: str) -> None:
    view = load(vit())
    with pytest.raises(vitrail.InputError, match=words):
        vitrail.explain(view, pictures(1, view.size), spec)


def test_tokens_are_refused_where_there_are_none() -> None:
    view = load(cnn(), size=(12, 16))
    with pytest.raises(vitrail.InputError, match="needs a chain of transformer blocks"):
        vitrail.explain(view, pictures(1, (12, 16)), "lrp(to=tokens)")
