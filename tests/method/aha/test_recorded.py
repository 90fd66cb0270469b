"""A recorded pass gives the numbers of a plain one, whatever is played after what."""

import pytest
import torch

from vitrail import load
from vitrail.method import Batch, Explainer, parse
from vitrail.method.aha.recorded import KEPT, Recording, recorded
from vitrail.model import Target, View

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def pictures(seed: int, count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, 144, 144, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def view() -> View:
    return load("demo", device="cuda")


def test_a_cpu_records_nothing() -> None:
    view = load("demo")
    explainer = Explainer.for_view(view)
    assert all(recorded(explainer, view, pictures(0)) is None for _ in range(3))


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_and_plain_maps_are_equal(view: View, precision: str) -> None:
    aha = parse("aha")
    with view.using(precision):  # type: ignore[arg-type]
        plain = {}
        for seed in range(3):
            fresh = load("demo", device="cuda")
            with fresh.using(precision):  # type: ignore[arg-type]
                batch = Batch(pictures(seed).cuda(), Target(torch.arange(4)))
                with fresh.still():
                    plain[seed] = aha.maps(fresh, batch), batch.logits
        for seed in (0, 1, 2, 1, 0):
            batch = Batch(pictures(seed).cuda(), Target(torch.arange(4)))
            with view.still():
                maps = aha.maps(view, batch)
            assert batch.logits is not None
            assert torch.allclose(batch.logits, plain[seed][1], 1e-5, 1e-5)
            assert torch.allclose(maps, plain[seed][0], 1e-5, 1e-5)
    with view.still(), view.using(precision):  # type: ignore[arg-type]
        explainer = aha.loaded(view)  # type: ignore[attr-defined]
        assert isinstance(recorded(explainer, view, pictures(5).cuda()), Recording)


@needs_gpu
def test_the_predicted_class_and_the_passes_are_as_without(view: View) -> None:
    aha, counts, found = parse("aha"), [], []
    for _ in range(4):
        batch = Batch(pictures(1).cuda())
        before = view.meter.forwards, view.meter.backwards
        with view.still():
            found.append(aha.maps(view, batch))
        counts.append((view.meter.forwards - before[0], view.meter.backwards - before[1]))
    assert set(counts) == {(4, 4)}
    assert all(torch.allclose(found[0], other, 1e-5, 1e-5) for other in found[1:])


@needs_gpu
def test_changed_weights_are_seen(view: View) -> None:
    aha = parse("aha(other_model=True)")
    images = pictures(2).cuda()

    def maps() -> torch.Tensor:
        with view.still():
            return aha.maps(view, Batch(images, Target(torch.arange(4))))

    before = [maps() for _ in range(3)][-1]
    with torch.no_grad():
        for weight in view.model.parameters():
            weight.mul_(1.05)
    fresh = [maps() for _ in range(3)]
    assert not torch.allclose(before, fresh[0], 1e-3, 1e-3)
    assert torch.allclose(fresh[0], fresh[2], 1e-5, 1e-5)


@needs_gpu
def test_only_few_recordings_are_kept(view: View) -> None:
    aha = parse("aha")
    for count in (1, 2, 3, 4):
        for _ in range(2):
            with view.still():
                aha.maps(view, Batch(pictures(0, count).cuda()))
    assert len(view.memo.once("method/aha/recorded: passes", (), dict)) == KEPT


@needs_gpu
def test_a_model_that_waits_for_the_device_is_explained_as_usual(view: View) -> None:
    explainer = Explainer.for_view(view)
    handle = view.model.register_forward_hook(lambda _, __, output: output * float(output.abs().max() > 0))
    try:
        with view.still():
            assert [recorded(explainer, view, pictures(0).cuda()) for _ in range(3)] == [None] * 3
            maps = parse("aha").maps(view, Batch(pictures(0).cuda()))
        assert bool(maps.isfinite().all())
    finally:
        handle.remove()
