"""The slow loop next to the sampler: it inspects GPUs about once a minute, ports six times, and makes events of it."""

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from agents.events.gpus import GpuTeller
from agents.events.naming import Naming
from agents.freshness import SignsOfLife
from agents.host.events import HostPlaces, HostTeller
from agents.host_facts import sees_every_process
from agents.observer import Clocks, Observer
from agents.probes.interface import Probe, ProbeError, ProbeEvent
from agents.telemetry_client import TelemetryClient
from muster.domain.gpu.signal_groups import SignalGroup

WINDOW_S: Final = 60.0
INSPECT_S: Final = 10.0
"""Interval of the checks of ports: one that is down for 25 s is detected."""
JITTER: Final = 0.1
_FIRST_INSPECTION_S: Final = 0.5


class Inspector:
    """The inspections. ``keep`` takes events durably. ``window_s``: about the time between two inspections."""

    def __init__(
        self,
        probe: Probe,
        gpus: GpuTeller,
        host: HostTeller,
        *,
        clocks: Clocks,
        keep: Callable[[tuple[ProbeEvent, ...]], object],
        rng: random.Random,
        signs: SignsOfLife | None = None,
        window_s: float = WINDOW_S,
    ) -> None:
        self._probe = probe
        self._gpus = gpus
        self._host = host
        self._clocks = clocks
        self._keep = keep
        self._rng = rng
        self._signs = signs or SignsOfLife(clocks.boottime_ms)
        self._window_s = window_s
        self._next_s = 0.0

    def run(self, has_sampled: threading.Event, stop: threading.Event) -> None:
        """Run after the first sample: by then the links' counters and the present GPUs are known."""
        while not stop.is_set() and not has_sampled.wait(_FIRST_INSPECTION_S):
            pass
        self._signs.begin_inspections()
        while not stop.is_set():
            self.turn()
            stop.wait(min(INSPECT_S, self._window_s) * self._jitter())

    def hurry(self) -> None:
        """Let the next turn inspect everything, whenever the last inspection was."""
        self._next_s = 0.0

    def turn(self) -> None:
        """Check the ports, and all else where it is due."""
        at_ms, now_s = self._clocks.wall_ms(), self._clocks.boottime_ms() / 1000
        events = self._host.check_ports(at_ms, now_s)
        if now_s >= self._next_s:
            self._next_s = now_s + self._window_s * self._jitter()
            inspected = self._inspected()
            events += self._host.report(at_ms, now_s, self._gpus.differing()) + inspected
        self._keep(events)
        if self._host.has_places:
            self._signs.saw(SignalGroup.HOST)

    def _inspected(self) -> tuple[ProbeEvent, ...]:
        """Return the GPUs' events, none where the driver as a whole is away: the sampler reports that."""
        at_ms = self._clocks.wall_ms()
        try:
            inspections = self._probe.inspect(at_ms)
        except ProbeError:
            return ()
        for found in inspections:
            if found.is_answered:
                self._signs.inspected(found.gpu_uuid)
        return self._gpus.report(inspections, at_ms, self._clocks.boottime_ms() / 1000)

    def _jitter(self) -> float:
        return self._rng.uniform(1 - JITTER, 1 + JITTER)


def inspector_of(
    observer: Observer,
    probe: Probe,
    client: TelemetryClient,
    *,
    clocks: Clocks,
    rng: random.Random,
    places: HostPlaces | None,
    expected_gpus: int | None,
) -> Inspector:
    """Return the inspector. ``expected_gpus``: of the enrolled inventory, None where this host does not know it."""
    naming = Naming(session=str(time.monotonic_ns()))
    gpus = GpuTeller(naming, sees_programs=sees_every_process())
    observer.on_checks = gpus.saw

    def counts() -> dict[str, float]:
        found = {"expected_gpus": expected_gpus, "found_gpus": observer.num_gpus}
        return {name: float(number) for name, number in found.items() if number is not None}

    host = HostTeller(naming, places, server_clock=client.server_clock, gpus=counts)
    inspector = Inspector(probe, gpus, host, clocks=clocks, keep=observer.keep, rng=rng, signs=observer.signs)
    observer.on_change = inspector.hurry
    return inspector
