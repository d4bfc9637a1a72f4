"""The offset of the host's clock from the server's, and how often it was stepped.

Each answer of the server has a ``Date``, whole seconds, which the server keeps for up to a second more. So it bounds
the offset from both sides, and the bounds of many answers together are narrower than one answer's. Servers of any age
send it. The least offset that the bounds allow is reported: equal clocks are never reported as apart.
"""

from collections import deque
from datetime import UTC
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Final

KEPT: Final = 64
"""Answers that are combined: ten minutes at the usual pace, in which a clock drifts by milliseconds."""
STEP_MS: Final = 1_000
_DATE_AGE_MS: Final = 2_000
_MOST_CHARACTERS: Final = 64


class ServerClock:
    """Bounds of the offset. Callers of the server use ``saw``, reporters ``offset_s``; in any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bounds: deque[tuple[int, int]] = deque(maxlen=KEPT)

    def saw(self, date: str, sent_ms: int, answered_ms: int) -> None:
        """Add the bounds of one answer. ``date``: its header. The times are the host's own, since 1970."""
        server_ms = _milliseconds_of(date)
        if server_ms is None or answered_ms < sent_ms:
            return
        with self._lock:
            self._bounds.append((sent_ms - server_ms - _DATE_AGE_MS, answered_ms - server_ms))
            if self._least() > self._most():  # one of the clocks was set: only the newest answer counts
                newest = self._bounds[-1]
                self._bounds.clear()
                self._bounds.append(newest)

    def offset_s(self) -> float | None:
        """Return the seconds by which the host is ahead at least (below zero: behind); None before the first answer."""
        with self._lock:
            if not self._bounds:
                return None
            return max(self._least(), min(0, self._most())) / 1000

    def _least(self) -> int:
        return max(least for least, _ in self._bounds)

    def _most(self) -> int:
        return min(most for _, most in self._bounds)


class ClockSteps:
    """A count of how often the wall clock left the boot clock by over a second between two checks."""

    def __init__(self) -> None:
        self._difference_ms: int | None = None
        self.count = 0

    def check(self, wall_ms: int, boottime_ms: int) -> None:
        difference_ms, before = wall_ms - boottime_ms, self._difference_ms
        self._difference_ms = difference_ms
        if before is not None and abs(difference_ms - before) > STEP_MS:
            self.count += 1


def _milliseconds_of(date: str) -> int | None:
    try:
        moment = parsedate_to_datetime(date[:_MOST_CHARACTERS])
        return round((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
