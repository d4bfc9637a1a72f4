"""Gap markers: counts of dropped reports, kept until the server has acknowledged them (I14).

There is a marker per boot, priority and reason. It names reports by the sequence numbers of one boot, so it is sent in
a report of that boot, under a number that no other report uses: ordinary reports number in steps of ``SEQ_STEP``, gap
reports in between.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agents.spool.records import Priority
from muster.domain.gpu.metrics import SCHEMA
from muster.durable import write_durably
from muster.wire.telemetry import TELEMETRY_PROTOCOL, GapMarker, Report

SEQ_STEP: Final = 16
_MAX_MARKERS: Final = 100
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Loss:
    """One report, or the part of it that was dropped."""

    boot_id: str
    priority: Priority
    seq: int
    at_ms: int
    why: str


class _Book(msgspec.Struct):
    """The stored book.

    ``sending``: reports whose content is fixed until each is acknowledged. ``open``: still counting.
    """

    serial: int = 0
    sending: list[Report] = msgspec.field(default_factory=list)
    open: dict[str, list[GapMarker]] = msgspec.field(default_factory=dict)


class GapBook:
    """The book in one small file, written before the counted reports are deleted: a loss is never silent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_unsaved = False
        self._book = self._load()

    @property
    def num_lost(self) -> int:
        """Reports counted and not yet acknowledged."""
        sending = sum(marker.num_reports for report in self._book.sending for marker in report.gaps)
        return sending + sum(marker.num_reports for markers in self._book.open.values() for marker in markers)

    def _load(self) -> _Book:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Book)
        except FileNotFoundError:
            return _Book()
        except (OSError, msgspec.MsgspecError) as error:
            _log.error("gap_book_unreadable", path=str(self._path), fault=str(error))
            return _Book()

    def note(self, losses: list[Loss]) -> None:
        for loss in losses:
            self._count(loss, first_seq=loss.seq, until_ms=loss.at_ms)
        if losses:
            self.save()

    def note_damage(self, loss: Loss, *, last_seq: int, until_ms: int) -> None:
        """Count a record that cannot be read: one report somewhere between its neighbours."""
        self._count(loss, first_seq=loss.seq, last_seq=last_seq, until_ms=until_ms)

    def _count(self, loss: Loss, *, first_seq: int, until_ms: int, last_seq: int | None = None) -> None:
        fresh = GapMarker(
            priority=loss.priority,
            first_seq=first_seq,
            last_seq=first_seq if last_seq is None else max(first_seq, last_seq),
            num_reports=1,
            from_ms=min(loss.at_ms, until_ms),
            until_ms=max(loss.at_ms, until_ms),
            why=loss.why[:128],
        )
        markers = self._book.open.setdefault(loss.boot_id, [])
        for index, marker in enumerate(markers):
            if (marker.priority, marker.why) == (fresh.priority, fresh.why):
                markers[index] = _joined(marker, fresh)
                return
        markers.append(fresh)

    def save(self) -> None:
        """Write the book. On a full disk it stays in memory, and is written at the next opportunity."""
        try:
            write_durably(self._path, msgspec.json.encode(self._book))
            self._is_unsaved = False
        except OSError:
            self._is_unsaved = True

    def save_if_needed(self) -> None:
        if self._is_unsaved:
            self.save()

    def next_report(self, now_ms: int) -> Report | None:
        """Return the gap report to send, the same one until it is acknowledged. None: nothing is open."""
        if not self._book.sending and self._book.open:
            self._close_open(now_ms)
        return self._book.sending[0] if self._book.sending else None

    def _close_open(self, now_ms: int) -> None:
        for boot_id, markers in self._book.open.items():
            for start in range(0, len(markers), _MAX_MARKERS):
                part = tuple(markers[start : start + _MAX_MARKERS])
                self._book.serial += 1
                base = max(marker.last_seq for marker in part)
                seq = base - base % SEQ_STEP + 1 + self._book.serial % (SEQ_STEP - 1)
                self._book.sending.append(
                    Report(
                        protocol=TELEMETRY_PROTOCOL,
                        boot_id=boot_id,
                        seq=seq,
                        at_ms=now_ms,
                        schema=SCHEMA,
                        is_history=True,
                        gaps=part,
                    )
                )
        self._book.open = {}
        self.save()

    def acknowledge(self, boot_id: str, seq: int) -> bool:
        """Return whether it was one of the book's own gap reports."""
        kept = [report for report in self._book.sending if (report.boot_id, report.seq) != (boot_id, seq)]
        is_ours = len(kept) < len(self._book.sending)
        if is_ours:
            self._book.sending = kept
            self.save()
        return is_ours


def _joined(one: GapMarker, other: GapMarker) -> GapMarker:
    return GapMarker(
        priority=one.priority,
        first_seq=min(one.first_seq, other.first_seq),
        last_seq=max(one.last_seq, other.last_seq),
        num_reports=one.num_reports + other.num_reports,
        from_ms=min(one.from_ms, other.from_ms),
        until_ms=max(one.until_ms, other.until_ms),
        why=one.why,
    )
