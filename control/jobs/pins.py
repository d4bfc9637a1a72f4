"""Pins: checkpoints that retention must keep, on request of a principal that may submit the job.

The request is stored here. The job's program receives it with its order and with each answer to its reports, marks the
generation in its storage, and reports that. From then on the mark counts, also for programs without a server.
"""

from typing import Final

from sqlalchemy import func, select

from control.attempts.attempts import lock_job
from control.checkpoints.checkpoints import is_requested, requested_pins_of
from control.checkpoints.types import CheckpointRecord
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see
from muster.db.models import Checkpoint
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import CheckpointId, JobId
from muster.domain.principals import Permission
from muster.domain.states import CheckpointStatus

PIN: Final = declare_action("checkpoint.pin")
UNPIN: Final = declare_action("checkpoint.unpin")
MOST_PINS: Final = 64
"""Maximum for one job: each is storage that nothing frees."""


def pin(unit: UnitOfWork, job_id: JobId, checkpoint_id: CheckpointId, *, reason: str | None = None) -> CheckpointRecord:
    """Keep the checkpoint from retention from now on. Twice is the same as once.

    A TAINTED checkpoint may be pinned, to be examined.

    Raises:
        NotFoundError: no such job or checkpoint, or another tenant's.
        ConflictError: it was deleted, is not yet saved, or not as it was saved, or the job has as many pins as it may.
    """
    row = _locked(unit, job_id, checkpoint_id)
    if row.status is CheckpointStatus.EXPIRED:
        message = f"{row.generation} is EXPIRED: its files were deleted"
        raise ConflictError(message, suggestion="Pin one that is COMMITTED, VERIFIED, GOOD or TAINTED.")
    if row.status is CheckpointStatus.WRITING:
        message = f"{row.generation} is still being written, and may fail"
        raise ConflictError(message, suggestion="Pin it when it is COMMITTED.")
    if row.status is CheckpointStatus.REJECTED:
        message = f"{row.generation} is REJECTED: {row.reason or 'it is not as it was saved'}"
        raise ConflictError(message, suggestion="Pin one that is COMMITTED, VERIFIED, GOOD or TAINTED.")
    if row.pinned_at is not None:
        return record_of(row, CheckpointRecord)
    if _num_pinned(unit, job_id) >= MOST_PINS:
        message = f"{MOST_PINS} checkpoints of this job are pinned, and no more may be"
        raise ConflictError(message, suggestion="Unpin one with `muster job unpin` first.")
    row.pinned_at, row.pinned_by = unit.now, unit.principal.name
    _report(unit, row, "pin", reason)
    return record_of(row, CheckpointRecord)


def unpin(unit: UnitOfWork, job_id: JobId, checkpoint_id: CheckpointId) -> CheckpointRecord:
    """Allow retention again. A pin in its storage, by `muster ckpt pin`, stays there.

    Raises:
        NotFoundError: no such job or checkpoint, or another tenant's.
    """
    row = _locked(unit, job_id, checkpoint_id)
    if row.pinned_at is not None:
        row.pinned_at = row.pinned_by = None
        _report(unit, row, "unpin", None)
    return record_of(row, CheckpointRecord)


def _locked(unit: UnitOfWork, job_id: JobId, checkpoint_id: CheckpointId) -> Checkpoint:
    """Lock the checkpoint under its job's lock, as reports of its program are processed."""
    unit.principal.require(Permission.JOB_SUBMIT)
    job = lock_job(unit, job_id)
    if not may_see(unit.principal, job.tenant_id):
        raise NotFoundError
    row = unit.session.get(Checkpoint, checkpoint_id, populate_existing=True)
    if row is None or row.job_id != job_id:
        raise NotFoundError
    return row


def _num_pinned(unit: UnitOfWork, job_id: JobId) -> int:
    return unit.session.scalars(select(func.count()).where(requested_pins_of(job_id))).one()


def _report(unit: UnitOfWork, row: Checkpoint, what: str, reason: str | None) -> None:
    detail = {"job_id": row.job_id, "generation": row.generation, "step": row.step, "status": row.status}
    unit.audit(f"checkpoint.{what}", "checkpoint", row.id, tenant_id=row.tenant_id, reason=reason, detail=detail)
    told = {**detail, "reason": reason}
    unit.emit(f"checkpoint.{what}ned", "checkpoint", row.id, tenant_id=row.tenant_id, payload=told)
    unit.session.flush()


def pin_text(row: CheckpointRecord) -> str:
    """Return the state of its pin as text; empty where there is none."""
    if not is_requested(row):
        is_applied = row.pin_applied_at is not None and row.status != CheckpointStatus.EXPIRED
        return "pinned in its storage" if is_applied else ""
    return f"pinned by {row.pinned_by}" + ("" if row.pin_applied_at is not None else "; its program has yet to mark it")
