"""Models that no library names, for the benchmarks: ``--model benchmarks/models.py:resnet50_keras``."""

import timm
from torch import nn

MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
"""Keras subtracts ImageNet's mean in its own rounding."""


def resnet50_keras() -> nn.Module:
    """The ResNet-50 of Keras, without weights: give resnet50_keras_v1.safetensors as the checkpoint.

    It strides in the first convolution of a stage's first block, as ResNet's paper does; timm in the second.
    """
    how = {"input_size": (3, 224, 224), "mean": MEAN, "crop_pct": 224 / 256, "interpolation": "bicubic"}
    model = timm.create_model("resnet50", pretrained=False, pretrained_cfg_overlay=how)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return model


def vit_tiny_112() -> nn.Module:
    """A ViT-tiny/16 with chance weights for 7 x 7 patches; speed does not depend on what a model knows."""
    return _vit_tiny(112)


def vit_tiny_160() -> nn.Module:
    """10 x 10 patches."""
    return _vit_tiny(160)


def vit_tiny_224() -> nn.Module:
    """14 x 14 patches."""
    return _vit_tiny(224)


def vit_tiny_320() -> nn.Module:
    """20 x 20 patches."""
    return _vit_tiny(320)


def vit_tiny_448() -> nn.Module:
    """28 x 28 patches."""
    return _vit_tiny(448)


def _vit_tiny(side: int) -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224",
        pretrained=False,
        img_size=side,
        pretrained_cfg_overlay={"input_size": (3, side, side), "crop_pct": 1.0},
    )
