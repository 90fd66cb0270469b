"""AtMan against its definition, with attention written out in the place of torch's."""

import pytest
import torch

import oracles.atman
import vitrail
from helpers.oracle import oracle
from helpers.small import MODELS, build, close, exact
from helpers.zoo import pictures
from vitrail.method import AtMan
from vitrail.model import load

TARGETS = [0, 5]


@oracle("atman")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("method", "cells"),
    [
        (AtMan(), list(range(16))),
        (AtMan(suppression=0.0, similarity=None), list(range(16))),
        (AtMan(suppression=0.5, similarity=0.1, grid=2), [0, 0, 1, 1] * 2 + [2, 2, 3, 3] * 2),
    ],
)
def test_agrees_with_the_definition(model: str, method: AtMan, cells: list[int]) -> None:
    module = build(model)
    view = load(module)
    images = pictures(2, view.size).double()
    maps = exact(method, view, images, TARGETS)
    with torch.no_grad():
        for image, target, found in zip(images, TARGETS, maps):
            expected = oracles.atman.atman(module, image, target, method.suppression, method.similarity, cells)
            assert close(found, expected)


def test_patches_that_look_alike_go_together() -> None:
    tokens = torch.nn.functional.normalize(torch.tensor([[[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]]), dim=-1)
    found = AtMan(suppression=0.1, similarity=0.7).factors(tokens)[0]
    torch.testing.assert_close(found, torch.tensor([[0.1, 0.28, 1.0], [0.28, 0.1, 1.0], [1.0, 1.0, 0.1]]))
    alone = AtMan(suppression=0.1, similarity=None).factors(tokens)[0]
    torch.testing.assert_close(alone, torch.ones(3, 3) - 0.9 * torch.eye(3))


def test_a_target_that_is_no_class_is_a_difference_of_scores() -> None:
    view = load(build("class token"))
    images = pictures(1, view.size)
    single = vitrail.explain(view, images, "atman", lambda logits: logits[:, 2]).maps
    double = vitrail.explain(view, images, "atman", lambda logits: 2 * logits[:, 2]).maps
    torch.testing.assert_close(double, 2 * single)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"suppression": 1.0}, "below 1, but suppression=1.0"),
        ({"similarity": 1.5}, r"-1 to 1 \(a cosine\), but similarity=1.5"),
        ({"grid": 0}, "grid to be 1 to"),
    ],
)
def test_mistakes_get_a_sentence(options: dict[str, float], words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        AtMan(**options)
