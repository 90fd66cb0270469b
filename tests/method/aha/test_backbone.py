"""A DINOv3 backbone, as in the paper: rotary positions, four register tokens, no classes. Random weights will do."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from helpers.train_setup import ITEMS, SMALL
from helpers.zoo import pictures
from vitrail import explain
from vitrail.method import Explainer
from vitrail.method.aha.explainer import _retold
from vitrail.model import load
from vitrail.train import EXPLAINER, REPORT, loop, train

CODE = """
import timm, torch

def tiny():
    torch.manual_seed(0)
    sizes = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 3}
    return timm.create_model("vit_small_patch16_dinov3", pretrained=False, **sizes)
"""


@pytest.fixture
def backbone(tmp_path: Path) -> str:
    """The name of a small one. In a file of its own, because what timm knows by name has published weights."""
    file = tmp_path / "backbone.py"
    file.write_text(CODE)
    return f"{file}:tiny"


def test_it_sees_the_patches_and_neither_class_nor_register_tokens(backbone: str, tmp_path: Path) -> None:
    view, encoder = load("demo", device="cpu"), load(backbone, device="cpu")
    assert encoder.layout(encoder.size).prefix == 5
    own = Explainer.for_view(view, encoder=backbone, channels=16).eval()
    images, classes = pictures(2, view.size), torch.tensor([0, 1])
    seen = own.encode(view, images).features(classes)
    with torch.no_grad():
        theirs = encoder.model.forward_intermediates(_retold(images, view, encoder), intermediates_only=True)
    for mine, other in zip(seen, theirs, strict=True):
        expected = F.layer_norm(other.movedim(1, -1), (48,)).movedim(-1, 1)
        torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-4)
    maps = own.explain(view, images, classes)
    assert maps.shape == (2, 144, 144)
    own.save_pretrained(tmp_path / "it")
    again = Explainer.from_pretrained(tmp_path / "it")
    assert again.config["encoder"] == backbone, "with its folder, or it would not be found again"
    assert torch.equal(again.explain(view, images, classes), maps)


def test_on_another_device_it_is_looked_at_anew(backbone: str) -> None:
    view, images, classes = load("demo", device="cpu"), pictures(1, (144, 144)), torch.tensor([0])
    own = Explainer.for_view(view, encoder=backbone, channels=16).eval()
    before, maps = own._encoder[0], own.explain(view, images, classes)
    moved = own._encoder_on(torch.device("cpu", 0))  # another name of the same one
    assert moved is not before
    assert (moved.name, moved.fingerprint()) == (before.name, before.fingerprint())
    assert torch.equal(own.explain(view, images, classes), maps)


def test_an_explainer_learns_with_it(backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STEPS", 2)
    view, out = load("demo", device="cpu"), tmp_path / "out"
    frozen = load(backbone, device="cpu").fingerprint()
    own = train(view, ITEMS, out, replace(SMALL, encoder=backbone, steps=2, look=2, sheet=2))
    assert own.config["encoder_fingerprint"] == own._encoder[0].fingerprint() == frozen
    assert "| aha |" in (out / REPORT).read_text()
    found = explain(view, pictures(1, view.size), f"aha(explainer='{out / EXPLAINER}')")
    assert found.maps.isfinite().all()
