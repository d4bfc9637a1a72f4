"""Pieces of the ranks' output, stored within the limits of their attempt.

A piece is stored once, whatever its host repeats. Pieces of ranks that do not exist, of an attempt that ended long ago,
and of output beyond ``limits.attempt.log_bytes`` are left out; the host is answered as if they were stored, because it
would send a refused batch again or lose the rest of it.

    limit 1,000 bytes    rank 0 printed 900 bytes, and a piece of 300 arrives at byte 900
    stored               its first 100 bytes, and a line that says where the cut is
    later pieces         counted, in ``attempt_usage.num_dropped``; another rank's next piece is only such a line
"""

from collections.abc import Container, Sequence
from typing import Any, Final

from sqlalchemy import func, select

from control.attempts.allowance import LOG_BYTES, is_over, note_dropped
from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWork
from control.policy.policies import active_policy_with
from muster.db.models import AttemptHost, Job
from muster.db.pipeline.batched import query_together
from muster.domain.errors import StaleFenceError
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.policy.limits import AttemptLimitPolicy
from muster.wire.host import LogAnswer, LogBatch, LogChunk

LAUNCHER: Final = "launcher"
_MOST_KNOWN: Final = 10_000
_OWNER: Final = """
SELECT attempt.tenant_id, attempt.job_id, attempt.placed_at, attempt.ended_at, COALESCE(usage.amount, 0) AS num_bytes
FROM attempts AS attempt
    JOIN attempt_hosts AS host ON host.attempt_id = attempt.id AND host.node_id = %(node_id)s
    LEFT JOIN attempt_usage AS usage
        ON usage.attempt_id = attempt.id AND usage.kind = 'log_bytes' AND usage.subject = ''
WHERE attempt.id = %(attempt_id)s AND attempt.fence = %(fence)s
"""
_LOCK: Final = """
SELECT pg_advisory_xact_lock(hashtextextended(attempt.job_id, 0)) IS NULL AS is_locked
FROM attempts AS attempt JOIN attempt_hosts AS host ON host.attempt_id = attempt.id AND host.node_id = %(node_id)s
WHERE attempt.id = %(attempt_id)s AND attempt.fence = %(fence)s
"""
_GIVEN: Final = """
unnest(%(streams)s::text[], %(offsets)s::bigint[], %(contents)s::bytea[]) AS given (stream, byte_offset, content)
"""
_IS_STORED: Final = """
SELECT FROM log_chunks AS before
WHERE before.attempt_id = %(attempt_id)s AND before.node_id = %(node_id)s AND before.stream = given.stream
    AND before.byte_offset = given.byte_offset AND before.received_at >= %(placed_at)s
"""
_STORE: Final = f"""
WITH stored AS (
    INSERT INTO log_chunks (attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at)
    SELECT %(attempt_id)s, %(node_id)s, stream, byte_offset, %(tenant_id)s, %(job_id)s, content, %(now)s
    FROM {_GIVEN} WHERE NOT EXISTS ({_IS_STORED})
    ON CONFLICT DO NOTHING
    RETURNING octet_length(content) AS num_bytes
), counted AS (
    INSERT INTO attempt_usage (attempt_id, kind, subject, amount, num_dropped)
    SELECT %(attempt_id)s, 'log_bytes', '', COALESCE(sum(num_bytes), 0), %(num_dropped)s FROM stored
    HAVING count(*) > 0 OR %(num_dropped)s > 0
    ON CONFLICT (attempt_id, kind, subject) DO UPDATE
        SET amount = attempt_usage.amount + EXCLUDED.amount,
            num_dropped = attempt_usage.num_dropped + EXCLUDED.num_dropped
)
SELECT count(*) AS num_stored FROM stored
"""  # noqa: S608  # of constants alone
_NEW: Final = f"SELECT stream, byte_offset FROM {_GIVEN} WHERE NOT EXISTS ({_IS_STORED})"  # noqa: S608  # as above
_COUNTED: Final = """
SELECT subject, amount FROM attempt_usage
WHERE attempt_id = %(attempt_id)s AND kind = 'log_cut' AND subject = ANY (
    SELECT %(node_id)s || '/' || stream FROM unnest(%(streams)s::text[]) AS given (stream)
)
"""
_CUT: Final = """
INSERT INTO attempt_usage (attempt_id, kind, subject, amount, num_dropped)
SELECT %(attempt_id)s, 'log_cut', %(node_id)s || '/' || cut.stream, cut.counted_to, 0
FROM unnest(%(streams)s::text[], %(ends)s::bigint[]) AS cut (stream, counted_to)
ON CONFLICT (attempt_id, kind, subject) DO UPDATE SET amount = GREATEST(attempt_usage.amount, EXCLUDED.amount)
"""
_num_ranks: dict[AttemptId, int] = {}


def store(unit: UnitOfWork, node_id: NodeId, attempt_id: AttemptId, batch: LogBatch) -> LogAnswer:
    """Store pieces of one host's output.

    Raises:
        StaleFenceError: the fence is not this attempt's, or the host holds no part of it.
    """
    named = {"attempt_id": attempt_id, "node_id": node_id, "fence": batch.fence}
    # One writer a job at a time. So pieces become visible in the order of their positions, and a follower skips none;
    # and what is stored is read after the writer before has committed, so that several hosts do not pass the limit.
    policy, (_, owners) = active_policy_with(unit.session, (_LOCK, named), (_OWNER, named))
    if not owners:
        raise StaleFenceError
    owner, limits = owners[0], policy.limits.attempt
    if not batch.chunks or is_over(owner.ended_at, unit.now, limits):
        return LogAnswer(stored=0)
    num_ranks = _ranks_of(unit, attempt_id, owner.job_id)
    chunks = [each for each in batch.chunks if each.stream == LAUNCHER or int(each.stream) < num_ranks]
    keys = {**named, "placed_at": owner.placed_at, "now": unit.now}
    keys |= {"tenant_id": owner.tenant_id, "job_id": owner.job_id}
    num_dropped = 0
    if owner.num_bytes + sum(len(each.content) for each in chunks) > limits.log_bytes:
        chunks, num_dropped = _cut(unit, keys, chunks, limits, room=max(0, limits.log_bytes - owner.num_bytes))
    store_these = (_STORE, {**keys, **_columns(chunks), "num_dropped": num_dropped})
    (((num_stored,),),) = query_together(unit.session, store_these)
    return LogAnswer(stored=num_stored)


def _columns(chunks: Sequence[LogChunk]) -> dict[str, Any]:
    return {
        "streams": [each.stream for each in chunks],
        "offsets": [each.offset for each in chunks],
        "contents": [each.content for each in chunks],
    }


def _cut(
    unit: UnitOfWork, keys: dict[str, Any], chunks: Sequence[LogChunk], limits: AttemptLimitPolicy, *, room: int
) -> tuple[list[LogChunk], int]:
    """Return the pieces that still fit, with one line for each stream that is cut, and how many bytes are left out.

    A host without an answer repeats pieces, also ones that were left out. Bytes that were counted before, up to
    the stream's ``log_cut``, do not count again.
    """
    columns = {**keys, **_columns(chunks)}
    found, counted = query_together(unit.session, (_NEW, columns), (_COUNTED, columns))
    unstored = {(row.stream, row.byte_offset) for row in found}
    counted_before = {_stream_in(row.subject): row.amount for row in counted}
    kept: list[LogChunk] = []
    mere_lines: list[LogChunk] = []
    ends: dict[str, int] = {}
    num_dropped = 0
    for chunk in chunks:
        if (chunk.stream, chunk.offset) not in unstored:
            continue
        fitting = chunk.content[:room] if chunk.stream not in ends else b""
        if fitting == chunk.content:
            room -= len(fitting)
            kept.append(chunk)
            continue
        room -= len(fitting)
        cut, end = chunk.offset + len(fitting), chunk.offset + len(chunk.content)
        if chunk.stream not in ends:
            (kept if fitting else mere_lines).append(_last_piece(chunk, fitting, limits))
        counted_to = max(ends.get(chunk.stream, 0), counted_before.get(chunk.stream, 0))
        num_dropped += max(0, end - max(cut, counted_to))
        ends[chunk.stream] = max(end, counted_to)
    lines = _first_cuts(unit, keys, mere_lines, ends, limits, cut_before=counted_before)
    return kept + lines, num_dropped


def _stream_in(subject: str) -> str:
    return subject.rpartition("/")[2]


def _last_piece(chunk: LogChunk, fitting: bytes, limits: AttemptLimitPolicy) -> LogChunk:
    at = chunk.offset + len(fitting)
    why = f"its attempt has printed {limits.log_bytes:,} bytes (limits.attempt.log_bytes)"
    line = f"\n[muster: the output is cut here, at byte {at:,}: {why}]\n"
    return LogChunk(stream=chunk.stream, offset=chunk.offset, content=fitting + line.encode())


def _first_cuts(
    unit: UnitOfWork,
    keys: dict[str, Any],
    lines: list[LogChunk],
    ends: dict[str, int],
    limits: AttemptLimitPolicy,
    *,
    cut_before: Container[str],
) -> list[LogChunk]:
    """Record how far the streams are counted, and return the mere lines of streams that no earlier batch cut."""
    query_together(unit.session, (_CUT, {**keys, "streams": list(ends), "ends": list(ends.values())}))
    new = {stream for stream in ends if stream not in cut_before}
    if new and not _was_cut_before(unit, keys, num_new=len(new)):
        reason = f"the attempt has printed {limits.log_bytes:,} bytes: further output is counted and left out"
        note_dropped(unit, keys["attempt_id"], keys["job_id"], keys["tenant_id"], what=LOG_BYTES, reason=reason)
    return [each for each in lines if each.stream in new]


def _was_cut_before(unit: UnitOfWork, keys: dict[str, Any], *, num_new: int) -> bool:
    count = "SELECT count(*) AS num FROM attempt_usage WHERE attempt_id = %(attempt_id)s AND kind = 'log_cut'"
    (((num,),),) = query_together(unit.session, (count, keys))
    return bool(num > num_new)


def _ranks_of(unit: UnitOfWork, attempt_id: AttemptId, job_id: JobId) -> int:
    """Return the number of ranks of an attempt, which never changes: it is read once in a process."""
    known = _num_ranks.get(attempt_id)
    if known is None:
        job = unit.session.get_one(Job, job_id)
        hosts = select(func.count()).select_from(AttemptHost).where(AttemptHost.attempt_id == attempt_id)
        known = (unit.session.scalar(hosts) or 0) * max(1, job_request(job).shape.num_ranks_per_node)
        if len(_num_ranks) >= _MOST_KNOWN:
            _num_ranks.clear()
        _num_ranks[attempt_id] = known
    return known
