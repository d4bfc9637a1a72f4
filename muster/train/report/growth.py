"""Whether a program's memory grows without end: told once, long before it is full.

Looked at about once a second, at most 120 looks are kept: when there are so many, they are judged, and every second one
is dropped, so that each judgement goes over twice the time of the one before. Memory that is only busy goes down again,
and what a start fills comes to rest; what leaks has no lower point later than any earlier one.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from muster.train.report.wire import Channel

MOST_LOOKS = 120
NUM_PARTS = 6
"""The looks in their order, in so many parts; the first is the start's, and does not count."""
LEAST_FRACTION = 0.02
LEAST_BYTES = 64 << 20
_MIB = 1 << 20

Look = tuple[int, int]
"""Step, and bytes held after it."""


def leak_in(looks: Sequence[Look]) -> str:
    """What is to be said of memory whose lowest point rises from part to part, by 2 % and 64 MiB in all."""
    size = len(looks) // NUM_PARTS
    parts = [looks[first * size : (first + 1) * size] for first in range(1, NUM_PARTS)]
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
    """The first rank's: all run the same program, and one word about it is enough."""

    def __init__(self, channel: Channel, rank: int, held_bytes: Callable[[], int]) -> None:
        self._channel = channel
        self._is_watching = rank == 0
        self._held_bytes = held_bytes
        self._looks: list[Look] = []
        self._num_seen = 0
        self._stride = 1

    def look(self, step: int) -> None:
        """After a step."""
        if not self._is_watching:
            return
        self._num_seen += 1
        if self._num_seen % self._stride:
            return
        self._looks.append((step, self._held_bytes()))
        if len(self._looks) < MOST_LOOKS:
            return
        if words := leak_in(self._looks):
            self._is_watching = False
            sys.stderr.write(f"muster.train: {words}\n")
            self._channel.say("warning", code="memory_growth", message=words)
        self._looks = self._looks[::2]
        self._stride *= 2
