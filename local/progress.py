"""Patience with a process that starts: as long as it works, it is waited for, however slow the machine is.

A fixed time is wrong on a busy machine, and too long for a process that hangs. A process works if it and its children
use CPU or transfer data; one that waits for something that never comes does neither.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from local.errors import EmbeddedServerError

PATIENCE_S: Final = 60.0
"""Time without progress after which a process counts as hung."""
CHECK_EACH_S: Final = 1.0
REPORT_EACH_S: Final = 10.0
LEAST_CPU_S: Final = 0.1
"""Less CPU than this is no progress: a process that only tries again and again uses a few milliseconds a try."""
LEAST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """CPU time and transferred bytes of a process and its children, ended ones included."""

    cpu_s: float = 0.0
    num_bytes: int = 0

    def differs_from(self, other: "Work") -> bool:
        """Return whether enough was done between them; a smaller sum means that a child has ended."""
        cpu_s, num_bytes = self.cpu_s - other.cpu_s, self.num_bytes - other.num_bytes
        return abs(cpu_s) >= LEAST_CPU_S or abs(num_bytes) >= LEAST_BYTES


def work_of(pid: int) -> Work:
    """Return the work of a process so far; nothing if it has ended."""
    cpu_s, num_bytes = 0.0, 0
    with suppress(psutil.Error):
        own = psutil.Process(pid)
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):
                times, moved = process.cpu_times(), process.io_counters()
                cpu_s += times.user + times.system + times.children_user + times.children_system
                num_bytes += moved.read_chars + moved.write_chars
    return Work(cpu_s, num_bytes)


class Patience:
    """Patience with what ``expected`` names. ``report``: gets a sentence each ten seconds of waiting."""

    def __init__(
        self,
        expected: str,
        work: Callable[[], Work],
        *,
        report: Callable[[str], None] | None = None,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = expected
        self._work = work
        self._report = report
        self._patience_s = patience_s
        self._clock = clock
        self._began_s = self._moved_s = self._checked_s = self._reported_s = clock()
        self._mark = work()

    def require_progress(self) -> None:
        """Check for progress, at most once a second.

        Raises:
            EmbeddedServerError: there was none for the time of this patience.
        """
        now_s = self._clock()
        if now_s - self._checked_s < CHECK_EACH_S:
            return
        self._checked_s, found = now_s, self._work()
        if found.differs_from(self._mark):
            self._mark, self._moved_s = found, now_s
        if now_s - self._moved_s >= self._patience_s:
            message = f"{self._expected}: no progress for {self._patience_s:g} s, so it is not waited for any longer"
            raise EmbeddedServerError(message)
        if self._report is not None and now_s - self._reported_s >= REPORT_EACH_S:
            self._reported_s = now_s
            used = f", {found.cpu_s:.1f} s of CPU used so far" if found.cpu_s else ""
            self._report(f"waiting for {self._expected}: {now_s - self._began_s:.0f} s{used}")
