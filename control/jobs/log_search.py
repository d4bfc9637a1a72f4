"""Lines of a job's logs that hold a text, a bounded stretch at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import select, tuple_

from control.core.unit_of_work import UnitOfWork
from control.jobs.job_logs import LogFilter, conditions_of, since
from control.jobs.read import row_of
from muster.db.models import Attempt, LogChunk
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.job.log_search import FoundLine, LineSearch, Sought
from muster.domain.principals import Permission

STRETCH_BYTES: Final = 4 << 20
"""Number of bytes that one search reads before it returns its place: 40 ms of a core, for a log of any size."""
CHUNKS_A_READ: Final = 32


class Place(NamedTuple):
    """Place from which a search continues: byte ``offset`` of a stream, in the piece that begins at ``chunk``."""

    attempt_id: str
    node_id: str
    stream: str
    chunk: int
    offset: int


class Piece(NamedTuple):
    attempt_id: AttemptId
    node_id: NodeId
    stream: str
    byte_offset: int
    content: bytes
    received_at: datetime


@dataclass(frozen=True, slots=True)
class LogLine:
    attempt_id: AttemptId
    node_id: NodeId
    stream: str
    received_at: datetime
    line: FoundLine


def search(
    unit: UnitOfWork, job_id: JobId, wanted: LogFilter, sought: Sought, *, after: Place | None, limit: int
) -> tuple[Sequence[LogLine], Place | None]:
    """Return lines by attempt, host and stream from its beginning, and the place to continue; None at the end.

    A stretch may hold none: a search has ended only where there is no place to continue.
    """
    unit.principal.require(Permission.LOG_READ)
    scan = _Scan(sought, after)
    found: list[LogLine] = []
    for chunk in _chunks(unit, row_of(unit, job_id).id, wanted, after):
        for line in scan.lines_in(chunk):
            found.append(line)
            if len(found) == limit:
                return found, scan.place
        if scan.num_bytes >= STRETCH_BYTES:
            return found, scan.place
    found.extend(scan.last_lines())  # of one stream: one line at most, so the limit is passed by one at most
    return found, None


class _Scan:
    """A pass through pieces in the order of their keys; a new stream begins a new line."""

    def __init__(self, sought: Sought, after: Place | None) -> None:
        self._sought = sought
        self._after = after
        self._newest: Piece | None = None
        self._begins_in = 0
        self._search = LineSearch(sought)
        self.num_bytes = 0

    def lines_in(self, chunk: Piece) -> Iterator[LogLine]:
        start = self._after.offset if self._after is not None and self._after[:3] == chunk[:3] else 0
        if self._newest is None or chunk[:3] != self._newest[:3]:
            yield from self.last_lines()
            self._search = LineSearch(self._sought, start)
        self._newest = chunk
        content = chunk.content[max(0, start - chunk.byte_offset) :]
        self.num_bytes += len(content)
        for line in self._search.feed(max(start, chunk.byte_offset), content) if content else ():
            yield self._log_line(line)
        if self._search.line_begins >= chunk.byte_offset:
            self._begins_in = chunk.byte_offset

    def last_lines(self) -> Iterator[LogLine]:
        for line in self._search.end():
            yield self._log_line(line)

    @property
    def place(self) -> Place:
        """Beginning of the line that was not read to its end."""
        newest = self._newest
        if newest is None:
            raise AssertionError("a search has read a piece before it returns its place")
        begins = self._search.line_begins
        chunk = newest.byte_offset if begins >= newest.byte_offset else self._begins_in
        return Place(newest.attempt_id, newest.node_id, newest.stream, chunk, begins)

    def _log_line(self, line: FoundLine) -> LogLine:
        newest = self._newest
        if newest is None:
            raise AssertionError("a line is found in a piece")
        return LogLine(newest.attempt_id, newest.node_id, newest.stream, newest.received_at, line)


def _chunks(unit: UnitOfWork, job_id: JobId, wanted: LogFilter, after: Place | None) -> Iterator[Piece]:
    """Yield pieces in the order of the primary key, attempt by attempt: so each read is a stretch of that index."""
    attempts = select(Attempt.id, Attempt.placed_at).where(Attempt.job_id == job_id).order_by(Attempt.id)
    found = unit.session.execute(attempts if after is None else attempts.where(Attempt.id >= after[0])).all()
    for attempt_id, placed_at in found:
        begin = after[1:4] if after is not None and attempt_id == after[0] else None
        yield from _chunks_of(unit, AttemptId(attempt_id), placed_at, wanted, begin)


def _chunks_of(
    unit: UnitOfWork, attempt_id: AttemptId, placed_at: datetime, wanted: LogFilter, begin: tuple[str, str, int] | None
) -> Iterator[Piece]:
    key = (LogChunk.node_id, LogChunk.stream, LogChunk.byte_offset)
    query = (
        select(LogChunk.attempt_id, *key, LogChunk.content, LogChunk.received_at)
        .where(LogChunk.attempt_id == attempt_id, since(placed_at), *conditions_of(wanted))
        .order_by(*key)
        .limit(CHUNKS_A_READ)
    )
    onward = query if begin is None else query.where(tuple_(*key) >= begin)
    while True:
        rows = unit.session.execute(onward).all()
        yield from (Piece(*row) for row in rows)
        if len(rows) < CHUNKS_A_READ:
            return
        onward = query.where(tuple_(*key) > tuple(rows[-1][1:4]))
