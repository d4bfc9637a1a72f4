"""Records of actions that changed evidence or standing: of persons, of burn-ins, and of rules that compare hosts."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Select, func, or_, select

from control.core.unit_of_work import UnitOfWork
from control.evidence.rows import evidence_of
from control.fleet.maintenance import REASON_CODE
from control.health.export.readings import Contacts
from control.health.rule_cordons import MAINTENANCE_CODES
from health import burn_in
from health.detectors.registry import DETECTORS
from health.standing.gpu_case import MoveReason
from muster.db.models import (
    BurnIn,
    Cordon,
    Event,
    EvidenceRow,
    Gpu,
    GpuOverride,
    GpuStandingChange,
    Node,
    Repair,
)
from muster.domain.evidence.findings import Severity, Source
from muster.domain.evidence.repairs import RepairOutcome
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import BurnInOutcome
from muster.domain.times import to_ms
from muster.wire import health_records as wire

_RANK: Final = 2
_PERSONS: Final = (MoveReason.RETIRED, MoveReason.REINSTATED, MoveReason.TAKEN_OUT)
_NO_END: Final = datetime(2100, 1, 1, tzinfo=UTC)


def acts_between(unit: UnitOfWork, node: Node, begin: datetime, end: datetime) -> Iterator[Contacts]:
    """Yield each action at the time of its transaction."""
    for told in (_dismissals, _repairs, _moves, _overrides, _burn_ins, _windows, _breaker, _found_elsewhere):
        for at, record in told(unit, node.id, begin, end):
            yield Contacts(to_ms(at), _RANK, (record,))


Acts = Iterator[tuple[datetime, wire.Record]]


def _dismissals(unit: UnitOfWork, node_id: NodeId, begin: datetime, end: datetime) -> Acts:
    at = EvidenceRow.dismissed_at
    query = select(EvidenceRow).where(EvidenceRow.gpu_uuid.in_(_gpus_of(node_id)), at >= begin, at < end)
    for row in unit.session.scalars(query.order_by(at, EvidenceRow.id)):
        if row.dismissed_at is not None and row.gpu_uuid is not None:
            yield (
                row.dismissed_at,
                wire.Dismissal(
                    node_id=node_id,
                    gpu_uuid=row.gpu_uuid,
                    at_ms=to_ms(row.dismissed_at),
                    by=row.dismissed_by or "a person",
                    reason=row.dismiss_reason or "no reason was recorded",
                    fault=row.fault_key,
                    onset_ms=to_ms(row.onset_at),
                    last_seen_ms=to_ms(row.last_seen_at),
                ),
            )


def _repairs(unit: UnitOfWork, node_id: NodeId, begin: datetime, end: datetime) -> Acts:
    is_begun = (Repair.began_at >= begin) & (Repair.began_at < end)
    is_ended = (Repair.ended_at >= begin) & (Repair.ended_at < end)
    query = select(Repair).where(Repair.gpu_uuid.in_(_gpus_of(node_id)), or_(is_begun, is_ended))
    for row in unit.session.scalars(query.order_by(Repair.began_at, Repair.id)):
        about = {"node_id": node_id, "gpu_uuid": row.gpu_uuid, "by": row.started_by, "fault_group": row.fault_group}
        if begin <= row.began_at < end:
            at_ms = to_ms(row.began_at)
            yield row.began_at, wire.RepairBegan(**about, at_ms=at_ms, reason=row.reason, action=row.action)
        if row.ended_at is not None and begin <= row.ended_at < end:
            ended = wire.RepairEnded(
                **about,
                at_ms=to_ms(row.ended_at),
                reason=row.text or "the repair ended",
                began_ms=to_ms(row.began_at),
                outcome=row.outcome or RepairOutcome.FAILED,
            )
            yield row.ended_at, ended


def _moves(unit: UnitOfWork, node_id: NodeId, begin: datetime, end: datetime) -> Acts:
    change = GpuStandingChange
    query = select(change).where(
        change.gpu_uuid.in_(_gpus_of(node_id)), change.at >= begin, change.at < end, change.move_reason.in_(_PERSONS)
    )
    for row in unit.session.scalars(query.order_by(change.id)):
        about = {"node_id": node_id, "gpu_uuid": row.gpu_uuid, "by": row.actor, "reason": row.reason}
        yield row.at, wire.Moving(**about, at_ms=to_ms(row.at), to=row.target)


def _overrides(unit: UnitOfWork, node_id: NodeId, begin: datetime, end: datetime) -> Acts:
    at = GpuOverride.created_at
    query = select(GpuOverride).where(GpuOverride.gpu_uuid.in_(_gpus_of(node_id)), at >= begin, at < end)
    for row in unit.session.scalars(query.order_by(at, GpuOverride.id)):
        yield row.created_at, _override_of(row, node_id, row.created_at)


def overrides_at(unit: UnitOfWork, node_id: NodeId, since: datetime) -> Iterator[wire.Override]:
    """Yield the overrides that were in force as the export begins."""
    over_at = func.least(GpuOverride.until, func.coalesce(GpuOverride.ended_at, GpuOverride.until))
    query = select(GpuOverride).where(
        GpuOverride.gpu_uuid.in_(_gpus_of(node_id)), GpuOverride.created_at < since, over_at > since
    )
    for row in unit.session.scalars(query.order_by(GpuOverride.created_at, GpuOverride.id)):
        yield _override_of(row, node_id, since)


def _override_of(row: GpuOverride, node_id: NodeId, at: datetime) -> wire.Override:
    return wire.Override(
        node_id=node_id,
        gpu_uuid=row.gpu_uuid,
        by=row.actor,
        reason=row.reason,
        at_ms=to_ms(at),
        standing=row.standing,
        until_ms=to_ms(min(row.until, row.ended_at or row.until)),
    )


def _burn_ins(unit: UnitOfWork, node_id: NodeId, begin: datetime, end: datetime) -> Acts:
    query = select(BurnIn).where(
        BurnIn.gpu_uuid.in_(_gpus_of(node_id)),
        BurnIn.judged_at >= begin,
        BurnIn.judged_at < end,
        BurnIn.outcome.in_([BurnInOutcome.PASSED, BurnInOutcome.FAILED]),
    )
    for row in unit.session.scalars(query.order_by(BurnIn.judged_at, BurnIn.id)):
        if row.judged_at is not None:
            yield row.judged_at, burn_in_of(unit, row)


def burn_in_of(unit: UnitOfWork, row: BurnIn, *, with_reasons: bool = True) -> wire.BurnIn:
    """Return the burn-in's record. ``with_reasons``: with its failures, from which a replay makes evidence again."""
    ended = row.ended_at or row.ordered_at
    is_wrong = select(EvidenceRow.id).where(
        EvidenceRow.gpu_uuid == row.gpu_uuid,
        EvidenceRow.fault_key == f"{burn_in.NAME}:wrong_result",
        EvidenceRow.onset_at == ended,
    )
    named = (row.figures or {}).get("covers")
    return wire.BurnIn(
        node_id=row.node_id,
        gpu_uuid=row.gpu_uuid,
        began_ms=to_ms(row.began_at or row.ordered_at),
        ended_ms=to_ms(ended),
        has_passed=row.outcome is BurnInOutcome.PASSED,
        reasons=tuple(row.reasons) if with_reasons else (),
        is_wrong=with_reasons and unit.session.scalar(is_wrong) is not None,
        covers=None if named is None else tuple(map(FaultGroup, named)),
    )


def _windows(unit: UnitOfWork, node_id: NodeId, begin: datetime, end: datetime) -> Acts:
    """Yield maintenance windows at their begin. A window that was released before its end ends at its release."""
    query = select(Cordon).where(Cordon.node_id == node_id, Cordon.reason_code.in_(MAINTENANCE_CODES))
    for row in unit.session.scalars(query.order_by(Cordon.created_at, Cordon.id)):
        at = row.starts_at or row.created_at
        until = min(each for each in (row.until, row.released_at, _NO_END) if each is not None)
        if begin <= at < end and until > at:
            window = wire.Maintenance(
                node_id=node_id, at_ms=to_ms(at), until_ms=to_ms(until), is_drain=row.reason_code != REASON_CODE
            )
            yield at, window


def _breaker(unit: UnitOfWork, node_id: NodeId, begin: datetime, end: datetime) -> Acts:
    query = select(Event.at, Event.payload).where(Event.kind == "breaker.closed", Event.at >= begin, Event.at < end)
    for at, payload in unit.session.execute(query.order_by(Event.serial)):
        yield at, wire.BreakerClosed(node_id=node_id, at_ms=to_ms(at), scope=str(payload["scope"]))


def _found_elsewhere(unit: UnitOfWork, node_id: NodeId, begin: datetime, end: datetime) -> Acts:
    """Yield findings that records of this node alone cannot reproduce, such as a comparison with peers."""
    at = EvidenceRow.created_at
    query = select(EvidenceRow).where(
        EvidenceRow.node_id == node_id,
        at >= begin,
        at < end,
        EvidenceRow.detector.not_in([*DETECTORS, burn_in.NAME]),
    )
    for row in unit.session.scalars(query.order_by(at, EvidenceRow.id)):
        known = evidence_of(row)
        finding = wire.Finding(
            node_id=node_id,
            at_ms=to_ms(row.onset_at),
            detector=row.detector,
            version=row.detector_version,
            fault=row.fault_key,
            severity=Severity(row.severity).name,
            summary=row.summary,
            gpu_uuid=row.gpu_uuid,
            source=Source(row.sources[0]),
            trust=row.trust,
            counts_for_ms=row.counts_for_ms,
            threatens_correctness=row.threatens_correctness,
            values=dict(known.values),
            suppressed_by=tuple(sorted(known.suppressed_by)),
            weighs_from_ms=None if known.pending is None else known.pending.weighs_from_ms,
            boot_mark=None if known.pending is None else known.pending.boot_mark,
        )
        yield row.created_at, finding


def _gpus_of(node_id: NodeId) -> Select[GpuUuid]:
    return select(Gpu.uuid).where(Gpu.node_id == node_id)
