"""The CAM family and FullGrad written to be obvious: one image, one token, one channel or layer at a time, float64."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn


def tokens_and_gradients(model: nn.Module, image: Tensor, target: int) -> tuple[list[Tensor], list[Tensor]]:
    """(T, D) tokens entering every block of a timm ViT and the logit's gradient with respect to them."""
    model = copy.deepcopy(model).double()
    kept: list[Tensor] = []

    def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        args[0].retain_grad()
        kept.append(args[0])

    for block in model.blocks:
        block.register_forward_pre_hook(hook)
    model(image[None].double())[0, target].backward()
    return [x[0].detach() for x in kept], [x.grad[0] for x in kept]


def _channel_gradcam(x: Tensor, g: Tensor) -> Tensor:
    return sum(g) / len(g)


def _channel_gradcam_plus_plus(x: Tensor, g: Tensor) -> Tensor:
    weight = torch.zeros(())
    for value in g:
        if value != 0:
            weight = weight + value * value**2 / (2 * value**2 + sum(x) * value**3 + 1e-7)
    return weight


def _channel_xgradcam(x: Tensor, g: Tensor) -> Tensor:
    return sum(a * b for a, b in zip(x, g)) / (sum(x) + 1e-7)


def _channel_xgradcam_plus(x: Tensor, g: Tensor) -> Tensor:
    return sum(abs(a) * b for a, b in zip(x, g)) / (sum(abs(a) for a in x) + 1e-7)


CHANNEL_WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gradcam": _channel_gradcam,
    "gradcam++": _channel_gradcam_plus_plus,
    "xgradcam": _channel_xgradcam,
    "xgradcam+": _channel_xgradcam_plus,
}
"""One channel's weight from its (T,) values and gradients, all tokens of the layer included."""


def layer_values(name: str, x: Tensor, g: Tensor) -> Tensor:
    """(T,) values of one layer from its (T, D) tokens and gradients; signs are kept."""
    total = torch.zeros(len(x), dtype=x.dtype)
    for channel in range(x.shape[1]):
        values, gradients = x[:, channel], g[:, channel]
        if name == "hirescam":
            weight = gradients
        elif name == "layercam":
            weight = gradients.clamp(min=0)
        else:
            weight = CHANNEL_WEIGHTS[name](values, gradients)
        total += weight * values
    return total


def bias_shares(model: nn.Module, image: Tensor, target: int, kinds: tuple[type, ...]) -> dict[str, Tensor]:
    """Bias x gradient of every layer of some kinds, by name, in the shape of its output for one image; float64.

    The model must not overwrite the outputs of these layers in place.
    """
    model = copy.deepcopy(model).double()
    outputs: dict[str, Tensor] = {}

    def keeping(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
            output.retain_grad()
            outputs[name] = output

        return hook

    layers = {name: m for name, m in model.named_modules() if isinstance(m, kinds) and m.bias is not None}
    for name, layer in layers.items():
        layer.register_forward_hook(keeping(name))
    image = image[None].double().requires_grad_()
    model(image)[0, target].backward()
    shares = {"input": (image * image.grad)[0].detach()}
    for name, layer in layers.items():
        bias = layer.bias
        if isinstance(layer, nn.BatchNorm2d):
            bias = bias - layer.running_mean * layer.weight / (layer.running_var + layer.eps).sqrt()
        if isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
            bias = bias[:, None, None]
        shares[name] = (bias * outputs[name].grad[0]).detach()
    return shares


def fullgrad(shares: dict[str, Tensor], size: tuple[int, int]) -> Tensor:
    """(H, W): every (C, h, w) share made absolute, brought to 0..1, stretched to the pixels, channels added up."""
    total = torch.zeros(size, dtype=torch.float64)
    for share in shares.values():
        share = share.abs()
        share = (share - share.min()) / (share.max() - share.min() + 1e-6)
        stretched = nn.functional.interpolate(share[None], size, mode="bilinear", align_corners=True)[0]
        for channel in stretched:
            total += channel
    return total
