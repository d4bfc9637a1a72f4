"""A log that returns early with nothing is not read in a spin."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from agents.freshness import SignsOfLife
from agents.kernel_log import log_reading
from agents.kernel_log.log_reading import EARLY_PAUSE_S, LogReading, LogSource
from agents.probes.profiles import PROFILES
from agents.probes.simulated import SimulatedProbe, simulated_uuids


class Stop(threading.Event):
    """A stop that comes after three reads, and notes each pause instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return self.is_set()


class HastyLog:
    """A log that returns at once, whatever it was asked to wait."""

    def __init__(self, stop: Stop, num_events: int) -> None:
        self._stop = stop
        self._num_events = num_events
        self._num_reads = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self, _: float) -> tuple[int, ...]:
        self._num_reads += 1
        if self._num_reads == 3:
            self._stop.set()
        return tuple(range(self._num_events))

    def keep_position(self, *, now: bool) -> None:
        assert now == (self._num_events > 0)


class Observer:
    def __init__(self) -> None:
        self.signs = SignsOfLife()

    def keep(self, events: tuple[int, ...]) -> int:
        return len(events)


@pytest.mark.parametrize(("num_events", "pauses"), [(0, [EARLY_PAUSE_S] * 3), (2, [])])
def test_an_early_return_is_followed_by_a_pause_unless_it_brought_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_events: int, pauses: list[float]
) -> None:
    stop = Stop()
    log = HastyLog(stop, num_events)
    monkeypatch.setattr(log_reading, "open_kernel_log", lambda *_, **__: log)
    monkeypatch.setattr(log_reading, "time", SimpleNamespace(monotonic=lambda: 0.0))  # no read is late, at any load
    observer: Any = Observer()
    probe = SimulatedProbe(PROFILES["h100"], simulated_uuids(1))
    LogReading(probe, tmp_path, "boot", LogSource(tmp_path / "kmsg")).run(observer, stop)
    assert stop.pauses == pauses
    assert observer.signs.host_ages_s().keys() == {"kernel_log"}, "an idle log gives signs too"
