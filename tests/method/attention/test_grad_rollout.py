"""Gradient rollout as the published code has it, by hand."""

import timm
import torch

from helpers.small import close, exact
from helpers.zoo import pictures
from oracles import attention as by_hand
from vitrail.model import load


def test_grad_rollout_of_the_authors_by_hand() -> None:
    torch.manual_seed(0)
    size = {"img_size": 64, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 6}
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **size).double().eval()
    images, targets = pictures(2, (64, 64)).double(), [1, 4]
    found = exact("grad_rollout(compat=authors)", load(model), images, targets)
    for image, target, one in zip(images, targets, found):
        layers, gradients = by_hand.read(model, image, target)
        # Through the softmax, row by row: its Jacobian is diag(a) - a a'.
        jacobians = [torch.diag_embed(a) - a[..., :, None] * a[..., None, :] for a in layers]
        before = [(jacobian @ g[..., None])[..., 0] for jacobian, g in zip(jacobians, gradients)]
        product = torch.eye(17).double()
        for attention, gradient in zip(layers, before[::-1]):
            mixing = (attention * gradient).mean(0).clamp(min=0)
            dropped = mixing.flatten().argsort()[: int(17 * 17 * 0.9)]
            mixing.view(-1)[dropped] = 0
            mixing = (mixing + torch.eye(17)) / 2
            product = mixing / mixing.sum(-1) @ product  # no keepdim: columns are divided
        assert close(one.flatten(), product[0, 1:])
