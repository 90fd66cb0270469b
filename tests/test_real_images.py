"""Real weights on real pictures: what the command line answers is what the model's own pipeline answers."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

from vitrail.cli import main
from vitrail.model import load

TOP1 = {
    # model: (top-1 published with the weights, every n-th validation image)
    "deit_tiny_patch16_224": (0.7030, 1),
    "vit_tiny_patch16_224": (0.7465, 1),
    "tf_efficientnet_lite0": (0.728, 2),
}


def _labels(assets: Path) -> dict[str, int]:
    with (assets / "data/imagenet_val/labels.csv").open() as file:
        return {row[0]: int(row[1]) for row in list(csv.reader(file))[1:]}


def _explain(assets: Path, out: Path, model: str, images: list[Path], *options: str) -> tuple[dict, dict]:
    """Run the command line, and read what it wrote for one method."""
    checkpoint = assets / "weights" / f"{model}.safetensors"
    arguments = [*map(str, images), "--model", f"timm/{model}", "--checkpoint", str(checkpoint)]
    assert main(["explain", *arguments, "--out", str(out), "--quiet", *options]) == 0
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    with np.load(folder / "maps.npz") as arrays:
        return dict(arrays), json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize("model", TOP1)
def test_logits_are_those_of_timms_own_pipeline(assets: Path, tmp_path: Path, model: str) -> None:
    images = sorted((assets / "data/imagenet_val/images").iterdir())[:6]
    arrays, manifest = _explain(assets, tmp_path, model, images, "--method", "gradcam")
    net = timm.create_model(model, pretrained=False).eval()
    net.load_state_dict(load_file(assets / "weights" / f"{model}.safetensors"), strict=False)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net))
    batch = torch.stack([transform(Image.open(path).convert("RGB")) for path in images])
    with torch.no_grad():
        expected = net(batch)
    assert manifest["images"] == [path.name for path in images]
    assert np.allclose(arrays["logits"], expected.numpy(), atol=2e-4)


@pytest.mark.parametrize("method", ["decompx", "genatt"])
def test_a_class_shows_where_it_is(assets: Path, method: str) -> None:
    """In a picture of an elephant and a zebra, the zebra's map lies right of the elephant's, as the animals do."""
    view = load("timm/deit_tiny_patch16_224", assets / "weights/deit_tiny_patch16_224.safetensors")
    from vitrail import explain

    picture = assets / "data/two_class/el2.png"
    zebra, elephant = (explain(view, picture, method, target).maps[0].relu() for target in ("zebra", 386))
    columns = torch.arange(14.0)
    centre = [float((heat.sum(0) * columns).sum() / heat.sum()) for heat in (zebra, elephant)]
    assert centre[0] > centre[1] + 1


@pytest.mark.slow
@pytest.mark.parametrize("model", TOP1)
def test_top1_is_as_published_with_the_weights(assets: Path, tmp_path: Path, model: str) -> None:
    published, every = TOP1[model]
    labels = _labels(assets)
    folder = assets / "data/imagenet_val/images"
    images = [folder / name for name in labels][::every]
    arrays, manifest = _explain(assets, tmp_path, model, images, "--method", "random", "--batch", "64")
    answers = arrays["logits"].argmax(1)
    right = np.mean([labels[name] == answer for name, answer in zip(manifest["images"], answers)])
    assert abs(right - published) <= 0.0015, f"top-1 {right:.4f}, published {published:.4f}"
