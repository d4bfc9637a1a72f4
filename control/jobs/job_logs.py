"""A job's logs as a page reads them: the streams, the end of one, later pieces, and whether the logs are complete."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Interval, func, literal, select

from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.jobs.read import row_of
from muster.db.models import Attempt, AttemptHost, Job, LogChunk, Node
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.principals import Permission
from muster.domain.states import TERMINAL_JOB_STATES, HostPartState, JobState

LAUNCHER: Final = "launcher"
STREAMS_SHOWN: Final = 2_000
CHUNKS_SHOWN: Final = 200


class LogChunkRecord(msgspec.Struct, frozen=True):
    """A piece of what a rank or a launcher printed. Its columns' meanings are in ``muster.db.models.logs``."""

    attempt_id: AttemptId
    node_id: NodeId
    stream: str
    byte_offset: int
    content: bytes
    received_at: datetime
    position: int


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Conditions on pieces; None sets no condition. ``stream``: a rank's number, or ``launcher``."""

    attempt_id: str | None = None
    node_id: str | None = None
    stream: str | None = None


CLOCKS_DIFFER: Final = timedelta(days=1)
"""Far more than clocks of API processes differ: a piece may be received before its job was made."""
EVERYTHING: Final = LogFilter()
_MAY_DELIVER: Final = AttemptHost.state.not_in([HostPartState.EXITED, HostPartState.CLEAN])


class LogMark(NamedTuple):
    """Mark of a job's output, which changes when there is more of it or when it may have ended.

    ``undelivered``: the parts of attempts whose hosts may still deliver output.
    """

    position: int
    state: JobState
    undelivered: int


@dataclass(frozen=True, slots=True)
class LogStream:
    """The output of one rank of one attempt, or of a host's launcher."""

    attempt_id: AttemptId
    number: int
    node_id: NodeId
    node_name: str
    stream: str


def streams_of(unit: UnitOfWork, job_id: JobId, wanted: LogFilter = EVERYTHING) -> Sequence[LogStream]:
    """Return the streams of a visible job that hold something: by attempt, then launchers first, then by rank."""
    job = _readable(unit, job_id)
    attempts = select(Attempt.id).where(Attempt.job_id == job.id)
    told = (
        select(LogChunk.attempt_id, LogChunk.node_id, LogChunk.stream)
        .where(LogChunk.attempt_id.in_(attempts), since(job.created_at), *conditions_of(wanted))
        .distinct()
        .limit(STREAMS_SHOWN)
        .subquery()
    )
    query = (
        select(told.c.attempt_id, Attempt.number, told.c.node_id, Node.name, told.c.stream)
        .join(Attempt, Attempt.id == told.c.attempt_id)
        .join(Node, Node.id == told.c.node_id)
    )
    found = [LogStream(*row) for row in unit.session.execute(query)]
    return sorted(found, key=lambda one: (one.number, one.stream != LAUNCHER, _rank(one.stream), one.node_name))


def last_chunks(unit: UnitOfWork, job_id: JobId, wanted: LogFilter, *, max_bytes: int) -> Sequence[LogChunkRecord]:
    """Return the newest pieces in the order of their arrival: as many as fit, and one at least."""
    query = select(LogChunk).where(*_of(_readable(unit, job_id)), *conditions_of(wanted))
    found: list[LogChunkRecord] = []
    room = max_bytes
    for chunk in unit.session.scalars(query.order_by(LogChunk.position.desc()).limit(CHUNKS_SHOWN)):
        if found and len(chunk.content) > room:
            break
        found.append(record_of(chunk, LogChunkRecord))
        room -= len(chunk.content)
    return found[::-1]


def chunks_after(
    unit: UnitOfWork, job_id: JobId, wanted: LogFilter, *, after: int, limit: int = 16
) -> Sequence[LogChunkRecord]:
    """Return pieces after position ``after`` in the order of their arrival."""
    job = _readable(unit, job_id)
    query = select(LogChunk).where(*_of(job), LogChunk.position > after, *conditions_of(wanted))
    return records_of(unit.session.scalars(query.order_by(LogChunk.position).limit(limit)), LogChunkRecord)


def chunks_of(
    unit: UnitOfWork, job_id: JobId, one: LogStream, *, after: int = -1, limit: int = 16
) -> Sequence[LogChunkRecord]:
    """Return pieces of one stream after byte ``after``, as they were printed."""
    job, wanted = _readable(unit, job_id), LogFilter(one.attempt_id, one.node_id, one.stream)
    query = select(LogChunk).where(*_of(job), LogChunk.byte_offset > after, *conditions_of(wanted))
    return records_of(unit.session.scalars(query.order_by(LogChunk.byte_offset).limit(limit)), LogChunkRecord)


def end_of(unit: UnitOfWork, job_id: JobId) -> JobState | None:
    """Return the job's state once it has ended and no host has a piece left to deliver.

    Hosts deliver logs before they report that their part ended.
    """
    job = row_of(unit, job_id)
    if job.state not in TERMINAL_JOB_STATES:
        return None
    query = (
        select(AttemptHost.attempt_id)
        .join(Attempt, Attempt.id == AttemptHost.attempt_id)
        .where(Attempt.job_id == job.id, _MAY_DELIVER)
        .limit(1)
    )
    return job.state if unit.session.scalar(query) is None else None


def log_marks(units: UnitOfWorkFactory, job_ids: Sequence[JobId]) -> dict[JobId, LogMark]:
    """Return each job's mark. It shows no output: a follower reads that itself, with its own rights."""
    since_job = LogChunk.received_at >= Job.created_at - literal(CLOCKS_DIFFER, Interval())
    newest = select(func.max(LogChunk.position)).where(LogChunk.job_id == Job.id, since_job).scalar_subquery()
    undelivered = (
        select(func.count())
        .select_from(AttemptHost)
        .join(Attempt, Attempt.id == AttemptHost.attempt_id)
        .where(Attempt.job_id == Job.id, _MAY_DELIVER)
        .scalar_subquery()
    )
    with units.read() as session:
        rows = session.execute(select(Job.id, newest, Job.state, undelivered).where(Job.id.in_(job_ids)))
        return {job_id: LogMark(position or 0, state, waiting) for job_id, position, state, waiting in rows}


def _readable(unit: UnitOfWork, job_id: JobId) -> Job:
    unit.principal.require(Permission.LOG_READ)
    return row_of(unit, job_id)


def _of(job: Job) -> Iterator[ColumnElement[bool]]:
    yield LogChunk.job_id == job.id
    yield since(job.created_at)


def since(begin: datetime) -> ColumnElement[bool]:
    """Return the condition on pieces that spares the partitions of days before ``begin``; clocks may differ."""
    return LogChunk.received_at >= begin - CLOCKS_DIFFER


def conditions_of(wanted: LogFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.attempt_id is not None:
        yield LogChunk.attempt_id == wanted.attempt_id
    if wanted.node_id is not None:
        yield LogChunk.node_id == wanted.node_id
    if wanted.stream is not None:
        yield LogChunk.stream == wanted.stream


def _rank(stream: str) -> int:
    return int(stream) if stream.isascii() and stream.isdigit() else -1
