"""The spool: every report waits here, on disk, until the server has acknowledged it.

Events (P0) are flushed before ``append`` returns, the rest within half a second. Past the caps metrics (P2) are reduced
first: from each sample to one a minute, then to the node's own state (P1), then to nothing; events are dropped when
nothing else is left. Each loss is counted in a gap marker that reaches the server. A full or unwritable disk does not
stop the agent: it keeps a bounded number of reports in memory, logs that, and writes again as soon as it can.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agents.spool.entries import Entries, Entry, Identity
from agents.spool.gaps import GapBook
from agents.spool.loading import load
from agents.spool.records import PRIORITIES, Priority, Record
from agents.spool.refused import RefusedReports
from agents.spool.segments import Segment
from agents.spool.space import SpaceMaker
from muster.wire.telemetry import Report

_AGE_CHECK_MS: Final = 60_000
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_log = structlog.get_logger(__name__)


class SpoolInUseError(Exception):
    """Another agent works in this folder."""


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Limits of the spool. ``memory_bytes``: of reports that wait in memory while the disk takes nothing."""

    max_bytes: int = 256 << 20
    max_age_ms: int = 24 * 3_600_000
    segment_bytes: int = 1 << 20
    memory_bytes: int = 8 << 20
    sync_within_ms: int = 500
    thin_to_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class SpoolState:
    """State of the spool. ``fault``: why reports wait in memory alone.

    ``num_lost``: counted, and not yet acknowledged by the server.
    """

    num_reports: int
    num_bytes: int
    num_lost: int
    num_damaged: int
    num_refused: int
    fault: str | None


class Spool:
    """Reports in ``folder``, which one process holds at a time. ``monotonic_ms`` times the flushes, nothing else.

    Raises:
        SpoolInUseError: another process holds it.
    """

    def __init__(self, folder: Path, limits: SpoolLimits | None = None, *, monotonic_ms: Callable[[], int]) -> None:
        self._limits = limits or SpoolLimits()
        self._folder = folder
        self._monotonic_ms = monotonic_ms
        self._lock = threading.RLock()
        self._entries = Entries()
        self._segments: list[Segment] = []
        self._active: dict[Priority, Segment] = {}
        self._next_number = 1
        self._sync_due_ms = 0
        self._next_age_check_ms = 0
        self._num_damaged = 0
        self._fault: str | None = None
        self._holder = self._hold()
        self._gaps = GapBook(folder / "gaps.json")
        self._refused = RefusedReports(folder / "refused")
        self._space = SpaceMaker(self._entries, self._segments, self._gaps, self._limits.thin_to_ms)
        self._load()

    def _hold(self) -> int | None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            holder = _open_lock(self._folder / "lock")
        except OSError as error:
            self._report_fault(error)
            return None
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(holder)
            raise SpoolInUseError(f"another agent works in {self._folder}") from None
        return holder

    def _load(self) -> None:
        if self._holder is None:
            return
        try:
            loaded = load(self._folder, self._entries, self._gaps)
        except OSError as error:
            self._report_fault(error)
            return
        self._segments.extend(loaded.segments)
        self._next_number = loaded.next_number
        self._num_damaged = loaded.num_damaged

    # --- incoming reports

    def append(self, report: Report, priority: Priority) -> None:
        """Keep ``report``. Events are on the disk when this returns, where there is one that takes them."""
        content = msgspec.json.encode(report)
        record = Record(priority, report.boot_id, report.seq, report.at_ms, content)
        with self._lock:
            self._keep(record)
            if priority == "events" or self._monotonic_ms() >= self._sync_due_ms:
                self.sync()
            self._drop_aged(report.at_ms)
            self._stay_under_caps()
            self._gaps.save_if_needed()

    def _keep(self, record: Record) -> None:
        try:
            entry = self._write(record)
            self._clear_fault()
        except OSError as error:
            self._report_fault(error)
            may_sacrifice = record.priority == "events" and error.errno in _NO_SPACE
            entry = (self._write_after_sacrifice(record) if may_sacrifice else None) or _in_memory(record)
        self._entries.add(entry)

    def _write(self, record: Record) -> Entry:
        if self._holder is None:
            self._holder = self._hold()
        if self._holder is None:
            raise OSError(errno.EROFS, self._fault or "no folder")
        segment = self._active.get(record.priority)
        if segment is None or not segment.is_open or segment.size >= self._limits.segment_bytes:
            segment = self._begin_segment(record.priority)
        offset, length = segment.append(record)
        return Entry(record.priority, record.boot_id, record.seq, record.at_ms, segment, offset, length)

    def _write_after_sacrifice(self, record: Record) -> Entry | None:
        """Write an event to a full disk at the cost of the oldest metrics."""
        while self._space.drop_oldest(("metrics", "health"), why="disk full"):
            try:
                return self._write(record)
            except OSError:
                continue
        return None

    def _begin_segment(self, priority: Priority) -> Segment:
        segment = Segment(self._folder, self._next_number, priority)
        self._next_number += 1
        segment.create()
        before = self._active.get(priority)
        if before is not None:
            before.close()
            self._space.forget_if_empty(before)
        self._segments.append(segment)
        self._active[priority] = segment
        return segment

    def _stay_under_caps(self) -> None:
        self._space.fit_memory(self._limits.memory_bytes)
        while self.num_bytes > self._limits.max_bytes and self._space.make_some(self._keep):
            continue

    def _drop_aged(self, now_ms: int) -> None:
        if self._monotonic_ms() < self._next_age_check_ms:
            return
        self._next_age_check_ms = self._monotonic_ms() + min(_AGE_CHECK_MS, self._limits.max_age_ms // 10)
        self._space.drop_before(now_ms - self._limits.max_age_ms)

    # --- flushing

    def sync(self) -> None:
        """Flush. It is called after a burst, whose last reports may be waiting for it. A fault is logged."""
        with self._lock:
            self._sync_due_ms = self._monotonic_ms() + self._limits.sync_within_ms
            for segment in self._active.values():
                try:
                    segment.sync()
                except OSError as error:
                    self._report_fault(error)

    # --- outgoing reports

    def newest_state(self) -> Entry | None:
        """Return the newest sample that waits, or where there is none the newest node state."""
        with self._lock:
            return self._entries.newest("metrics") or self._entries.newest("health")

    def next_event(self, boot_id: str, after_seq: int) -> Entry | None:
        """Return the oldest event that waits and is newer than ``after_seq`` of this boot."""
        with self._lock:
            return self._entries.oldest_after("events", boot_id, after_seq)

    def oldest(self, *priorities: Priority) -> Entry | None:
        """Return the oldest that waits, of the first of ``priorities`` (all by default) that has any."""
        with self._lock:
            return next((entry for name in priorities or PRIORITIES if (entry := self._entries.oldest(name))), None)

    def content_of(self, entry: Entry) -> bytes | None:
        """Return the report as JSON. None: it cannot be read, which is now counted, and it no longer waits."""
        with self._lock:
            record = entry.record()
            if record is None and self._entries.find(entry.identity) is entry:
                self._num_damaged += 1
                self._space.give_up([entry], why="damaged on disk")
            return None if record is None else record.content

    def gap_report(self, now_ms: int) -> Report | None:
        with self._lock:
            return self._gaps.next_report(now_ms)

    def acknowledge(self, identity: Identity) -> None:
        """Forget a report that the server has. An unknown one is no fault."""
        with self._lock:
            if self._gaps.acknowledge(*identity):
                return
            entry = self._entries.find(identity)
            if entry is not None:
                self._space.release(entry)

    def set_aside(self, identity: Identity, content: bytes, reason: str) -> None:
        """Set aside a report that the server refuses permanently: it is kept apart with the reason, and counted."""
        with self._lock:
            self._refused.keep(identity, content, reason)
            entry = self._entries.find(identity)
            if entry is not None:
                self._space.give_up([entry], why=f"refused: {reason}")
            else:
                self._gaps.acknowledge(*identity)

    # --- its own state

    @property
    def num_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def newest_seq(self, boot_id: str) -> int:
        """Return the greatest number that is kept of this boot; 0 where there is none."""
        with self._lock:
            return max((entry.seq for entry in self._entries if entry.boot_id == boot_id), default=0)

    def state(self) -> SpoolState:
        with self._lock:
            return SpoolState(
                num_reports=len(self._entries),
                num_bytes=self.num_bytes,
                num_lost=self._gaps.num_lost,
                num_damaged=self._num_damaged,
                num_refused=self._refused.num_refused,
                fault=self._fault,
            )

    def close(self) -> None:
        with self._lock:
            self._gaps.save_if_needed()
            for segment in self._segments:
                segment.close()
            if self._holder is not None:
                os.close(self._holder)
                self._holder = None

    def _report_fault(self, error: OSError) -> None:
        words = os.strerror(error.errno) if error.errno else str(error)
        if words != self._fault:
            _log.error("spool_cannot_write", folder=str(self._folder), fault=words, then="reports wait in memory")
        self._fault = words

    def _clear_fault(self) -> None:
        if self._fault is not None:
            _log.info("spool_writes_again", folder=str(self._folder))
        self._fault = None


def _in_memory(record: Record) -> Entry:
    return Entry(record.priority, record.boot_id, record.seq, record.at_ms, content=record.content)


def _open_lock(path: Path) -> int:
    """Open the lock. On a disk that has become read-only, waiting reports are still delivered. Raises OSError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
