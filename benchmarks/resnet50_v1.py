"""ResNet-50 as first published, with the stride in the first convolution of a stage: a model for ``vitrail bench``.

    vitrail bench var/table1 --model benchmarks/resnet50_v1.py:resnet50

The weights are read from ``$VITRAIL_ASSETS/weights/resnet50_keras_v1.safetensors``.
"""

import os
from dataclasses import replace
from pathlib import Path

import timm
from safetensors.torch import load_file

import vitrail
from vitrail.model import View

MEAN = tuple(value / 255 for value in (123.68, 116.779, 103.939))
STD = (0.229, 0.224, 0.225)


def resnet50() -> View:
    """The model with its weights, in float32."""
    model = timm.create_model("resnet50", pretrained=False)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    weights = load_file(Path(os.environ["VITRAIL_ASSETS"]) / "weights/resnet50_keras_v1.safetensors")
    missing = model.load_state_dict({key: value.float() for key, value in weights.items()}, strict=False)
    strange = [key for key in missing.missing_keys if not key.endswith("num_batches_tracked")] + missing.unexpected_keys
    if strange:
        raise RuntimeError(f"the weights do not fit: {strange}")
    view = vitrail.load(model.eval())
    view.preprocess = replace(view.preprocess, mean=MEAN, std=STD, crop=0.875)
    return view
