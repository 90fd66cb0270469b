"""Others call the model while it is explained: they get their own answers, and the explanation stays what it is."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vitrail
from helpers.odd import cnn
from helpers.odd import vit as small_vit
from helpers.zoo import pictures
from vitrail import Likeness, explain
from vitrail.model import Hooks, View, load, representation
from vitrail.model.anatomy.hooks import covered

SIZE, OTHER = (32, 32), (48, 32)


def vit() -> nn.Module:
    return small_vit(dynamic_img_size=True)


class Interruptions:
    """Wherever one of some modules has run in this thread, another thread calls the whole model with its own pictures.

    The hooks are the caller's own, such as any user may put on a model.
    """

    def __init__(self, model: nn.Module, at: list[nn.Module]) -> None:
        self.model = model
        self.theirs = [pictures(2, SIZE, seed=7), pictures(1, OTHER, seed=8)]
        with torch.no_grad():
            self.expected = [model(images) for images in self.theirs]
        self.wrong = self.calls = self.moments = 0
        self.here: int | None = None
        for module in at:
            module.register_forward_hook(self.heard)

    @contextmanager
    def on(self) -> Iterator[None]:
        self.here = threading.get_ident()
        yield
        self.here = None
        assert self.calls > 0
        assert self.wrong == 0

    def heard(self, *_: object) -> None:
        if threading.get_ident() == self.here:
            self.moments += 1
            if self.moments > 20 and self.moments % 7:
                return
            thread = threading.Thread(target=self.call)
            thread.start()
            thread.join(60)
            assert not thread.is_alive(), "the call waits for the explanation"

    def call(self) -> None:
        which = self.calls % len(self.theirs)
        with torch.no_grad():
            found = self.model(self.theirs[which])
        self.calls += 1
        self.wrong += not torch.equal(found, self.expected[which])


def interrupted_vit() -> Interruptions:
    model = vit()
    return Interruptions(model, [model.patch_embed, model.blocks[0].norm1, model.blocks[1], model.norm, model.head])


def interrupted_cnn() -> Interruptions:
    model = cnn()
    return Interruptions(model, [model[0], model[2], model[4], model[7]])


ON_VIT = [
    *("tis(masks=6)", "atman(grid=2)", "skipplus(decompx)", "gradcam", "fullgrad", "t_attr", "lrp", "inflow"),
    *("skipplus(fullgrad_plus)", "ablationcam(channels=2)"),
]
ON_CNN = ["rise(masks=4)", "gradcam", "fullgrad", "lrp", "ablationcam(channels=2)"]


@pytest.mark.parametrize(
    ("build", "spec"),
    [*((interrupted_vit, spec) for spec in ON_VIT), *((interrupted_cnn, spec) for spec in ON_CNN)],
)
def test_a_call_in_the_middle_of_an_explanation(build: Callable[[], Interruptions], spec: str) -> None:
    """The other thread calls between any two steps of ours, again and again, and not only now and then."""
    others = build()
    view = load(others.model, size=SIZE)
    images = pictures(2, SIZE)
    alone = explain(view, images, spec)
    with others.on():
        beside = explain(load(others.model, size=SIZE), images, spec)
    assert torch.equal(beside.maps, alone.maps)
    assert torch.equal(beside.logits, alone.logits)


def test_a_call_in_the_middle_of_a_look() -> None:
    others, images = interrupted_vit(), pictures(2, SIZE)
    alone = load(others.model, size=SIZE)
    reference = representation(alone, images)
    with others.on():
        beside = load(others.model, size=SIZE)
        assert beside.layout(OTHER).grid == (6, 4)
        assert beside.parts is not None
        assert torch.equal(representation(beside, images), reference)
        like = explain(beside, images, "decompx", Likeness(reference[0]))
    assert (beside.readout, beside.offers) == (alone.readout, alone.offers)
    assert torch.equal(like.maps, explain(alone, images, "decompx", Likeness(reference[0])).maps)


@pytest.mark.parametrize("spec", ["tis(masks=64)", "skipplus(decompx)"])
def test_two_threads_serve_while_one_explains(spec: str) -> None:
    model = vit()
    view, mine = load(model, size=SIZE), [pictures(2, SIZE, seed=seed) for seed in range(3)]
    theirs = [[pictures(2, SIZE, seed=10), pictures(3, SIZE, seed=11)], [pictures(2, OTHER, seed=12)]]
    alone = [explain(view, images, spec).maps for images in mine]
    with torch.no_grad():
        expected = [[model(images) for images in some] for some in theirs]
    done, served, wrong = threading.Event(), [0, 0], []

    def serve(who: int) -> None:
        while not done.is_set() or served[who] < 2:
            i = served[who] % len(theirs[who])
            with torch.no_grad():
                found = model(theirs[who][i])
            if not torch.equal(found, expected[who][i]):
                wrong.append(found)
            served[who] += 1

    threads = [threading.Thread(target=serve, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    try:
        beside = [explain(view, images, spec).maps for _ in range(2) for images in mine]
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert min(served) >= 2
    assert not wrong
    assert all(torch.equal(one, other) for one, other in zip(beside, alone * 2))


def test_two_models_that_share_their_blocks() -> None:
    """Their views have a lock each, so both may be at work at once: neither takes the other's covers off."""

    def around(body: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Identity(), body)

    body = vit()
    views = [load(around(body), size=SIZE) for _ in range(2)]
    batches = [pictures(2, SIZE, seed=seed) for seed in range(2)]
    alone = [explain(view, images, "tis(masks=64)").maps for view, images in zip(views, batches)]
    found: list[list[Tensor]] = [[], []]
    start = threading.Barrier(2)

    def work(view: View, images: Tensor, into: list[Tensor]) -> None:
        start.wait(60)
        into += [explain(view, images, "tis(masks=64)").maps for _ in range(3)]

    threads = [threading.Thread(target=work, args=three) for three in zip(views, batches, found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(len(maps) == 3 and all(torch.equal(one, there) for one in maps) for maps, there in zip(found, alone))


# ------------------------------------------------------------------------------------------------- how it is done


def test_no_hook_is_heard_by_others() -> None:
    """All hooks are put on by one file, which hides them from other threads."""
    source = Path(vitrail.__file__).parent
    hooking = {file.name for file in source.rglob("*.py") if "register_forward" in file.read_text(encoding="utf-8")}
    assert hooking == {"hooks.py"}


def elsewhere(run: Callable[[], Tensor]) -> Tensor:
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join(60)
    return found[0]


def test_covers_of_two_threads() -> None:
    layer, x = nn.Identity(), torch.ones(1)
    seen: list[float] = []

    def other() -> Tensor:
        with covered({layer: lambda x: x * 3}):
            seen.append(float(layer(x)))
        return layer(x)

    with covered({layer: lambda x: x * 2}):
        with covered({layer: lambda x: x * 5}):
            assert layer(x) == 5
            assert elsewhere(lambda: layer(x)) == 1
        assert elsewhere(other) == 1
        assert layer(x) == 2
    assert seen == [3]
    assert layer(x) == 1
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("own", [None, lambda x: x * 7])
def test_covers_go_whatever_happens(own: Callable[..., Tensor] | None) -> None:
    """Also where the instance has a forward of its own, as accelerate's hooks give it one."""
    layer, x = nn.Identity(), torch.ones(1)
    if own is not None:
        layer.forward = own  # type: ignore[method-assign]
    with pytest.raises(KeyError), covered({layer: lambda x: x * 2}):  # noqa: PT012
        assert layer(x) == 2
        assert elsewhere(lambda: layer(x)) == (1 if own is None else 7)
        raise KeyError
    assert vars(layer).get("forward") is own


def test_hooks_that_change_what_passes() -> None:
    layer, x = nn.Identity(), torch.ones(1)
    with Hooks() as hooks:
        hooks.before(layer, lambda _, args: (args[0] * 2,))
        hooks.before(layer, lambda _, args, kwargs: (args, kwargs), named=True)
        hooks.behind(layer, lambda _, __, output: output + 1)
        assert layer(x) == 3
        assert elsewhere(lambda: layer(x)) == 1
    assert layer(x) == 1
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks
