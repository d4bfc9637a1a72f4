"""Own compute and waits of a rank's steps, on a device whose time a test sets."""

import _thread
import gc
import sys
import threading
import types
from typing import Any

import pytest

from muster.train.watch.activity import ACTIVITY, SAVE, declared

torch = pytest.importorskip("torch")

from muster.train.report.host_signals import HostSignals  # noqa: E402  # after the check for torch
from muster.train.report.own_time import OwnTime  # noqa: E402
from muster.train.report.waits import MOST_SPANS, WAITS, ignored  # noqa: E402
from tests.train.report.test_pace import PlayedDevice  # noqa: E402


class Stepping:
    """A rank whose waits go through the places that are wrapped."""

    def __init__(self, *, sees_exchanges: bool = False, place: str = "") -> None:
        self.device = PlayedDevice()
        self._sees_exchanges = sees_exchanges
        self.own = OwnTime(self.device, place)
        self.own.watch(sees_exchanges=sees_exchanges)

    def step(self, own_s: float, *waits_s: float, evaluates: bool = False, collective_s: float = 0.0) -> None:
        self.own.begin()
        self.device.spend(own_s)
        for wait_s in waits_s:
            self.wait(wait_s)
        if evaluates:
            ACTIVITY.note_forward(is_evaluating=True)
        if collective_s:
            WAITS.is_covered = self._sees_exchanges  # as ``pace`` does for the part ``collective``
            self.wait(collective_s)
            WAITS.is_covered = False
        taken = [("data", own_s + sum(waits_s)), ("collective", collective_s), ("checkpoint", 9.0)]
        self.own.add(self.own.end(), taken)

    def wait(self, seconds: float) -> None:
        WAITS.measured(lambda: self.device.spend(seconds), (), {})

    def word(self) -> tuple[Any, ...]:
        found = self.own.word()
        return found.get("own_s"), found.get("wait_s"), found.get("own_steps")


@pytest.fixture
def rank() -> Any:
    made: list[Stepping] = []

    def make(**fields: Any) -> Stepping:
        made.append(Stepping(**fields))
        made[-1].step(5.0)  # the first step is none like the others
        assert made[-1].word() == (None, None, None)
        return made[-1]

    yield make
    for each in made:
        each.own.leave()


def test_own_compute_is_a_step_without_its_waits(rank: Any) -> None:
    stepping = rank()
    stepping.step(1.0, 0.25, 0.5)
    stepping.step(2.0)
    assert stepping.word() == (1.5, 0.375, 2)
    assert stepping.word() == (None, None, None)


def test_a_wait_between_two_steps_is_a_wait_and_no_part_of_either(rank: Any) -> None:
    stepping = rank()
    stepping.wait(0.5)
    stepping.step(1.0)
    assert stepping.word() == (1.0, 0.5, 1)


def test_an_exchange_that_the_parts_show_counts_once(rank: Any) -> None:
    stepping = rank(sees_exchanges=True)
    stepping.step(1.0, 0.25, collective_s=0.5)
    assert stepping.word() == (1.0, 0.75, 1)


def test_waits_within_a_wait_count_once_and_a_failed_wait_counts(rank: Any) -> None:
    stepping = rank()
    stepping.own.begin()

    def fails() -> None:
        stepping.wait(0.25)
        stepping.device.spend(0.25)
        raise KeyError

    with pytest.raises(KeyError):
        WAITS.measured(fails, (), {})
    stepping.own.add(stepping.own.end(), [("data", 1.5)])
    assert stepping.word() == (1.0, 0.5, 1)


def test_steps_that_evaluate_save_or_compile_are_left_out(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stepping = rank()
    stepping.step(7.0, evaluates=True)
    stepping.own.begin()
    with declared(SAVE):
        pass
    with declared("data"):
        pass
    stepping.own.add(stepping.own.end(), [("data", 7.0)])
    assert ACTIVITY.phase()[0] != SAVE
    stepping.own.begin()
    monkeypatch.setattr("muster.train.report.own_time._num_compiled", lambda: 1)
    stepping.own.add(stepping.own.end(), [("data", 7.0)])
    assert stepping.word() == (None, None, None)


def test_a_program_that_always_evaluates_is_measured(rank: Any) -> None:
    stepping = rank()
    for _ in range(20):
        stepping.step(1.0, evaluates=True)
    own_s, _, num_own = stepping.word()
    assert own_s == 1.0
    assert 10 <= num_own < 20


def test_waits_of_a_background_thread_and_of_another_stream_do_not_count(rank: Any) -> None:
    stepping = rank()
    stepping.own.begin()
    with ignored():
        with ignored():
            stepping.wait(0.25)
        stepping.wait(0.25)  # the inner of two does not end the outer one
    thread = threading.Thread(target=stepping.wait, args=(0.25,))
    thread.start()
    thread.join()
    stepping.device.stream = lambda: 7
    stepping.wait(0.25)
    stepping.own.add(stepping.own.end(), [("data", 1.0)])
    assert stepping.word() == (1.0, 0.0, 1)


def test_a_thread_that_waits_all_the_time_hides_no_wait_of_the_step(rank: Any) -> None:
    """A program may wait in a group of its own in another thread, such as for control messages."""
    stepping, has_begun, is_over = rank(), threading.Event(), threading.Event()

    def waits() -> None:
        has_begun.set()
        is_over.wait()

    thread = threading.Thread(target=WAITS.measured, args=(waits, (), {}))
    thread.start()
    try:
        has_begun.wait()
        stepping.step(1.0, 0.25)
    finally:
        is_over.set()
        thread.join()
    assert stepping.word() == (1.0, 0.25, 1)


def test_waits_of_a_thread_that_python_did_not_start_count(rank: Any) -> None:
    """On a GPU autograd runs a backward pass in threads of its own, and FSDP waits there."""
    stepping = rank()
    stepping.own.begin()
    is_done = threading.Event()

    def waits() -> None:
        stepping.wait(0.25)
        is_done.set()

    _thread.start_new_thread(waits, ())
    is_done.wait()
    stepping.own.add(stepping.own.end(), [("data", 1.0)])
    assert stepping.word() == (0.75, 0.25, 1)


def test_a_place_that_is_imported_after_the_first_start_is_wrapped_once(
    rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FSDPParamGroup:
        def wait_for_unshard(self) -> None:
            stepping.device.spend(0.25)

    stepping = rank()
    module = types.SimpleNamespace(FSDPParamGroup=FSDPParamGroup)
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp._fully_shard._fsdp_param_group", module)
    for _ in range(2):
        stepping.own.watch(sees_exchanges=False)
    wrapped = FSDPParamGroup.wait_for_unshard
    stepping.own.begin()
    FSDPParamGroup().wait_for_unshard()
    stepping.own.add(stepping.own.end(), [("data", 1.0)])
    assert stepping.word() == (0.75, 0.25, 1)
    assert not hasattr(wrapped.__wrapped__, "__wrapped__")  # type: ignore[attr-defined]  # of functools.wraps


def test_a_step_with_too_many_waits_is_not_measured(rank: Any) -> None:
    stepping = rank()
    stepping.step(1.0, *[0.0] * (MOST_SPANS + 1))
    assert stepping.word() == (None, None, None)


def test_a_rank_names_its_place_with_each_report(rank: Any) -> None:
    stepping = rank(place="data ranks of 2")
    stepping.step(1.0)
    assert stepping.own.word()["place"] == "data ranks of 2"


def test_signals_of_the_host_are_differences_since_the_last_report() -> None:
    signals = HostSignals()
    signals.watch()
    try:
        signals.word(1)
        collected = [gc.collect() for _ in range(3)]
        found = signals.word(2)
    finally:
        signals.leave()
    assert len(collected) == 3
    assert found["gc_s"] > 0
    assert {"cpu_wait_s", "threads_s", "switches_per_s"} <= set(found)
    assert signals.word(1)["gc_s"] == 0


def test_a_program_may_clear_the_callbacks_of_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "callbacks", [])
    signals = HostSignals()
    signals.watch()
    gc.callbacks.clear()
    signals.leave()
    signals.leave()
    assert gc.callbacks == []


@pytest.mark.parametrize(("all_ticks", "steal_ticks", "share"), [(10.0, 5.0, 0.5), (1.0, 3.0, 1.0), (-2.0, 1.0, None)])
def test_a_share_is_at_most_one_where_counters_go_back(
    monkeypatch: pytest.MonkeyPatch, all_ticks: float, steal_ticks: float, share: float | None
) -> None:
    signals = HostSignals()
    before = signals._before  # the counters that a word is compared with
    more = {"all_ticks": before["all_ticks"] + all_ticks, "steal_ticks": before["steal_ticks"] + steal_ticks}
    monkeypatch.setattr(signals, "_read", lambda: {**before, **more})
    assert signals.word(1).get("steal_share") == share
