"""Waiting reports of the spool, in memory: the place of each, by identity and, per priority, by age."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from agents.spool.records import PRIORITIES, Priority, Record
from agents.spool.segments import Segment

Identity = tuple[str, int]
"""Pair of boot_id and seq."""

OLDEST_FIRST_OUT: Final[tuple[Priority, ...]] = ("metrics", "health", "events")
"""Order in which space is freed."""


@dataclass(slots=True, eq=False)
class Entry:
    """A waiting report. ``content``: it stands in memory alone, because the disk took nothing."""

    priority: Priority
    boot_id: str
    seq: int
    at_ms: int
    segment: Segment | None = None
    offset: int = 0
    length: int = 0
    content: bytes | None = None

    @property
    def identity(self) -> Identity:
        return self.boot_id, self.seq

    def record(self) -> Record | None:
        """Return the record, None: damaged on disk."""
        if self.content is not None:
            return Record(self.priority, self.boot_id, self.seq, self.at_ms, self.content)
        found = None if self.segment is None else self.segment.read(self.offset, self.length)
        return found if found is not None and (found.boot_id, found.seq) == self.identity else None


class Entries:
    def __init__(self) -> None:
        self._by_priority: dict[Priority, OrderedDict[Identity, Entry]] = {name: OrderedDict() for name in PRIORITIES}
        self.memory_bytes = 0
        """Bytes of reports that are in memory alone."""

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._by_priority.values())

    def __iter__(self) -> Iterator[Entry]:
        for entries in self._by_priority.values():
            yield from entries.values()

    def add(self, entry: Entry) -> None:
        self._by_priority[entry.priority][entry.identity] = entry
        self.memory_bytes += len(entry.content or b"")

    def find(self, identity: Identity) -> Entry | None:
        return next((found for part in self._by_priority.values() if (found := part.get(identity))), None)

    def remove(self, entry: Entry) -> None:
        if self._by_priority[entry.priority].pop(entry.identity, None) is not None:
            self.memory_bytes -= len(entry.content or b"")

    def oldest(self, priority: Priority) -> Entry | None:
        return next(iter(self._by_priority[priority].values()), None)

    def newest(self, priority: Priority) -> Entry | None:
        return next(reversed(self._by_priority[priority].values()), None)

    def oldest_after(self, priority: Priority, boot_id: str, seq: int) -> Entry | None:
        """Return the oldest report after that number.

        It is searched from the newest backwards, so a long backlog costs nothing.
        """
        found = None
        for entry in reversed(self._by_priority[priority].values()):
            if entry.boot_id != boot_id or entry.seq <= seq:
                break
            found = entry
        return found

    def of_segment(self, segment: Segment) -> list[Entry]:
        return [entry for entry in self._by_priority[segment.priority].values() if entry.segment is segment]

    def in_memory(self) -> list[Entry]:
        """Return the reports in memory alone, in the order in which they would be dropped."""
        return [
            entry
            for priority in OLDEST_FIRST_OUT
            for entry in self._by_priority[priority].values()
            if entry.content is not None
        ]
