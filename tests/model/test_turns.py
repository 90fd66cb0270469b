"""Threads take turns: two explanations on one view go on side by side, each at its own precision, and are as alone."""

import itertools
import threading
import time
from collections.abc import Callable

import pytest
import torch

import vitrail
from helpers.small import small_vit
from helpers.zoo import pictures
from vitrail.events import Event
from vitrail.model import View, load
from vitrail.model.turns import Turns, products


def together(*works: Callable[[], object]) -> list[object]:
    """What each thread found, or the exception that it raised."""
    found: list[object] = [None] * len(works)

    def take(i: int) -> None:
        try:
            found[i] = works[i]()
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=take, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    return found


def test_turns_come_in_the_order_of_asking() -> None:
    turns, order = Turns(), []

    def take(name: str) -> None:
        for _ in range(5):
            with turns:
                order.append(name)
                time.sleep(0.005)  # long enough for the other to ask

    with turns:
        threads = [threading.Thread(target=take, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        while turns.waiting < 2:
            time.sleep(0.001)
    for thread in threads:
        thread.join(30)
    assert sorted(order) == list("aaaaabbbbb")
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert changes >= 7, order  # Python's own lock: one thread takes it again and again


def test_a_lock_can_be_taken_again_and_given_away() -> None:
    turns, seen = Turns(), []

    def other() -> None:
        with turns:
            seen.append("other")

    with turns, turns:
        thread = threading.Thread(target=other)
        thread.start()
        while not turns.waiting:
            time.sleep(0.001)
        assert not seen
        turns.give_way()
        assert seen == ["other"]
        seen.append("mine")
    thread.join(30)
    assert turns.waiting == 0


def test_two_explanations_take_turns_and_are_each_alone() -> None:
    view = load(small_vit())
    images, spec = pictures(2, view.size), "rise(masks=400)"
    alone = vitrail.explain(view, images, spec)
    order: list[str] = []

    def work(name: str) -> vitrail.Explanation:
        def heard(event: Event) -> None:
            if event.kind == "passes":
                order.append(name)

        return vitrail.explain(view, images, spec, observers=[heard])

    found = together(lambda: work("a"), lambda: work("b"))
    for one in found:
        assert isinstance(one, vitrail.Explanation), one
        assert torch.equal(one.maps, alone.maps)
        assert (one.forwards, one.backwards) == (alone.forwards, alone.backwards), "its own passes alone"
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert changes > len(order) // 4, f"{changes} changes in {len(order)} batches of passes"


@pytest.mark.parametrize(
    "spec", ["skipplus(decompx)", "ablationcam(channels=8)", "tis(masks=16)", "fullgrad", "t_attr"]
)
def test_methods_beside_others_are_as_alone(spec: str) -> None:
    """What hooks or rules a method sets for its passes, the other thread's passes do not see."""
    view = load(small_vit())
    images, others = pictures(2, view.size), pictures(3, view.size)
    expected = vitrail.explain(view, images, spec).maps
    beside = vitrail.explain(view, others, "rise(masks=64)").maps

    def again(count: int = 6) -> list[torch.Tensor]:
        return [vitrail.explain(view, images, spec).maps for _ in range(count)]

    found, other = together(again, lambda: vitrail.explain(view, others, "rise(masks=64)").maps)
    assert isinstance(found, list), found
    assert all(torch.equal(one, expected) for one in found)
    assert isinstance(other, torch.Tensor), other
    assert torch.equal(other, beside)


def test_each_thread_has_its_own_precision() -> None:
    view = load(small_vit())
    images = pictures(2, view.size)
    expected = {name: vitrail.explain(view, images, "rise(masks=64)", precision=name).maps for name in ("fp32", "bf16")}
    assert not torch.equal(expected["fp32"], expected["bf16"])
    found = together(
        *(lambda name=name: vitrail.explain(view, images, "rise(masks=64)", precision=name).maps for name in expected)
    )
    for one, name in zip(found, expected):
        assert isinstance(one, torch.Tensor), one
        assert torch.equal(one, expected[name])
    assert view.precision == "fp32"


def test_a_failure_in_one_thread_leaves_the_other_alone() -> None:
    view = load(small_vit())
    images = pictures(2, view.size)
    expected = vitrail.explain(view, images, "rise(masks=64)").maps

    def fails() -> None:
        def heard(event: Event) -> None:
            if event.passes.forwards > 20:
                raise KeyboardInterrupt

        vitrail.explain(view, images, "rise(masks=64)", observers=[heard])

    view.model.train()
    try:
        failed, found = together(fails, lambda: vitrail.explain(view, images, "rise(masks=64)").maps)
        assert isinstance(failed, KeyboardInterrupt)
        assert isinstance(found, torch.Tensor), found
        assert torch.equal(found, expected)
        assert view.model.training
    finally:
        view.model.eval()


def test_the_model_is_given_back_between_turns() -> None:
    """A thread that waits for its turn finds the model as its owner left it."""
    view: View = load(small_vit())
    view.model.train()
    seen, ready = [], threading.Event()

    def look() -> None:
        ready.wait(30)
        with view._lock:
            seen.append((view.model.training, next(view.model.parameters()).requires_grad))

    def heard(event: Event) -> None:
        ready.set()

    try:
        together(look, lambda: vitrail.explain(view, pictures(1, view.size), "rise(masks=2000)", observers=[heard]))
        assert seen == [(True, True)]
    finally:
        view.model.eval()


def test_fast_products_are_on_while_somebody_wants_them_and_nobody_exact_ones() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with products(fast=True):
        assert matmul.allow_tf32
        with products(fast=False):
            assert not matmul.allow_tf32
            with products(fast=True):
                assert not matmul.allow_tf32
        assert matmul.allow_tf32
    assert matmul.allow_tf32 == before
