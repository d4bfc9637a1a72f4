"""Whether the GPUs of a program compute: of a program without a sensor, nothing else distinguishes waiting from work.

A collective that waits keeps a GPU at a utilisation of 100 % without arithmetic. Its power then falls to a fraction of
what the same program drew before. Activity of tensor cores would show it directly, but its counters slow a job down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

POWER_SHARE: Final = 0.5
"""A GPU below this share of its highest power in the attempt computes no more."""
HIGH_UTILISATION: Final = 90.0
"""Below it, in percent, no collective waits on the GPU: the program may work on processors alone."""
LEAST_PEAK_W: Final = 100.0
"""Below such a peak the program has never computed, so its power shows nothing."""


@dataclass(slots=True)
class GpuWork:
    """Readings of GPUs over one attempt. They are named ``gpu.UUID.utilisation``, in percent, and ``.power_w``."""

    _peaks_w: dict[str, float] = field(default_factory=dict)

    def take(self, readings: Mapping[str, float]) -> None:
        """Note the highest power of each GPU."""
        for name, value in readings.items():
            if name.endswith(".power_w"):
                self._peaks_w[name] = max(self._peaks_w.get(name, 0.0), value)

    def is_working(self, gpus: Sequence[str], readings: Mapping[str, float]) -> bool | None:
        """Return whether any of the GPUs computes; None if the readings do not show it."""
        found = [self._is_working(f"gpu.{gpu}", readings) for gpu in gpus]
        if any(found):
            return True
        return False if found and None not in found else None

    def _is_working(self, gpu: str, readings: Mapping[str, float]) -> bool | None:
        power_w, peak_w = readings.get(f"{gpu}.power_w"), self._peaks_w.get(f"{gpu}.power_w", 0.0)
        if power_w is None or peak_w < LEAST_PEAK_W:
            return None
        if power_w >= POWER_SHARE * peak_w:
            return True
        return False if readings.get(f"{gpu}.utilisation", 0.0) >= HIGH_UTILISATION else None
