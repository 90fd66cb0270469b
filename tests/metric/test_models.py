"""Metrics on real architectures; what test_contract.py asks of small ones is left to the long run."""

import numpy as np
import pytest
import torch

import vitrail
from helpers.zoo import ZOO, pictures, view_of

MODELS = ["siglip", "dinov2_reg4", "hf_vit", "swin_tiny"]
"""No prefix token, many, another library, features with the channels last."""

LIKE_THE_SMALL_ONES = ["non_square", "average_pooled", "resnet50"]


def specs(name: str) -> list[str]:
    height, width = ZOO[name].size
    step = height * width // 3
    tokens = ZOO[name].prefix is not None
    return [
        f"insertion(step={step})",
        f"mas_deletion(step={step})",
        "deletion_aopc(shares=(0.3, 0.6))" if tokens else f"deletion_aopc(baseline=zero_norm, step={step})",
        "comprehensiveness(shares=(0.2,))" if tokens else "comprehensiveness(shares=(0.2,), baseline=zero_norm)",
        "average_drop",
        "road(shares=(0.3,))",
        "irof(segments=6)",
        "faithfulness_correlation(samples=8)",
        "infidelity(samples=4)",
        "max_sensitivity(samples=1)",
        "cascading_randomisation(steps=1)",
        "average_precision",
        "region_attribution",
        "segmentation",
        "sparseness",
    ]


@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in LIKE_THE_SMALL_ONES)]
)
def test_every_kind_of_model_can_be_judged(name: str) -> None:
    view, size = view_of(name), ZOO[name].size
    images = pictures(2, size)
    masks = torch.zeros(2, *size, dtype=torch.bool)
    masks[:, : size[0] // 2, : size[1] // 3] = True
    before = view.fingerprint()
    found = vitrail.evaluate(view, images, "gradcam", specs(name), masks=masks, labels=[0, 1])
    for row in found.rows:
        assert np.isfinite(row.each).all(), row.metric
    assert view.fingerprint() == before
