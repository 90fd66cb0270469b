"""Metrics on all kinds of models: non-square inputs, no or many prefix tokens, pooled heads, CNNs."""

import numpy as np
import pytest
import torch

import vitrail
from helpers.zoo import ZOO, pictures, view_of

MODELS = ["non_square", "siglip", "dinov2_reg4", "average_pooled", "hf_vit", "swin_tiny", "resnet50"]


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


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_near(precision: str) -> None:
    view = vitrail.load("demo")
    images = view.preprocess.batch([vitrail.scenes.make(seed).pil for seed in (3, 4)])
    maps = vitrail.explain(view, images, "decompx").maps
    wanted = ["deletion(step=2592)", "deletion_aopc", "average_drop"]
    exact, near = (vitrail.evaluate(view, images, maps, wanted, precision=p) for p in ("fp32", precision))
    for one, other in zip(exact.rows, near.rows):
        scale = 100 if "drop" in one.metric else 1
        np.testing.assert_allclose(one.each / scale, other.each / scale, atol=0.03, err_msg=one.metric)
        assert other.protocol["precision"] == precision
