"""Repairs as rows: begun by a person or rule, ended by any move that takes the GPU out of REPAIR."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from control.evidence.inbox import sample_row
from control.fleet import cordons
from control.fleet.types import RepairRecord
from control.health.capacity import NODE_REPAIR
from health.detectors.repeats.repair_repeats import repairs_of
from health.standing.gpu_case import GpuCase, Move, MoveReason, PastRepair
from muster.db.models import Cordon, Gpu, Repair
from muster.db.queries.telemetry import add_signals
from muster.domain.evidence.repairs import HOST_SCOPE, RepairAction, RepairOutcome, RepairVerb
from muster.domain.policy.health import HealthPolicy
from muster.domain.times import to_ms
from muster.identity import new_id

REPAIRS_REMEMBERED: Final = 100
MAY_STILL_RUN: Final = timedelta(minutes=15)
"""Time by which a host's cordon outlives a repair that ended before its agent reported the verb's end."""
_OUTCOMES: Final[Mapping[MoveReason, RepairOutcome]] = {
    MoveReason.REPAIR_DONE: RepairOutcome.DONE,
    MoveReason.REPAIR_FAILED: RepairOutcome.FAILED,
    MoveReason.REPAIR_TIMED_OUT: RepairOutcome.TIMED_OUT,
    MoveReason.CONDEMNED: RepairOutcome.CONDEMNED,
}


def begin_repair(
    unit: UnitOfWork, gpu: Gpu, action: RepairAction, fault_group: str, reason: str, verb: RepairVerb | None = None
) -> Repair:
    """Begin a repair. With a ``verb``, its host's agent does it.

    A verb that affects the whole host keeps the node out of new placements meanwhile.
    """
    cordon = None
    if verb in HOST_SCOPE:
        cordon = cordons.stand(unit, NODE_REPAIR, f"{verb} of {gpu.uuid}: {reason}", node_id=gpu.node_id)
        unit.session.flush()
    repair = Repair(
        id=new_id("repair"),
        gpu_uuid=gpu.uuid,
        serial=gpu.serial,
        fault_group=fault_group,
        action=action,
        reason=reason,
        started_by=unit.principal.name,
        began_at=unit.now,
        verb=verb,
        cordon_id=None if cordon is None else cordon.id,
    )
    unit.session.add(repair)
    return repair


def report_repairs(unit: UnitOfWork, gpu: Gpu, policy: HealthPolicy) -> None:
    """Report repeated repairs on one node as a finding about the node, into the judge's inbox."""
    unit.session.flush()
    since = unit.now - timedelta(seconds=policy.detectors.repair_repeats.window_s)
    began = select(Repair.began_at).join(Gpu, Gpu.uuid == Repair.gpu_uuid)
    began = began.where(Gpu.node_id == gpu.node_id, Repair.began_at > since)
    times_ms = [to_ms(at) for at in unit.session.scalars(began)]
    for finding in repairs_of(gpu.node_id, times_ms, policy, to_ms(unit.now)):
        name = f"repairs/{gpu.node_id}/{finding.onset_ms}"
        row = sample_row(finding, gpu.node_id, name, unit.now)
        add_signals(unit.session.connection(), [row])


def end_repair(unit: UnitOfWork, gpu: Gpu, move: Move) -> None:
    """End the repair with the move that took ``gpu`` out of REPAIR."""
    query = select(Repair).where(Repair.gpu_uuid == gpu.uuid, Repair.ended_at.is_(None)).with_for_update()
    for repair in unit.session.scalars(query):
        repair.ended_at, repair.text = unit.now, move.text
        repair.outcome = _OUTCOMES.get(move.reason, RepairOutcome.RETIRED)
        _release_node(unit, repair)


def _release_node(unit: UnitOfWork, repair: Repair) -> None:
    if repair.cordon_id is None:
        return
    cordon = unit.session.get_one(Cordon, repair.cordon_id, with_for_update={"key_share": True})
    if cordon.released_at is not None:
        return
    if repair.taken_at is not None and unit.principal.node_id is None:
        cordon.until = unit.now + MAY_STILL_RUN  # its agent has not reported the verb's end
        return
    cordons.end(unit, cordon, f"the {repair.verb} has ended")


def with_repairs(case: GpuCase, repairs: Sequence[Repair | RepairRecord]) -> GpuCase:
    """Return ``case`` with its board's repairs, which come the newest first."""
    if not repairs:
        return case
    here = (row.action for row in repairs if row.ended_at is None and row.gpu_uuid == case.gpu_uuid)
    return replace(case, repairs=_past_of(repairs), under_way=next(here, None))


def _past_of(repairs: Sequence[Repair | RepairRecord]) -> tuple[PastRepair, ...]:
    """Return the ended ones among ``repairs`` (the newest first), the oldest first."""
    return tuple(
        PastRepair(
            row.fault_group,
            to_ms(row.began_at),
            to_ms(row.ended_at),
            row.outcome is RepairOutcome.DONE,
            row.action,
        )
        for row in reversed(repairs)
        if row.ended_at is not None
    )
