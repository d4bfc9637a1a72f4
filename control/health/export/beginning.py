"""The state at the begin of an export: the fleet, each GPU of the node, and the evidence that existed."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import or_, select

from control.core.unit_of_work import UnitOfWork
from control.evidence.rows import REMEMBERED, evidence_of
from control.health.capacity import fleet_counts
from control.health.export.acts import burn_in_of, overrides_at
from control.health.export.readings import Written, event_of
from health.standing.gpu_case import GpuCase, return_to_of
from muster.db.models import BurnIn, EvidenceRow, Gpu, GpuStandingChange, Node, StoredSignal
from muster.domain.evidence.findings import EventKind, Severity
from muster.domain.states import BurnInOutcome, Standing
from muster.domain.times import to_ms
from muster.wire import health_records as wire

_STATES_LAST: Final = timedelta(hours=3)
"""Time for which a GPU's reported state counts; hosts report it each hour."""
_SETTLES: Final = frozenset({Standing.UNPROVEN, Standing.PROBATION, Standing.HEALTHY})


def beginning_of(unit: UnitOfWork, node: Node, since: datetime) -> Iterator[Written]:
    gpus = unit.session.scalars(select(Gpu).where(Gpu.node_id == node.id).order_by(Gpu.slot_index)).all()
    counts = fleet_counts(unit.session, [])
    yield wire.Fleet(
        node_id=node.id,
        at_ms=to_ms(since),
        num_gpus=max(1, counts.num_gpus),
        racks=dict(counts.by_rack),
        cohorts=dict(counts.by_cohort),
    )
    for gpu in gpus:
        yield _gpu_of(unit, gpu, node, since)
    yield from overrides_at(unit, node.id, since)
    yield from _burn_ins_of(unit, gpus, since)
    yield from _evidence_at(unit, gpus, node, since)
    yield from _states_before(unit, node, since)


def _gpu_of(unit: UnitOfWork, gpu: Gpu, node: Node, since: datetime) -> wire.Gpu:
    """Return the GPU's record. A GPU that did not exist yet is UNPROVEN from its first move on."""
    query = select(GpuStandingChange).where(GpuStandingChange.gpu_uuid == gpu.uuid).order_by(GpuStandingChange.id)
    changes = unit.session.scalars(query).all()
    before = [change for change in changes if change.at <= since] or list(changes[:1])
    standing = before[-1].target if before else gpu.standing
    since_ms = to_ms(before[-1].at) if before else to_ms(since)
    return wire.Gpu(
        node_id=node.id,
        gpu_uuid=gpu.uuid,
        standing=standing,
        at_ms=max(to_ms(since), since_ms),
        since_ms=since_ms,
        origin=_origin_after(gpu, before),
        model=gpu.model,
        rack=node.rack,
        cohort=gpu.cohort_key,
    )


def _origin_after(gpu: Gpu, changes: Sequence[GpuStandingChange]) -> Standing | None:
    """Return the standing to which SUSPECT or QUARANTINED returns after these moves, by the rule of each move."""
    case = GpuCase(gpu.uuid, Standing.UNPROVEN, 0)
    for change in changes:
        falls = change.target in {Standing.SUSPECT, Standing.QUARANTINED, Standing.REPAIR}
        origin = return_to_of(case) if falls and change.target is not Standing.REPAIR else case.origin
        case = GpuCase(gpu.uuid, change.target, 0, origin=None if change.target in _SETTLES else origin)
    return case.origin


def _burn_ins_of(unit: UnitOfWork, gpus: Sequence[Gpu], since: datetime) -> Iterator[Written]:
    query = select(BurnIn).where(
        BurnIn.gpu_uuid.in_([gpu.uuid for gpu in gpus]),
        BurnIn.judged_at < since,
        BurnIn.outcome.in_([BurnInOutcome.PASSED, BurnInOutcome.FAILED]),
    )
    for row in unit.session.scalars(query.order_by(BurnIn.judged_at)):
        yield burn_in_of(unit, row, with_reasons=False)  # its evidence has records of its own


def _evidence_at(unit: UnitOfWork, gpus: Sequence[Gpu], node: Node, since: datetime) -> Iterator[wire.KnownEvidence]:
    about_node = EvidenceRow.gpu_uuid.is_(None) & (EvidenceRow.node_id == node.id)
    query = select(EvidenceRow).where(
        or_(EvidenceRow.gpu_uuid.in_([gpu.uuid for gpu in gpus]), about_node),
        EvidenceRow.created_at < since,
        EvidenceRow.last_seen_at > since - REMEMBERED,
    )
    for row in unit.session.scalars(query.order_by(EvidenceRow.onset_at, EvidenceRow.id)):
        known = evidence_of(row)
        is_closed_later = known.closed_at_ms is not None and known.closed_at_ms >= to_ms(since)
        yield wire.KnownEvidence(
            node_id=row.node_id,
            id=row.id,
            at_ms=to_ms(since),
            detector=row.detector,
            version=row.detector_version,
            fault=row.fault_key,
            severity=Severity(row.severity).name,
            summary=row.summary,
            gpu_uuid=row.gpu_uuid,
            sources=tuple(row.sources),  # type: ignore[arg-type]  # texts of a column, each one of Source
            trust=row.trust,
            onset_ms=to_ms(row.onset_at),
            last_seen_ms=min(to_ms(row.last_seen_at), to_ms(since)),
            counts_for_ms=row.counts_for_ms,
            threatens_correctness=row.threatens_correctness,
            is_dismissed=row.dismissed_at is not None and row.dismissed_at < since,
            is_suspended=row.is_suspended,
            values=dict(known.values),
            suppressed_by=tuple(sorted(known.suppressed_by)),
            weighs_from_ms=None if known.pending is None else known.pending.weighs_from_ms,
            boot_mark=None if known.pending is None else known.pending.boot_mark,
            outlasted_at_ms=known.outlasted_at_ms,
            closed_at_ms=None if is_closed_later else known.closed_at_ms,
            reopened_at_ms=known.reopened_at_ms,
        )


def _states_before(unit: UnitOfWork, node: Node, since: datetime) -> Iterator[Written]:
    """Yield the GPUs' last reported states: heat is judged by their own maxima."""
    newest: dict[str, StoredSignal] = {}
    query = select(StoredSignal).where(
        StoredSignal.node_id == node.id,
        StoredSignal.kind == EventKind.GPU_STATE,
        StoredSignal.received_at < since,
        StoredSignal.received_at >= since - _STATES_LAST,
    )
    for row in unit.session.scalars(query.order_by(StoredSignal.received_at)):
        newest[str(row.gpu_uuid)] = row
    for row in newest.values():
        yield from event_of(row).records
