"""Holds for a beneficiary, from the notice on until it is placed or waits no more. Under its job's lock."""

from collections.abc import Collection
from typing import Final

from sqlalchemy import ColumnElement, delete, exists, func, insert, literal, select

from control.attempts.attempts import lock_job
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from muster.db.base import UtcTimestamp
from muster.db.models import GpuHold, GpuHoldSpan, Job, Reclaim
from muster.domain.ids import GpuUuid, JobId
from muster.domain.principals import Permission
from scheduler.model import Lapse

LAPSE: Final = declare_action("reclaim.lapse")
PLACED: Final = "the job that it was for has been placed"


def hold(unit: UnitOfWork, job: Job, gpus: Collection[GpuUuid]) -> None:
    for uuid in sorted(gpus):
        unit.session.add(GpuHold(gpu_uuid=uuid, job_id=job.id, created_at=unit.now))


def hold_alone(unit: UnitOfWork, job: Job, gpus: Collection[GpuUuid]) -> None:
    """Hold these GPUs and no others: a hold since an interruption stays only where its GPU is among them."""
    own = set(unit.session.scalars(select(GpuHold.gpu_uuid).where(GpuHold.job_id == job.id)))
    if rest := own.difference(gpus):
        _end(unit, GpuHold.job_id == job.id, GpuHold.gpu_uuid.in_(rest))
    hold(unit, job, set(gpus) - own)


def hold_gpus_of_others(unit: UnitOfWork, gpus: Collection[GpuUuid], *, but_for: JobId | None = None) -> list[GpuUuid]:
    """Return the GPUs that are held for a job other than ``but_for``. The caller holds the GPUs' locks."""
    query = select(GpuHold.gpu_uuid).where(GpuHold.gpu_uuid.in_(gpus)).order_by(GpuHold.gpu_uuid)
    return list(unit.session.scalars(query if but_for is None else query.where(GpuHold.job_id != but_for)))


def lapse(unit: UnitOfWork, lapsed: Lapse) -> None:
    """End all holds for a job that keeps waiting, or waits no more."""
    unit.principal.require(Permission.SYSTEM_RUN)
    release_and_report(unit, lock_job(unit, lapsed.beneficiary), lapsed.why)


def release_and_report(unit: UnitOfWork, job: Job, why: str) -> None:
    """Release as ``let_go`` does, with an event: a reclaim's end only where GPUs were reclaimed for the job."""
    reclaimed = exists().where(Reclaim.beneficiary_job_id == job.id, Reclaim.hold_ended_at.is_(None))
    kind = "job.reclaim_lapsed" if unit.session.scalar(select(reclaimed)) else "job.hold_lapsed"
    if let_go(unit, job, why):
        payload = {"job_id": job.id, "reason": why}
        unit.emit(kind, "job", job.id, tenant_id=job.tenant_id, payload=payload)


def let_go(unit: UnitOfWork, job: Job, why: str) -> bool:
    """End the locked job's holds, also a hold without a reclaim for a change of size. Return whether it had any.

    Victims that have no notice yet may then be spared.
    """
    query = select(Reclaim).where(Reclaim.beneficiary_job_id == job.id, Reclaim.hold_ended_at.is_(None))
    reclaims = unit.session.scalars(query.order_by(Reclaim.id).execution_options(populate_existing=True)).all()
    for reclaim in reclaims:
        reclaim.hold_ended_at, reclaim.hold_ended_why = unit.now, why
    unit.session.flush()
    held = select(GpuHold.gpu_uuid).where(GpuHold.job_id == job.id)
    if not reclaims and unit.session.scalar(held.limit(1)) is None:
        return False
    _end(unit, GpuHold.job_id == job.id)
    unit.wake(SCHEDULER_CHANNEL)
    return True


def _end(unit: UnitOfWork, *which: ColumnElement[bool]) -> None:
    """End these holds. When each stood is kept for the ledger, by the same statement."""
    ended = delete(GpuHold).where(*which).returning(GpuHold.gpu_uuid, GpuHold.job_id, GpuHold.created_at).cte("ended")
    now = literal(unit.now, UtcTimestamp())
    began_at = func.least(ended.c.created_at, now)  # another process's clock may be ahead
    spans = select(ended.c.gpu_uuid, ended.c.job_id, began_at, now)
    unit.session.execute(insert(GpuHoldSpan).from_select(("gpu_uuid", "job_id", "began_at", "ended_at"), spans))
