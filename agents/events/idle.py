"""Windows without a program on a GPU: only for such a window is the GPU's activity reported.

Samples list the programs on a GPU: a program in any sample may have run in all of the window. Where the driver may
leave programs out of its list (a PID namespace of the agent's own), no window counts as idle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from agents.probes.interface import GpuCheck
from muster.domain.gpu.metrics import value_of
from muster.domain.ids import GpuUuid

SAMPLES_MIN: Final = 3
"""Least samples with which the least utilisation shows anything.

It is of an interval, the list of programs of a moment."""
UTILISATION: Final = "idle_utilisation_percent"
_PREFIX: Final = "idle_"


@dataclass(slots=True)
class _Seen:
    """Samples of one window. ``least_percent``: None where a sample had no utilisation."""

    num_samples: int = 0
    is_nobodys: bool = True
    least_percent: float | None = 100.0


@dataclass(slots=True)
class IdleWindows:
    """Windows by GPU: ``saw`` in one thread, ``of`` in another.

    ``sees_programs``: whether the driver lists all programs.
    """

    sees_programs: bool = True
    _lock: Lock = field(default_factory=Lock)
    _seen: dict[GpuUuid, _Seen] = field(default_factory=dict)

    def saw(self, checks: Iterable[GpuCheck]) -> None:
        with self._lock:
            for check in checks:
                seen = self._seen.setdefault(check.gpu_uuid, _Seen())
                percent = value_of(check.values, "utilisation_percent")
                seen.num_samples += 1
                seen.is_nobodys &= value_of(check.values, "num_processes") == 0
                is_told = percent is not None and seen.least_percent is not None
                seen.least_percent = min(seen.least_percent or 0.0, percent or 0.0) if is_told else None

    def of(self, gpu_uuid: GpuUuid, state: Mapping[str, float]) -> dict[str, float]:
        """Return ``state`` for the report; a window ends here, and the next begins."""
        with self._lock:
            seen = self._seen.pop(gpu_uuid, _Seen())
        if not (self.sees_programs and seen.is_nobodys):
            return {name: value for name, value in state.items() if not name.startswith(_PREFIX)}
        if seen.num_samples < SAMPLES_MIN or seen.least_percent is None:
            return dict(state)
        return {**state, UTILISATION: seen.least_percent}
