"""Events and cancelling: observers hear of every pass, methods say how many they make, and work stops on request."""

import logging
import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import vitrail
from helpers.small import quick, served_by
from helpers.zoo import pictures
from vitrail.bench import Local, Plan, Store, run
from vitrail.events import Bar, Cancel, Cancelled, Event, LogLines, Passes, begin_passes, within, working
from vitrail.method import METHODS, Method
from vitrail.model import View, load

every_method = pytest.mark.parametrize("name", sorted(set(METHODS) - {"aha"}))


def tried(name: str) -> tuple[View, Method, Tensor]:
    method = quick(name)
    view = served_by(method)
    return view, method, pictures(2, view.size)


# ------------------------------------------------------------------------------------------------------------ events


def test_events_in_order() -> None:
    heard: list[Event] = []
    found = vitrail.explain("demo", pictures(3, (144, 144)), "rise(masks=8)", batch=2, observers=[heard.append])
    assert [event.kind for event in (heard[0], heard[-1])] == ["started", "finished"]
    assert [event.done for event in heard if event.kind == "done"] == [2, 3]
    made = [event.passes for event in heard]
    assert made == sorted(made), "passes only grow"
    assert heard[-1].passes == Passes(found.forwards, found.backwards) == heard[0].expected == (27, 0)
    assert {(event.task, event.of, event.unit) for event in heard} == {("rise(masks=8)", 3, "image")}


def test_work_inside_work_counts_for_both() -> None:
    outer: list[Event] = []
    with working("outer", 1, "image", observers=[outer.append]) as around:
        with working("inner", 1, "image") as inner:
            begin_passes(2, 1)
        begin_passes(3)
    assert (inner.made, around.made) == ((2, 1), (5, 1))
    assert outer[-1].passes == (5, 1)
    begin_passes(7)  # nobody's work
    assert around.made == (5, 1)


def test_threads_can_share_a_work() -> None:
    with working("shared", 4, "unit") as work:

        def take() -> None:
            with within(work):
                for _ in range(100):
                    begin_passes(1)
                work.finish_some()

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert (work.made, work.done) == ((400, 0), 4)


def test_every_door_has_observers(tmp_path) -> None:
    heard: list[Event] = []
    inputs = pictures(2, (144, 144))
    vitrail.evaluate("demo", inputs, ["genatt", "random"], "deletion(step=5184)", observers=[heard.append])
    assert {event.stage for event in heard if event.stage} == {"genatt", "random"}
    assert heard[-1].done == 4
    heard.clear()
    plan = Plan("demo", "scenes:3", ("genatt", "random"), ("deletion(step=5184)",), chunk=2)
    run(plan, str(tmp_path / "run"), observers=[heard.append])
    assert (heard[-1].done, heard[-1].unit) == (4, "unit")
    assert heard[-1].passes.forwards > 0


def test_a_log_line_at_both_ends_and_every_so_often(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vitrail"):
        vitrail.explain("demo", pictures(1, (144, 144)), "rise(masks=4)", observers=[LogLines(every=1e9)])
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "rise(masks=4): started",
        "rise(masks=4): finished",
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, "vitrail"):
        vitrail.explain("demo", pictures(1, (144, 144)), "rise(masks=4)", observers=[LogLines(every=0)])
    assert len(caplog.records) > 2


def test_a_bar_closes_when_work_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), working("broken", 2, "image", observers=[Bar()]):
        raise RuntimeError
    assert capsys.readouterr().err.rstrip(" ").endswith("\r"), "the line is wiped"


# ------------------------------------------------------------------------------------------------------------ passes


ABOUT = {"vit_cx", "less_is_more", "mda", "var", "inflow", "bt_h", "bt_t", "t_attn"}
"""Methods whose passes data decide, or of which parts of a pass are left out."""


@every_method
def test_a_method_says_how_many_passes_it_makes(name: str) -> None:
    view, method, images = tried(name)
    said = method.passes(view, view.size)
    found = vitrail.explain(view, images, method)
    made = Passes(found.forwards / len(images), found.backwards / len(images))
    if name in ABOUT:
        assert 0.4 <= (1 + made.total) / (1 + said.total) <= 2.5, f"{said} said, {made} made"
    else:
        assert said == made


# ------------------------------------------------------------------------------------------------------------ cancel


class After:
    """An observer that asks for the end before the passes of some number, and remembers how many were begun."""

    def __init__(self, cancel: Cancel, batches: int) -> None:
        self.cancel, self.left, self.begun = cancel, batches, 0

    def __call__(self, event: Event) -> None:
        if event.kind == "passes":
            self.begun += 1
            if self.begun == self.left:
                self.cancel.request()


def state_of(view: View) -> tuple[object, ...]:
    """What must be as it was."""
    model = view.model
    return (
        [module.training for module in model.modules()],
        [(p.requires_grad, p.grad is None, p.sum().item()) for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        ["forward" in vars(m) for m in model.modules()],
        bytes(torch.get_rng_state().numpy()),
        torch.is_grad_enabled(),
    )


@every_method
def test_cancelling_stops_before_the_next_passes(name: str) -> None:
    view, method, images = tried(name)
    expected = vitrail.explain(view, images, method).maps
    view.model.train()
    before, batches = state_of(view), []
    vitrail.explain(view, images, method, observers=[lambda event: batches.append(event.kind == "passes")])
    for number in {1, max(1, sum(batches) // 2)}:
        cancel = Cancel()
        after = After(cancel, number)
        if number == sum(batches):
            continue  # the last ones: nothing is left to stop
        with pytest.raises(Cancelled):
            vitrail.explain(view, images, method, observers=[after], cancel=cancel)
        assert after.begun == number, "within one batch of passes"
        assert state_of(view) == before
    assert torch.equal(vitrail.explain(view, images, method).maps, expected)


def test_cancelled_before_it_begins() -> None:
    cancel = Cancel()
    cancel.request()
    view = load("demo")
    forwards = view.meter.forwards
    with pytest.raises(Cancelled):
        vitrail.explain(view, pictures(1, (144, 144)), "genatt", cancel=cancel)
    assert view.meter.forwards == forwards


def test_another_thread_cancels() -> None:
    cancel, found = Cancel(), []

    def work() -> None:
        try:
            vitrail.explain("demo", pictures(2, (144, 144)), "rise(masks=100000)", cancel=cancel)
        except Cancelled as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    cancel.request()
    thread.join(60)
    assert not thread.is_alive()
    assert found


@pytest.mark.parametrize("devices", [1, 2])
def test_a_cancelled_run_stores_no_error_and_goes_on(tmp_path, devices: int) -> None:
    plan = Plan("demo", "scenes:4", ("rise(masks=32)", "genatt"), ("sparseness",), chunk=2)
    place, cancel = str(tmp_path / "run"), Cancel()
    engine = engine_of(devices)
    with pytest.raises(Cancelled):
        run(plan, place, engine=engine, observers=[After(cancel, 4)], cancel=cancel)
    store = Store(place)
    assert all(record["error"] is None for unit in store.units() for record in store.read(unit).to_pylist())
    whole = run(plan, place)
    fresh = run(plan, str(tmp_path / "fresh"))
    assert whole.table() == fresh.table()


def engine_of(devices: int) -> Local:
    """One thread, or two that have the CPU under two names."""
    return Local("cpu" if devices == 1 else ("cpu", "cpu:0"))


def test_cancelling_judging() -> None:
    cancel = Cancel()
    with pytest.raises(Cancelled):
        vitrail.evaluate(
            "demo", pictures(2, (144, 144)), ["genatt"], "insertion", observers=[After(cancel, 3)], cancel=cancel
        )


def test_what_an_observer_raises_ends_the_work() -> None:
    def closed(event: Event) -> None:
        if event.kind == "passes":
            raise ConnectionError("the page is closed")

    view = load("demo")
    before = state_of(view)
    with pytest.raises(ConnectionError):
        vitrail.explain(view, pictures(1, (144, 144)), "rise(masks=64)", observers=[closed])
    assert state_of(view) == before


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events]


def test_finished_comes_also_when_work_fails() -> None:
    heard: list[Event] = []
    with pytest.raises(vitrail.InputError):
        vitrail.explain("demo", ["nowhere.png"], "genatt", observers=[heard.append])
    assert kinds(heard) in ([], ["started", "finished"])
