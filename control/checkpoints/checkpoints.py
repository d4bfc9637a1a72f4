"""A job's checkpoints as the control plane knows them: their edges, the one to resume from, and their taint.

A row is WRITING from the report that its save has begun. The row is deleted where the save fails or its attempt ends
first; a commit that is reported without that first report makes the row.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Delete, and_, delete, func, select
from sqlalchemy.orm import Session

from control.checkpoints.types import CheckpointRecord, Doubt
from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, Checkpoint
from muster.domain.ids import JobId
from muster.domain.states import CheckpointStatus
from muster.domain.times import to_ms

RESUMABLE: Final = (CheckpointStatus.COMMITTED, CheckpointStatus.VERIFIED, CheckpointStatus.GOOD)
STALE: Final = "it was committed under an older fence, when a newer attempt had begun"
"""Why a checkpoint is REJECTED that was saved well: no objective counts it as a failed save."""
_NEVER_AGAIN: Final = (CheckpointStatus.REJECTED, CheckpointStatus.TAINTED)
_MOST_GONE: Final = 256
"""Limit by which the order of a long job still fits into an environment variable."""


def move_checkpoint(unit: UnitOfWork, row: Checkpoint, status: CheckpointStatus) -> None:
    """Move a checkpoint along an edge of its states, with its event."""
    origin, row.status = row.status, status
    payload = {
        "job_id": row.job_id,
        "generation": row.generation,
        "step": row.step,
        "from": origin,
        "to": status,
        "reason": row.reason,
    }
    unit.emit(f"checkpoint.{status.lower()}", "checkpoint", row.id, tenant_id=row.tenant_id, payload=payload)


def drop_failed(session: Session, attempt: Attempt, generation: str) -> bool:
    """Delete the row of a save that failed, for which another report is made, and return whether there was one.

    The same generation may yet be saved.
    """
    failed = _unfinished(attempt).where(Checkpoint.generation == generation)
    return session.execute(failed.returning(Checkpoint.id)).first() is not None


def drop_unfinished(unit: UnitOfWork, attempt: Attempt) -> None:
    """Delete the rows of saves that the attempt had begun when it ended: a commit may yet be reported."""
    query = _unfinished(attempt).returning(Checkpoint.generation, Checkpoint.step)
    for name, step in unit.session.execute(query):
        payload = {"job_id": attempt.job_id, "generation": name, "step": step}
        unit.emit("checkpoint.unfinished", "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)


def _unfinished(attempt: Attempt) -> Delete:
    return delete(Checkpoint).where(Checkpoint.attempt_id == attempt.id, Checkpoint.status == CheckpointStatus.WRITING)


def resume_of(session: Session, job_id: JobId, doubt: Doubt | None = None) -> dict[str, Any]:
    """Return a new attempt's resume data: the newest usable generation, and the generations never to be used (I15).

    The runtime verifies it before it loads anything, and falls back by itself. An attempt may have died between a
    commit and its report, so a newer generation on the disk goes first, unless it was made after its attempt was
    tainted or after a newer attempt had begun to train. Of the deleted generations the newest are named: a death may
    have left their removal half done. ``doubt``: generations that this attempt must not use, tainted or not, if
    there are others.
    """
    rows = session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(Checkpoint.step.desc(), Checkpoint.fence.desc())
    ).all()
    usable = [row for row in rows if row.status in RESUMABLE]
    doubted = {row.generation for row in usable if doubt is not None and doubt.holds_for(row.fence, row.step)}
    if len(doubted) == len(usable):
        doubt, doubted = None, set()
    chosen = next((row.generation for row in usable if row.generation not in doubted), None)
    gone = [row.generation for row in rows if row.status is CheckpointStatus.EXPIRED][:_MOST_GONE]
    return {
        "generation": chosen,
        "may_be_newer": True,
        "refuse": [row.generation for row in rows if row.status in _NEVER_AGAIN or row.generation in doubted] + gone,
        "tainted_since_unix_ms": _tainted_of(session, job_id, doubt),
        "overtaken_since_unix_ms": _overtaken_of(session, job_id, rows),
        "pinned": [row.generation for row in rows if is_requested(row)],
    }


def _tainted_of(session: Session, job_id: JobId, doubt: Doubt | None) -> dict[str, int]:
    """Return, by fence, the time from which the commits of that attempt may be false."""
    doubted = {} if doubt is None else {str(doubt.fence): to_ms(doubt.since)}
    query = select(Attempt.fence, Attempt.tainted_since).where(
        Attempt.job_id == job_id, Attempt.tainted_since.is_not(None)
    )
    return {**doubted, **{str(fence): to_ms(since) for fence, since in session.execute(query)}}


def _overtaken_of(session: Session, job_id: JobId, rows: Sequence[Checkpoint]) -> dict[str, int]:
    """Return, by fence, the time from which a newer attempt trained: no attempt continued from later commits.

    By the clocks of two hosts a newer attempt may have continued from a later commit, so a generation that counts as
    usable moves that time. Only the newest attempts are in the result, as only the newest deleted generations are.
    """
    query = select(Attempt.fence, Attempt.training_began_at).where(Attempt.job_id == job_id)
    began: datetime | None = None
    since: dict[str, int] = {}
    for fence, own in session.execute(query.order_by(Attempt.fence.desc()).limit(_MOST_GONE)):
        if began is not None:
            stand = [row.committed_at for row in rows if row.fence == fence and row.status in RESUMABLE]
            since[str(fence)] = max([to_ms(began), *(to_ms(at) + 1 for at in stand if at is not None)])
        began = min((at for at in (own, began) if at is not None), default=None)
    return since


def is_requested(row: Checkpoint | CheckpointRecord) -> bool:
    """Return whether the checkpoint is pinned here and not deleted yet."""
    return row.pinned_at is not None and row.status is not CheckpointStatus.EXPIRED


def requested_pins_of(job_id: JobId) -> ColumnElement[bool]:
    """Return the condition of ``is_requested`` on all checkpoints of the job."""
    is_there = Checkpoint.status != CheckpointStatus.EXPIRED
    return and_(Checkpoint.job_id == job_id, Checkpoint.pinned_at.is_not(None), is_there)


def pinned_of(session: Session, job_id: JobId) -> tuple[str, ...]:
    """Return the generations that the job's program must keep, in their order."""
    query = select(Checkpoint.generation).where(requested_pins_of(job_id)).order_by(Checkpoint.step, Checkpoint.fence)
    return tuple(session.scalars(query).all())


def has_progressed(session: Session, attempt: Attempt) -> bool:
    """Return whether it left a verified checkpoint of a later step than any other attempt of the job."""
    farthest = (
        select(Checkpoint.attempt_id, func.max(Checkpoint.step).label("step"))
        .where(Checkpoint.job_id == attempt.job_id, Checkpoint.verified_at.is_not(None))
        .where(Checkpoint.status.not_in((CheckpointStatus.REJECTED, CheckpointStatus.TAINTED)))
        .group_by(Checkpoint.attempt_id)
    )
    steps = {found.attempt_id: found.step for found in session.execute(farthest)}
    own = steps.pop(attempt.id, None)
    return own is not None and own > max(steps.values(), default=0)


def tainted_words(since: datetime) -> str:
    return f"committed after {since.isoformat(timespec='seconds')}, since when a fault may have falsified results"


def taint(unit: UnitOfWork, job_ids: Sequence[JobId], *, since: datetime) -> int:
    """Taint every checkpoint of these jobs committed at or after ``since``: it may carry wrong results.

    Return how many.
    """
    query = (
        select(Checkpoint)
        .where(Checkpoint.job_id.in_(job_ids), Checkpoint.status.in_(RESUMABLE), Checkpoint.committed_at >= since)
        .order_by(Checkpoint.id)
        .with_for_update(key_share=True)
    )
    rows = unit.session.scalars(query).all()
    for row in rows:
        row.reason = tainted_words(since)
        move_checkpoint(unit, row, CheckpointStatus.TAINTED)
    return len(rows)
