"""One turn of the sampler or the watcher: read the probe, put a report into the spool, wake the uplink."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from msgspec import UNSET

from agents import host_facts
from agents.freshness import SignsOfLife
from agents.probes.interface import GpuCheck, Probe, ProbeError, ProbeEvent, ReleasedError
from agents.reports import Numbering, OpenEvents, events_report, sample_report
from agents.spool.gaps import SEQ_STEP
from agents.spool.spool import Spool
from muster import __version__
from muster.wire.telemetry import NodeReport, PortThroughput

INTERVAL_S: Final = 10.0
MIN_INTERVAL_S: Final = 1.0
MAX_INTERVAL_S: Final = 300.0
EVENTS_PER_REPORT: Final = 200
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Milliseconds: ``boottime`` for durations and numbers, ``wall`` for dates."""

    boottime_ms: Callable[[], int] = host_facts.boottime_ms
    wall_ms: Callable[[], int] = host_facts.wall_ms


ReadPorts = Callable[[tuple[GpuCheck, ...]], tuple[PortThroughput, ...]]
"""Function of a sample's checks: simulated ports are as busy as their GPUs."""


class Observer:
    """State of sampler and watcher.

    ``wake`` notifies the uplink of a waiting report; True: of an event. ``ports`` reads the host's network ports.
    """

    def __init__(
        self,
        probe: Probe,
        spool: Spool,
        boot_id: str,
        *,
        clocks: Clocks,
        wake: Callable[[bool], None],
        ports: ReadPorts = lambda _checks: (),
    ) -> None:
        self._probe = probe
        self._spool = spool
        self._boot_id = boot_id
        self._clocks = clocks
        self._wake = wake
        self._ports = ports
        self._lock = threading.Lock()
        self._numbering = Numbering(spool.newest_seq(boot_id), SEQ_STEP)
        self._open_events = OpenEvents()
        self._driver_version: str | None = None
        self._was_probed = True
        self._is_released = False
        self._sampling = threading.Lock()
        self._sampled_s = 0.0
        self._has_changed = False
        self.interval_s = INTERVAL_S
        self.signs = SignsOfLife(clocks.boottime_ms)
        self.on_checks: Callable[[tuple[GpuCheck, ...]], None] = lambda _checks: None
        """Called with the checks of each sample."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after the sample that a change of the driver caused."""
        self.num_gpus: int | None = None
        """GPUs that answered the newest check, late ones too; None while the driver is away."""
        self.has_sampled = threading.Event()

    def set_interval(self, seconds: float) -> None:
        """Set the interval that the server requests, within limits."""
        self.interval_s = min(max(seconds, MIN_INTERVAL_S), MAX_INTERVAL_S)

    def sample(self) -> None:
        """Put one report of current state into the spool.

        Where the driver does not answer, it has the node's state alone.
        """
        with self._sampling:  # the watcher samples too: readings and numbers keep one order
            self._sample()

    def _sample(self) -> None:
        self._sampled_s = self._clocks.boottime_ms() / 1000
        at_ms = self._clocks.wall_ms()
        checks = self._checks(at_ms)
        self.on_checks(checks)
        for group, age_s in self._probe.ages_s().items():
            self.signs.saw(group, age_s)
        node = self._node_report(self._ports(checks))
        with self._lock:
            report = sample_report(
                checks,
                node,
                self._open_events,
                boot_id=self._boot_id,
                seq=self._next_seq(),
                at_ms=at_ms,
                signs=None if self._is_released else self.signs,
            )
            self._spool.append(report, "metrics" if report.gpus else "health")
        self._spool.sync()
        self._wake(False)
        self.has_sampled.set()

    def watch(self, timeout_s: float) -> int:
        """Wait for the probe's events and keep them. Return how many came.

        It samples at once where the driver reported a change, but no more often than the shortest interval.
        """
        num_kept = self.keep(self._probe.events(timeout_s))
        self._has_changed |= self._probe.take_change()
        if self._has_changed and self._clocks.boottime_ms() / 1000 - self._sampled_s >= MIN_INTERVAL_S:
            self._has_changed = False
            self.sample()
            self.on_change()
        return num_kept

    def keep(self, events: tuple[ProbeEvent, ...]) -> int:
        """Keep events durably before the uplink is notified of them. Return how many they are."""
        if not events:
            return 0
        with self._lock:
            fresh = tuple(one for event in events for one in self._open_events.take(event, self._boot_id))
            news = {one.event_id for one in fresh}
            said = (*fresh, *(one for one in self._open_events if one.event_id not in news))
            for start in range(0, len(said), EVENTS_PER_REPORT):
                part = said[start : start + EVENTS_PER_REPORT]
                at_ms = self._clocks.wall_ms()
                report = events_report(part, boot_id=self._boot_id, seq=self._next_seq(), at_ms=at_ms)
                self._spool.append(report, "events")
        self._wake(True)
        return len(events)

    def _next_seq(self) -> int:
        return self._numbering.next(self._clocks.boottime_ms())

    def _checks(self, at_ms: int) -> tuple[GpuCheck, ...]:
        try:
            if self._driver_version is None:
                self._driver_version = self._probe.identify().driver_version
            checks = self._probe.check(at_ms)
        except ProbeError as error:
            self._is_released = isinstance(error, ReleasedError)
            if self._was_probed:
                _log.error("gpus_cannot_be_probed", fault=str(error), suggestion=error.suggestion)
            self._was_probed = False
            self._driver_version = None
            self.num_gpus = None
            return ()
        if not self._was_probed:
            _log.info("gpus_can_be_probed_again", num_gpus=len(checks))
        self._was_probed = True
        self._is_released = any(check.is_released for check in checks)
        self.num_gpus = sum(1 for check in checks if not check.is_lost)
        return checks

    def _node_report(self, ports: tuple[PortThroughput, ...]) -> NodeReport:
        state = self._spool.state()
        return NodeReport(
            cpu_percent=host_facts.cpu_percent(),
            memory_used_mib=host_facts.memory_used_mib(),
            num_gpus=self.num_gpus or 0,
            agent_version=__version__,
            driver_version=(self._driver_version or "")[:128],
            spool_reports=state.num_reports,
            spool_bytes=state.num_bytes,
            port_throughput=ports or UNSET,
        )
