"""Whether the GPUs of a program compute: of a program without a sensor, nothing else distinguishes waiting from work.

A collective that waits keeps a GPU at a utilisation of 100 % without arithmetic. Its power then falls to a fraction of
what the same program drew before. Activity of tensor cores would show it directly, but its counters slow a job down.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

POWER_SHARE: Final = 0.5
"""A GPU below this share of its highest power in the attempt computes no more."""
HIGH_UTILISATION: Final = 90.0
"""Below it, in percent, no collective waits on the GPU: the program may work on processors alone."""
LEAST_UTILISATION: Final = 1.0
"""Below it, in percent, nothing runs on the GPU."""
LONGEST_GAP_S: Final = 900.0
"""A longer time without a sample leaves open what the GPU did."""
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

    def is_used(self, gpus: Sequence[str], readings: Mapping[str, float]) -> bool | None:
        """Return whether the program may compute on any of the GPUs, however little; None if that is unknown."""
        found = [self._is_used(f"gpu.{gpu}", readings) for gpu in gpus]
        if any(found):
            return True
        return None if None in found else False

    def _is_used(self, gpu: str, readings: Mapping[str, float]) -> bool | None:
        if (works := self._is_working(gpu, readings)) is not None:
            return works
        utilisation = readings.get(f"{gpu}.utilisation")
        return None if utilisation is None else utilisation >= LEAST_UTILISATION

    def _is_working(self, gpu: str, readings: Mapping[str, float]) -> bool | None:
        power_w, peak_w = readings.get(f"{gpu}.power_w"), self._peaks_w.get(f"{gpu}.power_w", 0.0)
        if power_w is None or peak_w < LEAST_PEAK_W:
            return None
        if power_w >= POWER_SHARE * peak_w:
            return True
        return False if readings.get(f"{gpu}.utilisation", 0.0) >= HIGH_UTILISATION else None


def was_idle(samples: Sequence[tuple[float, float]], since_s: float, until_s: float) -> bool:
    """Return whether a GPU is known to have done nothing from ``since_s`` to ``until_s``.

    ``samples``: moments in seconds, ascending, each with the utilisation in percent; NaN is unknown. A collective that
    waits keeps a GPU utilised, so that one counts as work.
    """
    known = [(at_s, used) for at_s, used in samples if since_s <= at_s <= until_s and not math.isnan(used)]
    moments = [since_s, *(at_s for at_s, _ in known), until_s]
    is_seen = bool(known) and all(later - at <= LONGEST_GAP_S for at, later in pairwise(moments))
    return is_seen and all(used < LEAST_UTILISATION for _, used in known)
