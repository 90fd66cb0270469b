"""The CAM family against pytorch-grad-cam, with the layers and reshape functions it must be told about, and oracles.

Both sides run in float64: sums over a channel that nearly cancel are divided by, and in float32 no digits are left.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_grad_cam as peers
import timm
import torch
from pytorch_grad_cam.ablation_layer import AblationLayer
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

import vitrail
from helpers.oracle import oracle
from helpers.small import close, exact
from helpers.zoo import ZOO, double_view, pictures, view_of
from oracles.attention import read
from oracles.cams import layer_values, tokens_and_gradients
from vitrail.method import AblationCAM, AttCAM, Batch, GradCAM, Layered, ScoreCAM, parse
from vitrail.model import Target, load

LAYERS = {
    "vit_tiny_patch16_224": lambda m: m.blocks[-1].norm1,
    "deit_tiny_distilled": lambda m: m.blocks[-1].norm1,
    "dinov2_reg4": lambda m: m.blocks[-1].norm1,
    "non_square": lambda m: m.blocks[-1].norm1,
    "resnet50": lambda m: m.layer4[-1],
    "densenet121": lambda m: m.features[-1],
    "swin_tiny": lambda m: m.norm,
}
GRADIENT_PEERS = {
    "gradcam": peers.GradCAM,
    "gradcam++": peers.GradCAMPlusPlus,
    "xgradcam": peers.XGradCAM,
    "hirescam": peers.HiResCAM,
    "layercam": peers.LayerCAM,
}
TARGETS = [1, 2]


def _reshape(name: str):
    entry = ZOO[name]

    def reshape(tensor: Tensor) -> Tensor:
        if tensor.ndim == 4:
            return tensor if tensor.shape[-1] == entry.grid[1] else tensor.permute(0, 3, 1, 2)
        return tensor[:, entry.prefix :].transpose(1, 2).unflatten(2, entry.grid)

    return reshape


@cache
def _read(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The peer's own activations and gradients."""
    net = double_view(name).model
    with peers.GradCAM(model=net, target_layers=[LAYERS[name](net)], reshape_transform=_reshape(name)) as peer:
        outputs = peer.activations_and_grads(pictures(2, ZOO[name].size).double())
        sum(ClassifierOutputTarget(t)(o) for t, o in zip(TARGETS, outputs)).backward()
        activations = peer.activations_and_grads.activations[0].numpy()
        gradients = peer.activations_and_grads.gradients[0].numpy()
    net.zero_grad(set_to_none=True)
    return activations, gradients


def _peer(cls: type, name: str) -> Tensor:
    """The peer's own steps up to its positive part and min-max scaling, which vitrail leaves to drawing."""
    activations, gradients = _read(name)
    net = double_view(name).model
    with cls(model=net, target_layers=[LAYERS[name](net)], reshape_transform=_reshape(name)) as peer:
        return torch.as_tensor(peer.get_cam_image(None, None, TARGETS, activations, gradients, False)).double()


@oracle("gradcam", "gradcam++", "hirescam", "layercam", "xgradcam")
@pytest.mark.parametrize(
    ("method", "name"),
    [("gradcam", name) for name in LAYERS]
    + [(m, name) for m in GRADIENT_PEERS if m != "gradcam" for name in ("dinov2_reg4", "resnet50", "densenet121")],
)
def test_agrees_with_pytorch_grad_cam(method: str, name: str) -> None:
    view = double_view(name)
    expected = _peer(GRADIENT_PEERS[method], name)
    images = pictures(2, view.size).double()
    found = exact(f"{method}(relu=False)", view, images, TARGETS)
    assert found.shape == expected.shape
    assert close(found, expected)
    assert torch.equal(exact(method, view, images, TARGETS), found.relu())


@oracle("xgradcam+")
@pytest.mark.parametrize("name", ["dinov2_reg4", "resnet50", "densenet121"])
def test_xgradcam_plus_is_its_definition(name: str) -> None:
    x, g = (torch.as_tensor(a).flatten(2) for a in _read(name))
    weights = (g * x.abs()).sum(2) / (x.abs().sum(2) + 1e-7)
    expected = torch.einsum("bc,bcn->bn", weights, x)
    assert close(
        exact("xgradcam+(relu=False)", double_view(name), pictures(2, ZOO[name].size).double(), TARGETS), expected
    )


@pytest.mark.parametrize("method", [*GRADIENT_PEERS, "xgradcam+"])
def test_layers_are_their_definition(method: str) -> None:
    base = parse(method)
    assert isinstance(base, Layered)
    view = double_view("dinov2_reg4")
    images = pictures(2, view.size).double()
    with view.still():
        found = base.layers(view, Batch(images, Target(torch.tensor(TARGETS))), 1)
    assert found.shape == (2, 2, 69)
    for i, target in enumerate(TARGETS):
        tokens, gradients = tokens_and_gradients(view.model, images[i], target)
        for layer in (1, 2):
            assert close(found[layer - 1, i], layer_values(method, tokens[layer], gradients[layer]))


def test_frozen_hirescam_layers_are_decompx() -> None:
    view = view_of("dinov2_reg4")
    images = pictures(2, view.size)
    plus = vitrail.explain(view, images, "plus(hirescam(gradient=frozen))").maps
    assert torch.equal(plus, vitrail.explain(view, images, "plus(decompx)").maps)


@oracle("attcam")
@pytest.mark.parametrize("name", ["deit_tiny_distilled", "dinov2_reg4", "average_pooled"])
def test_attcam_is_its_definition(name: str) -> None:
    view = double_view(name)
    net, images = view.model, pictures(2, view.size).double()
    found = exact("attcam", view, images, TARGETS)
    prefix = net.num_prefix_tokens
    rows = range(prefix, prefix + 196) if name == "average_pooled" else range(2 if "distilled" in name else 1)
    for i, target in enumerate(TARGETS):
        attention, gradient = (kept[-1] for kept in read(net, images[i], target))
        expected = torch.zeros(attention.shape[-1] - prefix, dtype=torch.float64)
        for a, g in zip(attention, gradient):
            for row in rows:
                expected += a[row, prefix:] * g[row, prefix:].mean() / len(rows) / len(attention)
        assert close(found[i], expected)
    assert torch.equal(exact("attcam(relu=True)", view, images, TARGETS), found.relu())


def test_attcam_layers_add_up_in_plus() -> None:
    view = double_view("dinov2_reg4")
    images = pictures(1, view.size).double()
    alone = [exact(AttCAM(layer=layer), view, images, 1) for layer in range(3)]
    assert close(exact("plus(attcam)", view, images, 1), sum(alone))
    with pytest.raises(vitrail.InputError, match="layer must be 0 to 2"):
        AttCAM(layer=3).attribute(view, images)


@cache
def small(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "vit":
        return (
            timm.create_model(
                "vit_tiny_patch16_224", img_size=64, embed_dim=24, depth=2, num_heads=2, num_classes=6, reg_tokens=2
            )
            .double()
            .eval()
        )
    return timm.create_model("resnet10t", num_classes=6, channels=(8, 8, 16, 48)).double().eval()


SMALL_LAYERS = {"vit": lambda m: m.blocks[-1].norm1, "cnn": lambda m: m.layer4[-1]}


def _small_reshape(kind: str):
    return (lambda x: x[:, 3:].transpose(1, 2).unflatten(2, (4, 4))) if kind == "vit" else None


def _small_peer(cls: type, kind: str, images: Tensor, **options: object) -> Tensor:
    net = small(kind)
    targets = [ClassifierOutputTarget(t) for t in TARGETS]
    layer = SMALL_LAYERS[kind](net)
    with cls(model=net, target_layers=[layer], reshape_transform=_small_reshape(kind), **options) as peer:
        peer.activations_and_grads(images)
        activations = peer.activations_and_grads.activations[0].numpy()
        peer.activations_and_grads.release()
        return torch.as_tensor(peer.get_cam_image(images, layer, targets, activations, None, False))


@oracle("scorecam")
@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_scorecam_agrees_with_pytorch_grad_cam(kind: str) -> None:
    view = load(small(kind), size=(64, 64))
    images = pictures(2, view.size).double()
    torch.set_default_dtype(torch.float64)  # the peer rounds its scores to the default type
    try:
        expected = _small_peer(peers.ScoreCAM, kind, images)
    finally:
        torch.set_default_dtype(torch.float32)
    before = view.meter.forwards
    found = exact(ScoreCAM(relu=False), view, images, TARGETS)
    channels = _features(kind, images).shape[1]
    assert view.meter.forwards - before == 2 * (channels + 1)
    assert close(found, expected)
    assert close(exact(ScoreCAM(relu=False, channels=channels), view, images, TARGETS), expected)


def _features(kind: str, images: Tensor) -> Tensor:
    """(B, C, rows, columns), read by a hook."""
    kept: list[Tensor] = []
    handle = SMALL_LAYERS[kind](small(kind)).register_forward_hook(lambda _, __, out: kept.append(out.detach()))
    with torch.no_grad():
        small(kind)(images)
    handle.remove()
    return kept[0] if kind == "cnn" else _small_reshape(kind)(kept[0])


def test_scorecam_with_few_channels_takes_those_that_spread_most() -> None:
    view = load(small("vit"), size=(64, 64))
    images = pictures(2, view.size).double()
    found = exact(ScoreCAM(channels=3, relu=False), view, images, TARGETS)
    for i, features in enumerate(_features("vit", images)):
        chosen = features.flatten(1).std(1).argsort(descending=True)[:3]
        scores = []
        for channel in features[chosen]:
            mask = nn.functional.interpolate(channel[None, None], (64, 64), mode="bilinear", align_corners=True)[0]
            mask = (mask - mask.min()) / (mask.max() - mask.min())
            with torch.no_grad():
                scores.append(small("vit")((images[i] * mask)[None])[0, TARGETS[i]])
        expected = (torch.stack(scores).softmax(0)[:, None, None] * features[chosen]).sum(0)
        assert close(found[i], expected)


def test_ablationcam_agrees_with_pytorch_grad_cam_behind_a_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    view = load(small("cnn"), size=(64, 64))
    images = pictures(2, view.size).double()
    # The peer rounds its scores to float32, and its losses are differences of nearly equal ones.
    wide = SimpleNamespace(**(vars(np) | {"float32": np.float64}))
    monkeypatch.setattr("pytorch_grad_cam.ablation_cam.np", wide)
    expected = _small_peer(peers.AblationCAM, "cnn", images, ablation_layer=AblationLayer(), batch_size=16)
    with torch.no_grad():
        logits = view.logits(images)[[0, 1], TARGETS]
    found = exact(AblationCAM(relu=False), view, images, TARGETS)
    # The peer divides by the logit itself, which turns the map around where that is negative.
    assert close(found, expected * logits.sign()[:, None, None])


@oracle("ablationcam")
def test_ablationcam_is_its_definition_on_a_vit() -> None:
    net = small("vit")
    images = pictures(2, (64, 64)).double()
    found = exact(AblationCAM(relu=False), load(net, size=(64, 64)), images, TARGETS)
    features = _features("vit", images)
    for i, target in enumerate(TARGETS):
        with torch.no_grad():
            score = net(images[i : i + 1])[0, target]
            expected = torch.zeros(4, 4, dtype=torch.float64)
            for channel in range(24):

                def without(_: nn.Module, __: tuple[Tensor, ...], out: Tensor, channel: int = channel) -> Tensor:
                    out = out.clone()
                    out[..., channel] = 0
                    return out

                handle = net.blocks[-1].norm1.register_forward_hook(without)
                expected += (score - net(images[i : i + 1])[0, target]) / score.abs() * features[i, channel]
                handle.remove()
        assert close(found[i], expected)


class _Shared(nn.Module):
    """A CNN whose one ReLU serves every layer: its last call makes the features."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 4, 1)
        self.second = nn.Conv2d(8, 6, 3, 4, 1)
        self.act = nn.ReLU()
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.second(self.act(self.first(x)))).mean((2, 3)))


def test_ablationcam_takes_the_last_call_of_a_shared_module() -> None:
    torch.manual_seed(0)
    net = _Shared().double().eval()
    images = pictures(2, (64, 64)).double()
    found = exact(AblationCAM(relu=False), load(net, size=(64, 64)), images, 1)
    with torch.no_grad():
        features = net.act(net.second(net.act(net.first(images))))
        losses = features.mean((2, 3)) * net.head.weight[1]
        expected = (losses / net(images)[:, 1:2].abs())[..., None, None] * features
    assert close(found, expected.sum(1))


@oracle("eigencam")
@pytest.mark.parametrize("name", ["dinov2_reg4", "resnet50", "densenet121"])
def test_eigencam_agrees_with_pytorch_grad_cam_up_to_its_sign(name: str) -> None:
    expected = _peer(peers.EigenCAM, name)
    expected *= torch.stack([m.flatten()[m.abs().argmax()].sign() for m in expected])[:, None, None]
    images = pictures(2, ZOO[name].size).double()
    found = exact("eigencam", double_view(name), images, TARGETS)
    assert close(found, expected)
    assert (found.amax((1, 2)) >= -found.amin((1, 2))).all()
    assert torch.equal(exact("eigencam(relu=True)", double_view(name), images, TARGETS), found.relu())


@pytest.mark.parametrize("spec", ["scorecam(channels=0)", "ablationcam(channels=-2)"])
def test_no_channel_at_all_is_refused(spec: str) -> None:
    with pytest.raises(vitrail.InputError, match="needs channels to be 1 to"):
        parse(spec)


def test_relu_off_keeps_the_sign() -> None:
    view = view_of("vit_tiny_patch16_224")
    images = pictures(2, view.size)
    signed = GradCAM(relu=False).attribute(view, images)
    assert signed.min() < 0
    assert torch.equal(signed.relu(), GradCAM().attribute(view, images))
