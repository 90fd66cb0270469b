"""Grad-CAM against pytorch-grad-cam, with the layers and reshape functions it has to be told about."""

import pytest
import torch
from pytorch_grad_cam import GradCAM as Peer
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor

from vitrail.method import GradCAM
from zoo import ZOO, module, pictures, view_of

LAYERS = {
    "vit_tiny_patch16_224": lambda m: m.blocks[-1].norm1,
    "deit_tiny_distilled": lambda m: m.blocks[-1].norm1,
    "dinov2_reg4": lambda m: m.blocks[-1].norm1,
    "non_square": lambda m: m.blocks[-1].norm1,
    "resnet50": lambda m: m.layer4[-1],
    "densenet121": lambda m: m.features[-1],
    "swin_tiny": lambda m: m.norm,
}


def _reshape(name: str):
    entry = ZOO[name]

    def reshape(tensor: Tensor) -> Tensor:
        if tensor.ndim == 4:
            return tensor if tensor.shape[-1] == entry.grid[1] else tensor.permute(0, 3, 1, 2)
        return tensor[:, entry.prefix :].transpose(1, 2).unflatten(2, entry.grid)

    return reshape


@pytest.mark.parametrize("name", LAYERS)
def test_agrees_with_pytorch_grad_cam(name: str) -> None:
    view, net, targets = view_of(name), module(name), [1, 2]
    images = pictures(2, view.size)
    with Peer(model=net, target_layers=[LAYERS[name](net)], reshape_transform=_reshape(name)) as peer:
        # The peer's own steps up to its min-max scaling, which vitrail leaves to drawing.
        outputs = peer.activations_and_grads(images)
        sum(ClassifierOutputTarget(t)(o) for t, o in zip(targets, outputs)).backward()
        activations = peer.activations_and_grads.activations[0].numpy()
        gradients = peer.activations_and_grads.gradients[0].numpy()
        expected = peer.get_cam_image(images, None, targets, activations, gradients, False)
    net.zero_grad(set_to_none=True)
    expected = torch.as_tensor(expected).float().relu()
    found = GradCAM().attribute(view, images, targets)
    assert found.shape == expected.shape
    assert torch.linalg.norm(found - expected) <= 1e-5 * torch.linalg.norm(expected)


def test_relu_off_keeps_the_sign() -> None:
    view = view_of("vit_tiny_patch16_224")
    images = pictures(2, view.size)
    signed = GradCAM(relu=False).attribute(view, images)
    assert signed.min() < 0
    assert torch.equal(signed.relu(), GradCAM().attribute(view, images))
