"""AIC and SIC as metrics: one picture of one image after another, each shown to the model by itself."""

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from helpers.oracle import oracle
from oracles import pic as slow
from vitrail import scenes
from vitrail.method import checksum
from vitrail.metric import Case, parse

FEW = (0.05, 0.2, 0.6)


@oracle("aic", "sic")
@pytest.mark.parametrize("name", ["aic", "sic"])
def test_agrees_with_the_definition(name: str) -> None:
    view = vitrail.load("demo")
    sources = [scenes.make(seed).pil for seed in (1, 6)]
    images = view.preprocess.batch(sources)
    maps = vitrail.explain(view, images, "decompx").upsample()
    case = Case(view, images, maps)
    metric = parse(f"{name}(thresholds={FEW})")
    found = metric.of_each(metric.measure(case))
    for i, key in enumerate(checksum(images).abs().tolist()):
        picture = np.asarray(view.preprocess.picture(sources[i]))
        known = np.zeros(144 * 144, bool)
        known[np.random.default_rng((0, key)).choice(144 * 144, int(0.01 * 144 * 144), replace=False)] = True

        def answer(shown: np.ndarray, label: int = int(case.predicted[i])) -> float:
            with torch.no_grad():
                logits = view.logits(view.preprocess.batch([Image.fromarray(shown)]))[0]
            return float(logits.softmax(0)[label]) if name == "sic" else float(logits.argmax() == label)

        expected = slow.of_one(picture, maps[i].numpy(), known.reshape(144, 144), answer, FEW, 0.8, monotone=True)
        assert float(found[i]) == pytest.approx(slow.area(expected), abs=1e-5)
