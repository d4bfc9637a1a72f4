"""Freeing of space in the spool: metrics are thinned to one a minute, then to the node's own state, then dropped.

Events are dropped last. Every loss is in the gap book, and the book on the disk, before the file with the reports is
deleted.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agents.spool.entries import OLDEST_FIRST_OUT, Entries, Entry
from agents.spool.gaps import GapBook, Loss
from agents.spool.records import Priority, Record
from agents.spool.segments import Segment
from muster.wire.telemetry import Report

THINNED: Final = "thinned out"
STRIPPED: Final = "readings dropped for space"
DROPPED: Final = "dropped for space"
AGED: Final = "too old"
MEMORY_FULL: Final = "memory full"
_EMPTY_BYTES: Final = 64 << 10
"""A segment that is still written to is deleted once it is empty and this long."""


class SpaceMaker:
    """Changes the spool's own entries and segments, under its lock."""

    def __init__(self, entries: Entries, segments: list[Segment], gaps: GapBook, thin_to_ms: int) -> None:
        self._entries = entries
        self._segments = segments
        self._gaps = gaps
        self._thin_to_ms = thin_to_ms

    def release(self, entry: Entry) -> None:
        """Remove an entry that is delivered, or counted as lost."""
        self._entries.remove(entry)
        segment = entry.segment
        if segment is not None:
            segment.num_live -= 1
            segment.mark_done(entry.offset)
            if not segment.is_open or segment.size > _EMPTY_BYTES:
                self.forget_if_empty(segment)

    def give_up(self, entries: Sequence[Entry], *, why: str) -> None:
        # The count is on disk before a file is deleted: a crash in between may count a report that is still sent, but
        # never loses one that is not counted.
        self._gaps.note([Loss(entry.boot_id, entry.priority, entry.seq, entry.at_ms, why) for entry in entries])
        for entry in entries:
            self.release(entry)

    def forget_if_empty(self, segment: Segment) -> None:
        if segment.num_live <= 0 and segment in self._segments:
            self._segments.remove(segment)
            segment.delete()

    def drop_before(self, moment_ms: int) -> None:
        """Drop the reports past the age cap."""
        self.give_up([entry for entry in self._entries if entry.at_ms < moment_ms], why=AGED)

    def fit_memory(self, max_bytes: int) -> None:
        """Drop the least important, oldest first, of the reports in memory alone."""
        total = self._entries.memory_bytes
        given_up = []
        for entry in self._entries.in_memory() if total > max_bytes else ():
            if total <= max_bytes:
                break
            total -= len(entry.content or b"")
            given_up.append(entry)
        self.give_up(given_up, why=MEMORY_FULL)

    def make_some(self, keep: Callable[[Record], None]) -> bool:
        """Drop something in one step, and return whether there was anything to drop.

        ``keep`` stores the node state that remains of a sample.
        """
        thick = self._oldest_segment("metrics", is_thin=False)
        if thick is not None:
            self._thin(thick)
            return True
        stripped = self._oldest_segment("metrics")
        if stripped is not None:
            self._strip(stripped, keep)
            return True
        return self.drop_oldest(OLDEST_FIRST_OUT, why=DROPPED)

    def drop_oldest(self, priorities: Sequence[Priority], *, why: str) -> bool:
        """Drop a whole segment of the first of ``priorities`` that has one."""
        segment = next((found for name in priorities if (found := self._oldest_segment(name))), None)
        if segment is None:
            return False
        self._drop(segment, why)
        return True

    def _oldest_segment(self, priority: Priority, *, is_thin: bool | None = None) -> Segment | None:
        return next(
            (
                segment
                for segment in self._segments
                if segment.priority == priority and is_thin in {None, segment.is_thin}
            ),
            None,
        )

    def _drop(self, segment: Segment, why: str) -> None:
        segment.close()
        self.give_up(self._entries.of_segment(segment), why=why)
        self.forget_if_empty(segment)

    def _thin(self, segment: Segment) -> None:
        """Keep one sample of each minute."""
        segment.close()
        segment.is_thin = True
        kept, dropped = self._by_minute(self._entries.of_segment(segment))
        readable = [(entry, record) for entry in kept if (record := entry.record()) is not None]
        lost = [entry for entry in kept if entry not in {found for found, _ in readable}]
        self._gaps.note([Loss(entry.boot_id, entry.priority, entry.seq, entry.at_ms, THINNED) for entry in dropped])
        self._gaps.note([Loss(one.boot_id, one.priority, one.seq, one.at_ms, "damaged on disk") for one in lost])
        for entry in (*dropped, *lost):
            self._entries.remove(entry)
        self._rewrite(segment, readable)

    def _by_minute(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Return the first entry of each minute of a boot, and all others."""
        kept: dict[tuple[str, int], Entry] = {}
        dropped = []
        for entry in entries:
            minute = (entry.boot_id, entry.at_ms // self._thin_to_ms)
            if kept.setdefault(minute, entry) is not entry:
                dropped.append(entry)
        return list(kept.values()), dropped

    def _rewrite(self, segment: Segment, kept: list[tuple[Entry, Record]]) -> None:
        try:
            places = segment.rewrite([record for _, record in kept])
        except OSError:
            # No space for the smaller copy: the whole must go, or the cap would not hold.
            segment.num_live = len(kept)
            self.give_up([entry for entry, _ in kept], why=DROPPED)
            self.forget_if_empty(segment)
            return
        for (entry, _), (offset, length) in zip(kept, places, strict=True):
            entry.offset, entry.length = offset, length
        self.forget_if_empty(segment)

    def _strip(self, segment: Segment, keep: Callable[[Record], None]) -> None:
        """Keep the node's own state of each sample, under its number."""
        segment.close()
        entries = self._entries.of_segment(segment)
        states = [state for entry in entries if (state := _node_state(entry.record())) is not None]
        for state in states:
            keep(state)
        self.give_up(entries, why=STRIPPED)
        self.forget_if_empty(segment)


def _node_state(record: Record | None) -> Record | None:
    if record is None:
        return None
    try:
        report = msgspec.json.decode(record.content, type=Report)
    except msgspec.MsgspecError:
        return None
    if report.node is None and not report.events:
        return None
    content = msgspec.json.encode(msgspec.structs.replace(report, gpus=()))
    return Record("health", record.boot_id, record.seq, record.at_ms, content)
