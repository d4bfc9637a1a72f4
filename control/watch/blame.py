"""A verdict that names a GPU or a host becomes reported evidence about it; its dismissal withdraws the evidence.

    verdict stands ── signal ``verdict/<id>/…`` ── the judge ── evidence, by its rule's mode and weight
    verdict dismissed ── the signal has no effect any more, or its evidence is dismissed

The place is ours: the GPU that the attempt holds for the named rank. A verdict about another GPU blames none.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import Select, func, select, update

from control.attempts.attempts import LoadedAttempt
from control.core.unit_of_work import UnitOfWork
from control.evidence.dismissals import dismiss_row
from control.evidence.inbox import sample_row
from control.fleet.gpu_locks import lock_gpus
from control.policy.policies import active_policy
from health.detectors.gpu.xid import mark_of
from health.detectors.repeats import verdict_repeats
from health.detectors.verdict_faults import ABOUTS, JOB_MARK, VERDICT_MARK, NamedPlace, findings_of
from muster.db.models import Allocation, AllocationGpu, EvidenceRow, StoredSignal, VerdictRow
from muster.db.queries.telemetry import add_signals
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.job.verdicts import VerdictState
from muster.domain.times import to_ms

WHY_WITHDRAWN: Final = "its verdict no longer stands"


def blame(unit: UnitOfWork, loaded: LoadedAttempt, verdict: VerdictRow) -> bool:
    """Report a standing verdict on a locked attempt to the judge of GPUs. Return whether it blames a GPU or a host.

    A verdict blames nothing if its program is to blame, or if it names neither a GPU nor a host of the attempt.
    Twice is the same as once. A verdict that names another cause or place by now takes back what it reported.
    """
    if verdict.state is not VerdictState.STANDING:
        return False
    place = _place_of(unit, loaded, verdict)
    if place is None:
        return False
    node_id, gpu_uuid = place
    named = NamedPlace(
        verdict_id=verdict.id,
        kind=verdict.kind,
        cause=verdict.cause,
        job_id=verdict.job_id,
        tenant_id=verdict.tenant_id,
        node_id=node_id,
        gpu_uuid=gpu_uuid,
        at_ms=to_ms(verdict.created_at),
    )
    found = findings_of(named, active_policy(unit.session).health)
    if not found:
        return False
    signal_id = f"{_signals_of(verdict)}{verdict.cause}/{gpu_uuid or node_id}"
    is_of_it = StoredSignal.signal_id.startswith(_signals_of(verdict), autoescape=True)
    query = select(StoredSignal.signal_id).where(StoredSignal.node_id.in_(_nodes_of(loaded)), is_of_it)
    before = unit.session.scalars(query).all()
    if before and signal_id not in before:
        _take_back(unit, loaded, verdict, "its verdict names another cause or place")
    add_signals(unit.session.connection(), [sample_row(each, node_id, signal_id, unit.now) for each in found])
    return True


def withdraw(unit: UnitOfWork, loaded: LoadedAttempt, verdict: VerdictRow, *, reason: str) -> None:
    """Take back what a verdict of a locked attempt has reported, since it no longer stands.

    A finding about several jobs is withdrawn too if fewer jobs than its rule asks for still blame the GPU.
    """
    _take_back(unit, loaded, verdict, f"{WHY_WITHDRAWN}: {reason}"[:500])


def _take_back(unit: UnitOfWork, loaded: LoadedAttempt, verdict: VerdictRow, answer: str) -> None:
    nodes = _nodes_of(loaded)
    waiting = update(StoredSignal).where(
        StoredSignal.node_id.in_(nodes),
        StoredSignal.signal_id.startswith(_signals_of(verdict), autoescape=True),
        StoredSignal.judged_at.is_(None),
    )
    unit.session.execute(waiting.values(judged_at=unit.now))  # waits for a judge that holds the signal
    found = unit.session.scalars(_evidence_of(verdict, nodes)).all()
    gpus = lock_gpus(unit, sorted({row.gpu_uuid for row in found if row.gpu_uuid is not None}))
    locked = _evidence_of(verdict, nodes).with_for_update().execution_options(populate_existing=True)
    for row in unit.session.scalars(locked).all():
        dismiss_row(unit, row, reason=answer)
        unit.session.flush()
        if row.gpu_uuid is not None:
            _withdraw_repeats(unit, row.gpu_uuid, row.detector, answer)
    for gpu in gpus:
        gpu.judge_at = unit.now


def _place_of(unit: UnitOfWork, loaded: LoadedAttempt, verdict: VerdictRow) -> tuple[NodeId, GpuUuid | None] | None:
    """Return host and GPU of the verdict, as the attempt holds or held them; None if it names neither."""
    if verdict.gpu:
        query = (
            select(AllocationGpu.node_id, AllocationGpu.gpu_uuid)
            .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
            .where(Allocation.attempt_id == loaded.attempt.id, AllocationGpu.gpu_uuid == verdict.gpu)
        )
        held = unit.session.execute(query.limit(1)).first()
        if held is not None:
            return held.node_id, held.gpu_uuid
    if verdict.node_id is None or loaded.host(verdict.node_id) is None:
        return None
    return verdict.node_id, None


def _signals_of(verdict: VerdictRow) -> str:
    """Return the beginning of the names of the verdict's signals."""
    return f"verdict/{verdict.id}/"


def _nodes_of(loaded: LoadedAttempt) -> list[NodeId]:
    return [host.node_id for host in loaded.hosts]


def _evidence_of(verdict: VerdictRow, nodes: Sequence[NodeId]) -> Select[EvidenceRow]:
    """Return the query for the evidence that the verdict gave rise to and that stands."""
    query = select(EvidenceRow).where(
        EvidenceRow.node_id.in_(nodes),
        EvidenceRow.last_seen_at >= verdict.created_at - timedelta(seconds=1),
        EvidenceRow.detector.in_(ABOUTS),
        EvidenceRow.values[VERDICT_MARK].as_float() == mark_of(verdict.id),
        EvidenceRow.dismissed_at.is_(None),
    )
    return query.order_by(EvidenceRow.id)


def _withdraw_repeats(unit: UnitOfWork, gpu_uuid: GpuUuid, detector: str, answer: str) -> None:
    rule = active_policy(unit.session).health.detectors.job_fault_repeats
    still = select(func.count(EvidenceRow.values[JOB_MARK].astext.distinct())).where(
        EvidenceRow.gpu_uuid == gpu_uuid,
        EvidenceRow.detector == detector,
        EvidenceRow.last_seen_at > unit.now - timedelta(seconds=rule.window_s),
        EvidenceRow.dismissed_at.is_(None),
    )
    if (unit.session.scalar(still) or 0) >= rule.times:
        return
    query = select(EvidenceRow).where(
        EvidenceRow.gpu_uuid == gpu_uuid,
        EvidenceRow.fault_key == verdict_repeats.key_of(detector),
        EvidenceRow.dismissed_at.is_(None),
    )
    for row in unit.session.scalars(query.order_by(EvidenceRow.id).with_for_update()):
        dismiss_row(unit, row, reason=answer)
