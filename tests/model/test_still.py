"""Standing still: the model is left as it was found, whatever happens, and whoever else looks at it."""

import copy
import threading

import pytest
import torch
from torch import Tensor, nn

from helpers.homemade import SMALL, HandMade, Unfolded, half_kept, near, own_logits
from helpers.state import state_of
from helpers.zoo import ZOO, module, pictures, view_of
from vitrail.model import FROZEN, Need, load


@pytest.fixture
def mixed() -> nn.Module:
    """A model in train mode, with one part in eval mode and one frozen."""
    torch.manual_seed(0)
    model = HandMade().train()
    model.layers[1].eval()
    model.layers[2].requires_grad_(False)
    return model


def test_still_gives_the_model_back(mixed):
    before = state_of(mixed)
    found = load(mixed, size=(32, 40))
    assert state_of(mixed) == before
    with found.still():
        assert not any(m.training for m in mixed.modules())
        assert not any(p.requires_grad for p in mixed.parameters())
        torch.rand(7)
        with found.still():
            torch.rand(7)
            found.trace(pictures(1, (32, 40)), attention=True, pixels=True, rule=FROZEN)
        assert not any(m.training for m in mixed.modules())  # the inner one must not undo the outer one's work
        assert not any(p.requires_grad for p in mixed.parameters())
    assert state_of(mixed) == before


def test_still_with_shared_parts_and_missing_ones():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Dropout())
            self.again, self.nothing = self.first, None  # one module under two names
            self.last = nn.Linear(4, 4, bias=False)  # its bias is registered as None
            self.tied = nn.Linear(4, 4)
            self.tied.weight = self.last.weight

        def forward(self, images: Tensor) -> Tensor:
            return self.tied(self.last(self.again(images).mean((2, 3))))

    model = Tied().train()
    before = state_of(model)
    found = load(model, size=(16, 16))
    with found.still():
        assert not any(m.training for m in model.modules())
        assert not any(p.requires_grad for p in model.parameters())
        model.tied.weight = nn.Parameter(torch.zeros(4, 4), requires_grad=False)  # a part changed inside stays changed
    assert all(m.training for m in model.modules())
    model.tied.weight = model.last.weight
    assert state_of(model) == before


def test_still_gives_the_model_back_after_an_exception(mixed, monkeypatch):
    found = load(mixed, size=(32, 40))
    before = state_of(mixed)
    with pytest.raises(KeyError), found.still(), found.still():
        raise KeyError(torch.rand(7))
    assert state_of(mixed) == before

    def explode(*_: object) -> Tensor:
        raise KeyError

    images = pictures(1, (32, 40))
    tokens, layout = found.embed(images), found.layout((32, 40))
    asks = (
        lambda: found.trace(images),
        lambda: found.embed(images),
        lambda: found.head(tokens, layout),
        lambda: found.logits(images),
        lambda: found.respond(tokens, torch.ones(1, 20, dtype=torch.bool), layout),
    )
    with monkeypatch.context() as patch:
        patch.setattr(HandMade.Block, "forward", explode)
        patch.setattr(nn.LayerNorm, "forward", explode)
        for ask in asks:
            with pytest.raises(KeyError):
                ask()
            assert state_of(mixed) == before
    assert near(found.trace(images).logits.detach(), mixed(images))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_under_modes_that_forbid_them(mode):
    found, images, home = view_of(SMALL), pictures(1, (224, 224)), HandMade()

    def gradients(images: Tensor) -> list[Tensor]:
        to_pixels, to_tokens = found.trace(images, pixels=True), found.trace(images, attention=True)
        assert near(to_pixels.logits.detach(), to_tokens.logits.detach())
        inside = [to_tokens.states[0], to_tokens.attention[0]]
        pixels = found.gradient(to_pixels.logits[:, 1], [to_pixels.images])
        return pixels + found.gradient(to_tokens.logits[:, 1], inside)

    expected = gradients(images)
    with mode():
        inner = images * 1.0  # in inference mode this is an inference tensor
        with found.still():
            again = gradients(inner)
        assert near(found.logits(inner), module(SMALL)(images).detach())
        layout = found.layout((224, 224))
        found.respond(found.embed(inner), torch.ones(1, 196, dtype=torch.bool), layout)
        assert load(home, size=(32, 40)).depth == 4
    assert all(near(a, b) for a, b in zip(again, expected))


def test_two_threads_at_once():
    found = view_of(SMALL)
    batches = [pictures(2, (224, 224), seed=seed) for seed in range(6)]

    def ask(images: Tensor) -> tuple[Tensor, ...]:
        trace = found.trace(images, attention=True, rule=FROZEN)
        gradient = found.gradient(trace.logits[:, 2], [trace.states[0]], again=True)
        return (trace.logits.detach(), gradient[0], trace.attention[-1].detach(), found.logits(images))

    expected = [ask(images) for images in batches]
    answers: list[tuple[Tensor, ...] | None] = [None] * len(batches)
    start = threading.Barrier(2)

    def work(mine: range) -> None:
        start.wait()
        for i in mine:
            answers[i] = ask(batches[i])

    before = state_of(module(SMALL))
    threads = [threading.Thread(target=work, args=(range(i, len(batches), 2),)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state_of(module(SMALL)) == before
    for found_there, found_here in zip(answers, expected):
        assert found_there is not None
        assert all(near(a, b) for a, b in zip(found_there, found_here))


def test_views_of_one_model_take_turns():
    model = Unfolded().eval()
    first, second = load(model, size=(32, 48)), load(model, size=(32, 48))
    assert first._lock is second._lock
    assert load(Unfolded().eval(), size=(32, 48))._lock is not first._lock


# ------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("name", [SMALL, "dinov2_reg4", "eva02_tiny", "hf_vit"])
def test_bfloat16_weights(name):
    model = copy.deepcopy(module(name)).to(torch.bfloat16)
    found = load(model, size=ZOO[name].size)
    assert (found.depth, found.dtype, found.offers) == (ZOO[name].depth, torch.bfloat16, set(Need) - {Need.RELU})
    images = pictures(1, ZOO[name].size)
    layout = found.layout(found.size)
    trace = found.trace(images, attention=True, rule=FROZEN)
    exact = own_logits(name, images)
    assert near(trace.logits.detach().float(), exact, 0.1)
    (gradient,) = found.gradient(trace.logits[:, 0], [trace.states[0]])
    assert gradient.dtype == torch.bfloat16
    assert torch.isfinite(gradient).all()
    keep = half_kept(1, layout.patches, ragged=False)
    coarse = found.respond(found.embed(images), keep, layout)
    fine = view_of(name).respond(view_of(name).embed(images), keep, layout)
    assert near(coarse, fine, 0.1)


@pytest.mark.parametrize("name", [SMALL, "hf_vit", "tf_efficientnet_lite0"])
def test_autocast(name):
    found, images = load(module(name), size=ZOO[name].size), pictures(1, ZOO[name].size)
    found.precision = "bf16"
    trace = found.trace(images, attention=True, rule=FROZEN)
    assert near(trace.logits.detach().float(), own_logits(name, images), 0.1)
    assert trace.logits.dtype == torch.bfloat16


def test_only_the_given_images_are_remembered() -> None:
    """Changed copies are made anew for each target: their traces would be kept for nothing."""
    view = load("demo", device="cpu")
    images = torch.rand(1, 3, 144, 144)
    other = images.clone()
    with view.still(), view.remembering(images):
        assert view.trace(images) is view.trace(images)
        assert view.trace(other) is not view.trace(other)
    assert view.trace(images) is not view.trace(images)


def test_images_inside_others_are_forgotten_when_done() -> None:
    view = load("demo", device="cpu")
    images = torch.rand(1, 3, 144, 144)
    with view.still(), view.remembering(images):
        first = view.trace(images)
        for _ in range(3):
            noisy = images + torch.rand_like(images)
            with view.remembering(noisy):
                assert view.trace(noisy) is view.trace(noisy)
                assert view.trace(images) is first
                with view.remembering(noisy):
                    found = view.trace(noisy)
                assert view.trace(noisy) is found, "not yet: they are still the ones outside"
            assert view._own.memory is not None
            assert len(view._own.memory) == 1
        assert view.trace(images) is first
