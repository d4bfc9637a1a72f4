"""Repairs as rows: begun by a person or rule, ended by whatever takes the GPU out of REPAIR."""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import or_, select

from health.gpu_case import Move, MoveReason, PastRepair
from muster.db.models import Gpu, Repair
from muster.db.records import RepairRecord
from muster.domain.repairs import RepairAction, RepairOutcome
from muster.identity import new_id
from muster.services.lives import to_ms
from muster.services.unit_of_work import UnitOfWork

REPAIRS_REMEMBERED: Final = 100
_OUTCOMES: Final[Mapping[MoveReason, RepairOutcome]] = {
    MoveReason.REPAIR_DONE: RepairOutcome.DONE,
    MoveReason.REPAIR_FAILED: RepairOutcome.FAILED,
    MoveReason.REPAIR_TIMED_OUT: RepairOutcome.TIMED_OUT,
    MoveReason.CONDEMNED: RepairOutcome.CONDEMNED,
}


def begin_repair(unit: UnitOfWork, gpu: Gpu, action: RepairAction, fault_group: str, reason: str) -> Repair:
    repair = Repair(
        id=new_id("repair"),
        gpu_uuid=gpu.uuid,
        serial=gpu.serial,
        fault_group=fault_group,
        action=action,
        reason=reason,
        started_by=unit.principal.name,
        began_at=unit.now,
    )
    unit.session.add(repair)
    return repair


def end_repair(unit: UnitOfWork, gpu: Gpu, move: Move) -> None:
    """With the move that took ``gpu`` out of REPAIR."""
    query = select(Repair).where(Repair.gpu_uuid == gpu.uuid, Repair.ended_at.is_(None)).with_for_update()
    for repair in unit.session.scalars(query):
        repair.ended_at, repair.words = unit.now, move.words
        repair.outcome = _OUTCOMES.get(move.reason, RepairOutcome.RETIRED)


def repairs_about(unit: UnitOfWork, gpu: Gpu, *, limit: int = REPAIRS_REMEMBERED) -> Sequence[Repair]:
    """Of this board, by its serial where it has one: the newest first."""
    is_same = Repair.gpu_uuid == gpu.uuid
    if gpu.serial is not None:
        is_same = or_(is_same, Repair.serial == gpu.serial)
    return unit.session.scalars(
        select(Repair).where(is_same).order_by(Repair.began_at.desc(), Repair.id).limit(limit)
    ).all()


def past_repairs(unit: UnitOfWork, gpu: Gpu) -> tuple[PastRepair, ...]:
    """Those that have ended, the oldest first."""
    return past_of(repairs_about(unit, gpu))


def past_of(repairs: Sequence[Repair | RepairRecord]) -> tuple[PastRepair, ...]:
    """Those of ``repairs``, the newest first, that have ended: the oldest first."""
    return tuple(
        PastRepair(row.fault_group, to_ms(row.began_at), to_ms(row.ended_at), row.outcome is RepairOutcome.DONE)
        for row in reversed(repairs)
        if row.ended_at is not None
    )
