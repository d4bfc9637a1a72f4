"""Loading of the spool that the agent's former process left, damage included."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agents.spool.entries import Entries, Entry
from agents.spool.gaps import GapBook, Loss
from agents.spool.records import Damage, Record
from agents.spool.segments import Segment, found_segments

DAMAGED = "damaged on disk"
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Loaded:
    segments: list[Segment] = field(default_factory=list)
    next_number: int = 1
    num_damaged: int = 0


def load(folder: Path, entries: Entries, gaps: GapBook) -> Loaded:
    """Fill ``entries``; count damage that is not counted yet. Raises OSError: the folder cannot be read."""
    loaded = Loaded()
    for segment in found_segments(folder):
        loaded.next_number = max(loaded.next_number, segment.number + 1)
        try:
            loaded.num_damaged += _load_segment(segment, entries, gaps)
        except OSError as error:
            loaded.num_damaged += 1
            _log.error("spool_segment_unreadable", path=str(segment.path), fault=str(error))
            continue
        if segment.num_live:
            loaded.segments.append(segment)
        else:
            segment.delete()
    if entries or loaded.num_damaged:
        _log.info("spool_loaded", num_reports=len(entries), num_damaged=loaded.num_damaged)
    return loaded


def _load_segment(segment: Segment, entries: Entries, gaps: GapBook) -> int:
    before: Record | None = None
    pending: list[Damage] = []
    num_damaged = 0
    for item in segment.load():
        if isinstance(item, Damage):
            pending.append(item)
            num_damaged += 1
            continue
        _count(segment, pending, before, item.record, gaps)
        pending, before = [], item.record
        record = item.record
        entry = Entry(record.priority, record.boot_id, record.seq, record.at_ms, segment, item.offset, item.length)
        if record.priority == segment.priority and entries.find(entry.identity) is None:
            entries.add(entry)
            segment.num_live += 1
    _count(segment, pending, before, None, gaps)
    return num_damaged


def _count(
    segment: Segment, damages: Sequence[Damage], before: Record | None, after: Record | None, gaps: GapBook
) -> None:
    """Count at least one report for each damaged place, somewhere between its whole neighbours."""
    neighbour = before or after
    for damage in damages:
        _log.error("spool_record_damaged", path=str(segment.path), offset=damage.offset, num_bytes=damage.length)
        boot_id = neighbour.boot_id if neighbour else "unknown"
        first_seq = before.seq + 1 if before else 0
        last_seq = after.seq - 1 if after and after.boot_id == boot_id else first_seq
        at_ms = neighbour.at_ms if neighbour else 0
        loss = Loss(boot_id, segment.priority, first_seq, at_ms, DAMAGED)
        gaps.note_damage(loss, last_seq=last_seq, until_ms=after.at_ms if after else at_ms)
    if damages:
        gaps.save()
        for damage in damages:
            segment.mark_done(damage.offset)
