"""ALTI against explicit vectors, in float64."""

import pytest
import torch

import oracles.norms
from helpers.oracle import oracle
from helpers.small import close, exact
from helpers.zoo import pictures
from method.decomposition.test_norms import MODELS, lively, viewed
from vitrail.method import ALTI, Plus, Rollout
from vitrail.method.base import Batch
from vitrail.method.decomposition import alti
from vitrail.model import load
from vitrail.model.target import Target

REFERENCES = ["attn", "block"]


@oracle("alti")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("reference", REFERENCES)
def test_agrees_with_explicit_vectors(name: str, reference: str) -> None:
    model = lively(name)
    view = viewed(model, name)
    images = pictures(2, view.size).double()
    method, known = ALTI(reference=reference), f"alti({reference})"
    matrices, _ = method.matrices(view, Batch(images, Target(torch.tensor([0, 5]))), 0)
    maps = exact(method, view, images, 0)
    assert torch.equal(maps, exact(Rollout(method), view, images, 0))
    for i, image in enumerate(images):
        for found, expected in zip(matrices, oracles.norms.matrices(known, model, image), strict=True):
            assert close(found[i], expected)
        assert close(maps[i], oracles.norms.rolled(known, model, image))


@pytest.mark.parametrize("reference", REFERENCES)
def test_rows_are_streamed(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = load(lively("class token"))
    images = pictures(2, view.size).double()
    whole = exact(ALTI(reference=reference), view, images, 0)
    monkeypatch.setattr(alti, "_CHUNK", 3 * 17 * 48)
    assert close(exact(ALTI(reference=reference), view, images, 0), whole)


def test_a_row_without_contributions_is_its_own() -> None:
    model = lively("class token")
    view = load(model)
    images = pictures(1, view.size).double()
    attention = model.blocks[0].attn
    with torch.no_grad():  # nothing is sent, and the bias turns token 3 round: all that is left points away from it
        attention.qkv.weight[96:] = 0
        attention.qkv.bias[96:] = 0
        attention.proj.bias.copy_(-10 * view.embed(images)[0, 3])
    (first, *_), _ = ALTI().matrices(view, Batch(images, Target(torch.tensor([0]))), 0)
    assert torch.equal(first[0, 3], torch.eye(17).double()[3])
    assert torch.allclose(first.sum(-1), torch.ones(1, 17).double())


def test_plus_adds_the_layers_own_rows() -> None:
    model = lively("average pooling")
    view = load(model)
    images = pictures(1, view.size).double()
    layers = oracles.norms.matrices("alti(attn)", model, images[0])
    expected = sum(oracles.norms.readout(model, layer) for layer in layers)
    assert close(exact(Plus(ALTI()), view, images, 0), expected)
