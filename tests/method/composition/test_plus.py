"""PLUS and SkipPLUS against sums of separate passes, one for each start layer; the published special cases by hand."""

import pytest
import timm
import torch
from torch import Tensor, nn

import vitrail
from helpers.oracle import oracle
from helpers.small import close, exact
from helpers.zoo import pictures
from oracles import attention as by_hand
from oracles.decompx import decompx
from vitrail.method import parse
from vitrail.model import View, load

DEPTH = 5
_SMALL = {"img_size": 64, "embed_dim": 48, "depth": DEPTH, "num_heads": 3, "num_classes": 6}
TARGETS = [1, 4]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, **_SMALL).double().eval()


@pytest.fixture(scope="module")
def view(model: nn.Module) -> View:
    return load(model)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return pictures(2, (64, 64)).double()


def state_at(model: nn.Module, image: Tensor, layer: int) -> Tensor:
    """The tokens that enter a block, by timm's own steps."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(image[None])))
    for block in model.blocks[:layer]:
        x = block(x)
    return x


def ixg_from(model: nn.Module, image: Tensor, target: int, layer: int) -> Tensor:
    """Input x gradient of the network that begins at a block: its own forward and backward pass."""
    x = state_at(model, image, layer).detach().requires_grad_()
    y = x
    for block in model.blocks[layer:]:
        y = block(y)
    logit = model.forward_head(model.norm(y))[0, target]
    (gradient,) = torch.autograd.grad(logit, x)
    return (x * gradient).sum(-1)[0].detach()


@oracle("cat", "plus")
def test_plus_ixg_is_the_sum_over_separate_networks_and_is_cat(model: nn.Module, view: View, images: Tensor) -> None:
    for spec in ("plus(ixg)", "cat"):
        found = exact(spec, view, images, TARGETS)
        for image, target, one in zip(images, TARGETS, found):
            expected = sum(ixg_from(model, image, target, layer) for layer in range(DEPTH))
            assert close(one.flatten(), expected[1:])


@oracle("skipplus")
@pytest.mark.parametrize(
    ("spec", "first"), [("skipplus", 3), ("skipplus(compat=authors)", 2), ("skipplus(start=4)", 4)]
)
def test_skipplus_decompx_is_the_sum_of_forward_decompositions(
    model: nn.Module, view: View, images: Tensor, spec: str, first: int
) -> None:
    found = exact(spec, view, images, TARGETS)
    for image, target, one in zip(images, TARGETS, found):
        expected = sum(decompx(model, image, target, layer) for layer in range(first, DEPTH))
        assert close(one.flatten(), expected)


@oracle("gradsam")
def test_plus_genatt_is_gradsam(model: nn.Module, view: View, images: Tensor) -> None:
    expected_rows, expected_mean = [], []
    for image, target in zip(images, TARGETS):
        attention, gradients = by_hand.read(model, image, target)
        layers = [(a * g).clamp(min=0).mean(0) for a, g in zip(attention, gradients)]
        expected_rows.append(sum(layer[0] for layer in layers)[1:])
        expected_mean.append(sum(layer.mean(0) for layer in layers)[1:] / DEPTH)
    for spec, expected in {
        "plus(genatt)": expected_rows,
        "gradsam": expected_rows,
        "gradsam(rows=mean)": expected_mean,
    }.items():
        found = exact(spec, view, images, TARGETS)
        assert close(found.flatten(1), torch.stack(expected)), spec


@oracle("att_ixg", "attcat")
@pytest.mark.parametrize("compat", ["paper", "authors"])
def test_plus_att_ixg_is_attcat(model: nn.Module, view: View, images: Tensor, compat: str) -> None:
    found = exact(f"attcat(compat={compat})", view, images, TARGETS)
    assert close(exact(f"plus(att_ixg(compat={compat}))", view, images, TARGETS), found)
    alone = exact(f"att_ixg(layer=2, compat={compat})", view, images, TARGETS)
    for i, (image, target) in enumerate(zip(images, TARGETS)):
        attention, _ = by_hand.read(model, image, target)
        layers = []
        for layer in range(DEPTH - 1 if compat == "paper" else DEPTH):
            received = attention[layer].mean((0, 1))
            behind = layer + 1 if compat == "paper" else layer
            layers.append(received * ixg_from(model, image, target, behind))
        assert close(found[i], sum(layers)[1:])
        assert close(alone[i], layers[2][1:])


@oracle("grad_rollout")
def test_grad_rollout_by_hand(model: nn.Module, view: View, images: Tensor) -> None:
    found = exact("grad_rollout", view, images, TARGETS)
    for image, target, one in zip(images, TARGETS, found):
        product = torch.eye(17).double()
        for attention, gradient in zip(*by_hand.read(model, image, target)):
            mixing = (attention * gradient).mean(0).clamp(min=0) + torch.eye(17)
            product = mixing / mixing.sum(-1, keepdim=True) @ product
        assert close(one.flatten(), product[0, 1:])


def test_per_layer_gradient_and_gradcam(model: nn.Module, view: View, images: Tensor) -> None:
    states = [state_at(model, images[0], layer).detach().requires_grad_() for layer in range(DEPTH)]
    gradients = []
    for layer, x in enumerate(states):
        y = x
        for block in model.blocks[layer:]:
            y = block(y)
        gradients += torch.autograd.grad(model.forward_head(model.norm(y))[0, 1], x)
    expected = {
        "plus(saliency)": sum(g.abs().sum(-1) for g in gradients),
        "plus(saliency(reduce=norm2))": sum(g.norm(dim=-1) for g in gradients),
        "plus(gradcam)": sum((g.mean(1, keepdim=True) * x).sum(-1) for g, x in zip(gradients, states)),
    }
    for spec, values in expected.items():
        assert close(exact(spec, view, images[:1], 1), values[0, 1:]), spec


def test_rollout_of_a_method_is_its_own_rolled_out_map(view: View, images: Tensor) -> None:
    rolled = exact("rollout(genatt)", view, images, TARGETS)
    assert torch.equal(rolled, exact("genatt", view, images, TARGETS))


@pytest.mark.parametrize("base", ["decompx", "ixg", "genatt", "att_ixg", "raw_attention"])
def test_all_layers_come_from_one_pass(view: View, images: Tensor, base: str) -> None:
    found = vitrail.explain(view, images.float(), f"plus({base})")
    assert found.forwards == 2
    assert found.backwards in (0, 2)


@pytest.mark.parametrize("spec", ["plus(ig)", "skipplus(random)", "rollout(ixg)"])
def test_methods_without_layers_are_refused(spec: str) -> None:
    with pytest.raises(vitrail.InputError, match=r"at every layer, which .* is not; use .*genatt"):
        parse(spec)
