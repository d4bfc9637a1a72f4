"""Detection of a program's memory that grows without end, reported once, long before the memory is full.

The memory in use is recorded about once a second, at most 120 times. At 120 records they are judged and every second
one is dropped, so each judgement covers twice the time of the one before. Memory in normal use falls again, and memory
that a start fills becomes constant. Only with a leak does the lowest point rise from each part to the next.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from muster.train.report.wire import Channel

MAX_READINGS = 120
NUM_PARTS = 6
"""Number of parts into which the records are cut, in their order. The first is the start's and does not count."""
LEAST_FRACTION = 0.02
LEAST_BYTES = 64 << 20
_MIB = 1 << 20

Reading = tuple[int, int]
"""Step, and bytes in use after it."""


def leak_in(readings: Sequence[Reading]) -> str:
    """Return a warning if the memory's lowest point rises from part to part, by 2 % and 64 MiB in all; else an empty
    text.
    """
    size = len(readings) // NUM_PARTS
    parts = [readings[first * size : (first + 1) * size] for first in range(1, NUM_PARTS)]
    lows = [min(part, key=lambda look: look[1]) for part in parts if part]
    is_rising = all(earlier[1] < later[1] for earlier, later in itertools.pairwise(lows))
    if len(lows) < NUM_PARTS - 1 or not is_rising:
        return ""
    (from_step, from_bytes), (to_step, to_bytes) = lows[0], lows[-1]
    grown = to_bytes - from_bytes
    if grown < max(LEAST_BYTES, LEAST_FRACTION * from_bytes):
        return ""
    rate = grown / max(to_step - from_step, 1) * 1000
    return (
        f"the memory of the first rank grows and does not come back: {from_bytes / _MIB:,.0f} MiB after step "
        f"{from_step}, {to_bytes / _MIB:,.0f} after step {to_step}, {rate / _MIB:,.1f} MiB in 1,000 steps: is "
        "something kept of each step, such as a loss with its graph?"
    )


class MemoryGrowth:
    """Memory watch of the first rank: all ranks run the same program, so one warning is enough."""

    def __init__(self, channel: Channel, rank: int, used_bytes: Callable[[], int]) -> None:
        self._channel = channel
        self._is_watching = rank == 0
        self._used_bytes = used_bytes
        self._readings: list[Reading] = []
        self._num_seen = 0
        self._stride = 1

    def take_reading(self, step: int) -> None:
        """Record the memory after a step, and judge the records if there are enough."""
        if not self._is_watching:
            return
        self._num_seen += 1
        if self._num_seen % self._stride:
            return
        self._readings.append((step, self._used_bytes()))
        if len(self._readings) < MAX_READINGS:
            return
        if words := leak_in(self._readings):
            self._is_watching = False
            sys.stderr.write(f"muster.train: {words}\n")
            self._channel.send("warning", code="memory_growth", message=words)
        self._readings = self._readings[::2]
        self._stride *= 2
