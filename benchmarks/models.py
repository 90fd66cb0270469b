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
