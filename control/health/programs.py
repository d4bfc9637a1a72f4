"""The programs that held GPUs: tenant and image of the attempt, marked on the XIDs that a program may cause.

Rules about such XIDs count by different tenants and images (``health.detectors.repeats.after_diagnosis``). The marks
are stored with the event, so that an exported record is judged alike.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row, func, or_, select

from control.core.unit_of_work import UnitOfWork
from health.detectors.gpu.xid import IMAGE_MARK, PROGRAM_XIDS, TENANT_MARK, mark_of
from muster.db.models import Allocation, AllocationGpu, Attempt, BurnIn, Gpu, Job, Repair, StoredSignal
from muster.domain.evidence.findings import EventKind
from muster.domain.evidence.repairs import RepairAction, RepairOutcome
from muster.domain.ids import GpuUuid
from muster.domain.states import BurnInOutcome
from muster.domain.times import to_ms

_AFTER_ITS_END: Final = timedelta(seconds=30)
"""How long after an attempt's end an XID is still its program's: the log is read a moment later than the exit."""


def mark_programs(unit: UnitOfWork, signals: Sequence[StoredSignal]) -> None:
    """Mark the signals that a program may have caused with the tenant and image that held the GPU at that time."""
    about = [
        row
        for row in signals
        if row.kind == EventKind.XID and row.code in PROGRAM_XIDS and row.gpu_uuid and TENANT_MARK not in row.values
    ]
    if not about:
        return
    attempts = _attempts_on(unit, about)
    for row in about:
        holder = _holder_of(row, attempts)
        if holder is not None:
            of_image = {IMAGE_MARK: mark_of(holder.image)} if holder.image else {}
            marks = {TENANT_MARK: mark_of(holder.tenant_id)} | of_image
            row.values = {**row.values, **marks}


def newest_diagnosis_ms(unit: UnitOfWork, gpu_uuid: GpuUuid | None) -> int | None:
    """Return when the newest burn-in or field diagnosis of the GPU began that passed; None: none has."""
    burn_ins = select(BurnIn.began_at).where(BurnIn.gpu_uuid == gpu_uuid, BurnIn.outcome == BurnInOutcome.PASSED)
    serial = select(Gpu.serial).where(Gpu.uuid == gpu_uuid).scalar_subquery()
    repairs = select(Repair.began_at).where(
        or_(Repair.gpu_uuid == gpu_uuid, Repair.serial == serial),
        Repair.action == RepairAction.FIELD_DIAGNOSIS,
        Repair.outcome == RepairOutcome.DONE,
    )
    newest = [
        unit.session.scalar(burn_ins.order_by(BurnIn.began_at.desc().nulls_last()).limit(1)),
        unit.session.scalar(repairs.order_by(Repair.began_at.desc()).limit(1)),
    ]
    return max((to_ms(at) for at in newest if at is not None), default=None)


def _attempts_on(unit: UnitOfWork, signals: Sequence[StoredSignal]) -> list[Row[*tuple[Any, ...]]]:
    """Return the attempts that held the signals' GPUs about their times, the newest first."""
    first, last = min(row.at for row in signals), max(row.at for row in signals)
    request = Job.request  # in a row of release 0.1.0 the whole specification, with the image in its program
    image = func.coalesce(request["image"].astext, request["program"]["container"]["image"].astext).label("image")
    query = (
        select(AllocationGpu.gpu_uuid, Attempt.placed_at, Attempt.ended_at, Attempt.tenant_id, image)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            AllocationGpu.gpu_uuid.in_({row.gpu_uuid for row in signals}),
            Attempt.placed_at <= last,
            or_(Attempt.ended_at.is_(None), Attempt.ended_at >= first - _AFTER_ITS_END),
        )
        .order_by(Attempt.placed_at.desc())
    )
    return list(unit.session.execute(query))


def _holder_of(signal: StoredSignal, attempts: Iterable[Row[*tuple[Any, ...]]]) -> Row[*tuple[Any, ...]] | None:
    """Return the newest attempt that held the signal's GPU at its time; None: none did."""
    for row in attempts:
        has_ended = row.ended_at is not None and row.ended_at + _AFTER_ITS_END < signal.at
        if row.gpu_uuid == signal.gpu_uuid and row.placed_at <= signal.at and not has_ended:
            return row
    return None
