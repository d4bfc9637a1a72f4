"""A job's checkpoints as the control plane knows them: their edges, from which to resume, what a fault taints.

A row is WRITING from the word that its files are on their way. It is gone again where the save fails or its attempt
ends first; a commit that is heard of without that word makes the row.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Delete, and_, delete, func, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, Checkpoint
from muster.domain.ids import JobId
from muster.domain.states import CheckpointStatus
from muster.domain.times import to_ms

RESUMABLE: Final = (CheckpointStatus.COMMITTED, CheckpointStatus.VERIFIED, CheckpointStatus.GOOD)
_NEVER_AGAIN: Final = (CheckpointStatus.REJECTED, CheckpointStatus.TAINTED)
_MOST_GONE: Final = 256
"""So that the order of a long job still fits into an environment variable."""


def move_checkpoint(unit: UnitOfWork, row: Checkpoint, status: CheckpointStatus) -> None:
    """One edge of a checkpoint's life, with its event."""
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


def drop_failed(session: Session, attempt: Attempt, generation: str) -> None:
    """Its save was begun and failed, which is told apart. No row is left: the same generation may yet be saved."""
    session.execute(_unfinished(attempt).where(Checkpoint.generation == generation))


def drop_unfinished(unit: UnitOfWork, attempt: Attempt) -> None:
    """Saves that the attempt had begun when it ended. No row is left: a commit may be heard of late."""
    query = _unfinished(attempt).returning(Checkpoint.generation, Checkpoint.step)
    for name, step in unit.session.execute(query):
        payload = {"job_id": attempt.job_id, "generation": name, "step": step}
        unit.emit("checkpoint.unfinished", "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)


def _unfinished(attempt: Attempt) -> Delete:
    return delete(Checkpoint).where(Checkpoint.attempt_id == attempt.id, Checkpoint.status == CheckpointStatus.WRITING)


def resume_of(session: Session, job_id: JobId) -> dict[str, Any]:
    """What a new attempt is told: the newest generation that nothing speaks against, and those never to be used (I15).

    The runtime verifies it before it loads anything, and falls back by itself. An attempt may have died between a
    commit and its word, so what is newer on the disk goes before it, unless it was made since its attempt is tainted or
    a newer one had begun to train.
    Of those that are gone the newest are named, whose removal a death may have left half done.
    """
    rows = session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(Checkpoint.step.desc(), Checkpoint.fence.desc())
    ).all()
    chosen = next((row.generation for row in rows if row.status in RESUMABLE), None)
    gone = [row.generation for row in rows if row.status is CheckpointStatus.EXPIRED][:_MOST_GONE]
    return {
        "generation": chosen,
        "may_be_newer": True,
        "refuse": [row.generation for row in rows if row.status in _NEVER_AGAIN] + gone,
        "tainted_since_unix_ms": _tainted_of(session, job_id),
        "overtaken_since_unix_ms": _overtaken_of(session, job_id, rows),
        "pinned": [row.generation for row in rows if is_wished(row)],
    }


def _tainted_of(session: Session, job_id: JobId) -> dict[str, int]:
    """By fence, since when what that attempt committed may be false."""
    query = select(Attempt.fence, Attempt.tainted_since).where(
        Attempt.job_id == job_id, Attempt.tainted_since.is_not(None)
    )
    return {str(fence): to_ms(since) for fence, since in session.execute(query)}


def _overtaken_of(session: Session, job_id: JobId, rows: Sequence[Checkpoint]) -> dict[str, int]:
    """By fence, since when a newer attempt trained: what that attempt committed from then on, nobody went on from.

    By the clocks of two hosts a newer attempt may have gone on from what was committed later, so what stands as good
    goes before. Of the newest attempts alone, as of what is gone.
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


def is_wished(row: Checkpoint) -> bool:
    """To be kept, by the word of whoever may say so here, and not gone yet."""
    return row.pinned_at is not None and row.status is not CheckpointStatus.EXPIRED


def wished_of(job_id: JobId) -> ColumnElement[bool]:
    """As ``is_wished``, of all of the job's."""
    is_there = Checkpoint.status != CheckpointStatus.EXPIRED
    return and_(Checkpoint.job_id == job_id, Checkpoint.pinned_at.is_not(None), is_there)


def pinned_of(session: Session, job_id: JobId) -> tuple[str, ...]:
    """The generations that the job's program is told to leave, in their order."""
    query = select(Checkpoint.generation).where(wished_of(job_id)).order_by(Checkpoint.step, Checkpoint.fence)
    return tuple(session.scalars(query).all())


def has_progressed(session: Session, attempt: Attempt) -> bool:
    """Whether it left a checkpoint that was read back equal, of a later step than any attempt before it did."""
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
    """Every checkpoint of these jobs that was committed at or after ``since`` may carry wrong results. How many."""
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
