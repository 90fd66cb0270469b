"""Sliding windows against Captum and against loops."""

import captum.attr
import pytest
import torch

import vitrail
from helpers.games import Convolutions
from helpers.oracle import oracle
from helpers.small import build, close, exact, off
from helpers.zoo import pictures
from oracles import perturbation as slow
from vitrail.method.perturbation.occlusion import windows
from vitrail.model import load

TARGETS = [3, 5]


@oracle("occlusion")
@pytest.mark.parametrize(("window", "stride"), [(32, 16), (20, 12), (64, 1)])
def test_occlusion_agrees_with_captum(window: int, stride: int) -> None:
    model, images = build("class token"), pictures(2, (64, 64)).double()
    with torch.no_grad():
        expected = captum.attr.Occlusion(model).attribute(
            images, (3, window, window), (3, stride, stride), target=TARGETS, perturbations_per_eval=8
        )
    found = exact(f"occlusion(window={window}, stride={stride}, score=logit)", model, images, TARGETS)
    assert off(found, expected[:, 0].double()) <= 1e-6  # Captum adds up in float32


def test_occlusion_agrees_with_captum_on_a_cnn() -> None:
    model, images = Convolutions(), pictures(2, (32, 48)).double()
    with torch.no_grad():
        expected = captum.attr.Occlusion(lambda x: model(x).softmax(1)).attribute(
            images, (3, 12, 12), (3, 7, 7), target=TARGETS, baselines=0, perturbations_per_eval=8
        )
    found = exact("occlusion(window=12, stride=7)", load(model, size=(32, 48)), images, TARGETS)
    assert off(found, expected[:, 0].double()) <= 1e-5


@oracle("pami")
@pytest.mark.parametrize("name", ["occlusion", "pami"])
@pytest.mark.parametrize("score", ["probability", "logit"])
def test_agrees_with_a_loop_over_windows(name: str, score: str) -> None:
    model, images = build("registers", img_size=(56, 42)), pictures(2, (56, 42)).double()
    found = exact(f"{name}(window=15, stride=10, score={score})", model, images, TARGETS)
    for i, target in enumerate(TARGETS):
        expected = slow.sliding(model, images[i], target, 15, 10, hide=name == "occlusion", score=score)
        assert close(found[i], expected)


def test_windows_reach_the_border_and_leave_no_gap() -> None:
    for length, window, stride in [(7, 3, 3), (8, 3, 2), (5, 5, 1), (9, 4, 4)]:
        assert windows(length, window, stride).any(0).all()
    assert windows(8, 3, 3).int().tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0], [0] * 6 + [1, 1]]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("occlusion(window=0)", "window to be 1 to 10,000, but window=0"),
        ("pami(stride=0)", "stride to be 1 to 10,000, but stride=0"),
        ("occlusion(window=8, stride=9)", "gaps between its windows: stride=9 is more than window=8"),
        ("pami(window=65)", "pami's window of 65 pixels does not fit images of 64 x 64 pixels"),
    ],
)
def test_mistakes_get_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(vitrail.InputError, match=words):
        exact(spec, build("class token"), pictures(1, (64, 64)).double(), 0)
