"""Signs of life of the agent's own loops and of each GPU's inspections, from which a report states ages.

A loop gives a sign at each turn. So a loop that hangs, or whose thread has ended, shows by its age, and an idle one
does not.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from agents import host_facts
from muster.domain.gpu.signal_groups import SignalGroup
from muster.domain.ids import GpuUuid


@dataclass(slots=True)
class SignsOfLife:
    """The newest sign of each group, by a clock that only grows. Any thread may call any method."""

    clock_ms: Callable[[], int] = host_facts.boottime_ms
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _groups: dict[SignalGroup, int] = field(default_factory=dict)
    _states: dict[GpuUuid, int] = field(default_factory=dict)
    _inspects_since_ms: int | None = None

    def saw(self, group: SignalGroup, age_s: float = 0.0) -> None:
        """Note a sign, of so long ago, of a group of the whole host. The first one declares the group."""
        with self._lock:
            self._groups[group] = self.clock_ms() - round(age_s * 1000)

    def begin_inspections(self) -> None:
        """Declare the states of GPUs: from now on each GPU's are due."""
        with self._lock:
            self._inspects_since_ms = self.clock_ms()

    def inspected(self, gpu_uuid: GpuUuid) -> None:
        """Note that the driver answered an inspection of this GPU."""
        with self._lock:
            self._states[gpu_uuid] = self.clock_ms()

    def host_ages_s(self) -> dict[str, float]:
        with self._lock:
            now_ms = self.clock_ms()
            return {group.value: _age_s(now_ms, at_ms) for group, at_ms in sorted(self._groups.items())}

    def gpu_ages_s(self, gpu_uuid: GpuUuid) -> dict[str, float]:
        """Return the age of the GPU's own groups; none before the first inspection of any GPU is due."""
        with self._lock:
            since_ms = self._states.get(gpu_uuid, self._inspects_since_ms)
            return {} if since_ms is None else {SignalGroup.STATES.value: _age_s(self.clock_ms(), since_ms)}


def _age_s(now_ms: int, at_ms: int) -> float:
    return max(0, now_ms - at_ms) / 1000
