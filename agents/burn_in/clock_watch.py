"""A watch on the clocks of GPUs while they compute: whether heat or hardware holds them down.

A burn-in that reads no clocks shows nothing about a thermal fault: its sums are right at any speed. So the clock event
reasons are read each second while the bench runs, and samples without load do not count.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, Self

from agents.probes.interface import GpuCheck, Probe, ProbeError
from health.detectors.load.clock_events import harmful_in
from muster.domain.gpu.metrics import value_of
from muster.domain.ids import GpuUuid

PAUSE_S: Final = 1.0
LOADED_PERCENT: Final = 50.0
LOW_CLOCK_SHARE: Final = 0.6
"""Share of the samples from which on the clocks are held down: gpud's 6 of 10, as the detector has it."""


class ClockWatch:
    """The watch on a host's GPUs, in one thread as long as the context lasts: one read shows all of them."""

    def __init__(self, probe: Probe, wall_ms: Callable[[], int]) -> None:
        self._probe, self._wall_ms = probe, wall_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="burn-in-clocks", daemon=True)
        self._num_samples, self._num_throttled = Counter[GpuUuid](), Counter[GpuUuid]()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def is_free(self, gpu_uuid: GpuUuid) -> bool:
        """Return whether the GPU's clocks were read under load, and were not held down."""
        num_samples = self._num_samples[gpu_uuid]
        return num_samples > 0 and self._num_throttled[gpu_uuid] < LOW_CLOCK_SHARE * num_samples

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                checks = self._probe.check(self._wall_ms())
            except ProbeError:
                continue  # the next one may be read; without any the burn-in covers no clocks
            for check in checks:
                if (value_of(check.values, "utilisation_percent") or 0.0) >= LOADED_PERCENT:
                    self._count(check)

    def _count(self, check: GpuCheck) -> None:
        throttled = is_throttled(check)
        if throttled is not None:
            self._num_samples[check.gpu_uuid] += 1
            self._num_throttled[check.gpu_uuid] += throttled


def is_throttled(check: GpuCheck) -> bool | None:
    """Return whether heat, power or hardware holds its clocks down now; None where they cannot be read."""
    reasons = None if check.is_lost or check.is_late else value_of(check.values, "clock_event_reasons")
    return None if reasons is None else harmful_in(reasons) != 0
