"""The clocks of GPUs while a burn-in loads them: what is read without load, or not at all, covers nothing."""

import threading
from dataclasses import dataclass, field

import pytest

from agents.burn_in import clock_watch
from agents.burn_in.clock_watch import ClockWatch
from agents.probes.interface import GpuCheck, ProbeError
from tests.agents.burn_in.test_worker import ONE, TWO, PlayedProbe, check
from tests.waiting import wait_until

HOT = 0x40
NUM_SAMPLES = 10


@dataclass
class WatchedProbe(PlayedProbe):
    """Gives the samples one by one, and then says that all were read."""

    samples: list[tuple[GpuCheck, ...] | None] = field(default_factory=list)
    are_read: threading.Event = field(default_factory=threading.Event)

    def check(self, _now_ms: int) -> tuple[GpuCheck, ...]:
        if not self.samples:
            self.are_read.set()
            return ()
        sample = self.samples.pop(0)
        if sample is None:
            raise ProbeError("the driver is busy")
        return sample


def loaded(reasons: float | None, percent: float = 99.0) -> tuple[GpuCheck, ...]:
    other = check(TWO, clock_event_reasons=0.0, utilisation_percent=99.0)
    return (check(ONE, clock_event_reasons=reasons, utilisation_percent=percent), other)


@pytest.mark.parametrize(
    ("samples", "is_free"),
    [
        ([loaded(0.0)] * NUM_SAMPLES, True),
        ([loaded(4.0)] * NUM_SAMPLES, True),
        ([loaded(HOT)] * 5 + [loaded(0.0)] * 5, True),
        ([loaded(HOT)] * 6 + [loaded(0.0)] * 4, False),
        ([loaded(HOT)] * 6 + [loaded(0.0, percent=0.0)] * 40, False),
        ([loaded(None)] * NUM_SAMPLES, False),
        ([None] * NUM_SAMPLES, False),
        ([None, loaded(0.0)], True),
        ([], False),
    ],
    ids=["clear", "power cap", "hot for half", "hot in 6 of 10", "cool while idle", "unread", "away", "once", "none"],
)
def test_clocks_are_free_where_most_samples_under_load_show_it(
    monkeypatch: pytest.MonkeyPatch, samples: list[tuple[GpuCheck, ...] | None], *, is_free: bool
) -> None:
    monkeypatch.setattr(clock_watch, "PAUSE_S", 0.001)
    probe = WatchedProbe({}, samples=list(samples))
    with ClockWatch(probe, lambda: 0) as watch:
        wait_until(probe.are_read.is_set, pause_s=0.002)
    assert watch.is_free(ONE) is is_free
    assert watch.is_free(TWO) is any(samples), "each GPU has counts of its own"
