"""Mapping between rows and the plain data that ``health`` judges."""

import functools
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from sqlalchemy import ColumnElement, Integer, Row, Select, and_, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork
from control.evidence.types import DecidedBurnInRecord, EvidenceRecord, StandingChangeRecord
from control.policy.policies import active_policy
from health.detectors.repeats.rules import reach_of
from health.detectors.traits import traits_of
from health.evidence.index import PLACE_IN_GPU
from health.evidence.suppression import LastContact, outlasted
from health.standing.gpu_case import EVERY_GROUP, RULE, BurnInResult, GpuCase, Move, MoveReason
from muster.db.base import UtcTimestamp
from muster.db.models import EvidenceRow, GpuStandingChange, Node, StoredSignal
from muster.db.pipeline.packed_arrays import within_parameter
from muster.domain.evidence.findings import (
    EventKind,
    Evidence,
    Finding,
    GpuSignal,
    Pending,
    Severity,
    Source,
    Suppression,
)
from muster.domain.evidence.old_keys import readings_in, with_old_keys
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.states import BurnInOutcome, Contact, Standing
from muster.domain.times import to_ms, to_time

REMEMBERED: Final = timedelta(days=400)
"""Age from which evidence has no weight under any policy that is accepted."""
REMEMBERED_OF_A_FAULT: Final = 1000
INFO_OF_A_FAULT: Final = 32
"""Number of INFO evidence of a fault that is read, or as many as a rule about repetitions needs, where that is more."""
MOVES_REMEMBERED: Final = 100
BURN_INS_REMEMBERED: Final = 20


def signal_of(row: StoredSignal) -> GpuSignal:
    return GpuSignal(
        signal_id=row.signal_id,
        kind=EventKind(row.kind),
        source=Source(row.source),
        at_ms=to_ms(row.at),
        node_id=row.node_id,
        gpu_uuid=row.gpu_uuid,
        code=row.code,
        text=row.text,
        values=row.values,
    )


def evidence_of(row: EvidenceRow | EvidenceRecord) -> Evidence:
    return Evidence(
        id=row.id,
        detector=row.detector,
        version=row.detector_version,
        fault_key=row.fault_key,
        traits=traits_of(row.detector, row.fault_key),
        gpu_uuid=row.gpu_uuid,
        node_id=row.node_id,
        severity=Severity(row.severity),
        trust=row.trust,
        sources=tuple(Source(source) for source in row.sources),
        onset_ms=to_ms(row.onset_at),
        last_seen_ms=to_ms(row.last_seen_at),
        counts_for_ms=row.counts_for_ms,
        summary=row.summary,
        threatens_correctness=row.threatens_correctness,
        is_dismissed=row.dismissed_at is not None,
        is_suspended=row.is_suspended,
        values=readings_in(row.values),
        suppressed_by=frozenset(Suppression(each) for each in row.suppressed_by),
        pending=None if row.weighs_from_at is None else Pending(to_ms(row.weighs_from_at), row.boot_mark),
        outlasted_at_ms=_ms(row.outlasted_at),
        closed_at_ms=_ms(row.closed_at),
        reopened_at_ms=_ms(row.reopened_at),
    )


def add_evidence(unit: UnitOfWork, evidence: Evidence) -> EvidenceRow:
    """Add new evidence, with its event. The session's next flush writes all that a pass found in one statement."""
    row = EvidenceRow(
        id=evidence.id,
        gpu_uuid=evidence.gpu_uuid,
        node_id=evidence.node_id,
        detector=evidence.detector,
        detector_version=evidence.version,
        fault_key=evidence.fault_key,
        severity=int(evidence.severity),
        trust=evidence.trust,
        sources=[str(source) for source in evidence.sources],
        onset_at=to_time(evidence.onset_ms),
        last_seen_at=to_time(evidence.last_seen_ms),
        counts_for_ms=evidence.counts_for_ms,
        summary=evidence.summary,
        threatens_correctness=evidence.threatens_correctness,
        values={},
        created_at=unit.now,
    )
    _write_life(row, evidence)
    unit.session.add(row)
    subject, subject_id = ("gpu", row.gpu_uuid) if row.gpu_uuid is not None else ("node", row.node_id)
    payload = {
        "evidence_id": row.id,
        "fault_key": row.fault_key,
        "severity": evidence.severity.name.lower(),
        "trust": row.trust,
        "source": row.sources[0],
        "onset_at": row.onset_at.isoformat(),
        "reason": row.summary,
    }
    unit.emit("evidence.found", subject, str(subject_id), payload=payload)
    return row


def change_evidence(row: EvidenceRow, evidence: Evidence) -> None:
    """Store evidence that a merge or a closing has changed.

    Raises:
        IllegalTransitionError: its state is not reached from the row's by a listed edge (I21).
    """
    evidence_of(row).changed_to(evidence)
    row.sources = [str(source) for source in evidence.sources]
    row.onset_at, row.last_seen_at = to_time(evidence.onset_ms), to_time(evidence.last_seen_ms)
    row.counts_for_ms = evidence.counts_for_ms
    _write_life(row, evidence)


def _write_life(row: EvidenceRow, evidence: Evidence) -> None:
    """Write state and readings; the table's trigger derives the columns from the old keys among these."""
    pending = evidence.pending
    row.values, row.state = with_old_keys(evidence), evidence.state
    row.suppressed_by = [str(each) for each in Suppression if each in evidence.suppressed_by]
    row.weighs_from_at = None if pending is None else to_time(pending.weighs_from_ms)
    row.boot_mark = None if pending is None else pending.boot_mark
    row.outlasted_at, row.closed_at = _time(evidence.outlasted_at_ms), _time(evidence.closed_at_ms)
    row.reopened_at = _time(evidence.reopened_at_ms)


def _ms(at: datetime | None) -> int | None:
    return None if at is None else to_ms(at)


def _time(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else to_time(at_ms)


def evidence_about(unit: UnitOfWork, gpus: Iterable[GpuUuid], nodes: Iterable[NodeId]) -> Sequence[EvidenceRow]:
    """Return evidence about these GPUs, and about these nodes as such, by onset: as much as the rules read.

    INFO evidence has no weight, so it serves rules about repetitions alone: none reaches back further than the longest
    window, nor for more times than the greatest count, of one fault in one place. Of evidence with weight, the newest
    ``REMEMBERED_OF_A_FAULT`` are returned: so many bursts of one fault take a score to 0 by themselves.
    """
    reach = reach_of(active_policy(unit.session).health)
    parameters = {
        "gpus": list(gpus),
        "nodes": list(nodes),
        "info_since": unit.now - timedelta(seconds=reach.window_s),
        "since": unit.now - REMEMBERED,
        "most_info": max(INFO_OF_A_FAULT, reach.times + 1),
    }
    return unit.session.scalars(_remembered(), parameters).all()


@functools.cache
def _remembered() -> Select[EvidenceRow]:
    """Return the query, built once: each judgement asks it."""
    is_info = EvidenceRow.severity == int(Severity.INFO)
    info_since, since = bindparam("info_since", type_=UtcTimestamp()), bindparam("since", type_=UtcTimestamp())
    about_nodes = EvidenceRow.gpu_uuid.is_(None) & within_parameter(EvidenceRow.node_id, "nodes")
    is_about = or_(within_parameter(EvidenceRow.gpu_uuid, "gpus"), about_nodes)
    in_gpu = [EvidenceRow.values[name] for name in PLACE_IN_GPU]
    newest = func.row_number().over(
        partition_by=[EvidenceRow.gpu_uuid, EvidenceRow.node_id, EvidenceRow.fault_key, is_info, *in_gpu],
        order_by=(EvidenceRow.last_seen_at.desc(), EvidenceRow.id.desc()),
    )
    told = (
        select(EvidenceRow.id, newest.label("number"))
        .where(is_about, EvidenceRow.last_seen_at > case((is_info, info_since), else_=since))
        .subquery("told")
    )
    most = case((is_info, bindparam("most_info", type_=Integer())), else_=REMEMBERED_OF_A_FAULT)
    query = select(EvidenceRow).join(told, told.c.id == EvidenceRow.id).where(told.c.number <= most)
    return query.order_by(EvidenceRow.onset_at, EvidenceRow.id)


def is_pending() -> ColumnElement[bool]:
    """Return the condition on evidence that has weight only once it has lasted."""
    return EvidenceRow.weighs_from_at.is_not(None)


def weighs() -> ColumnElement[bool]:
    """Return the condition on evidence that is neither suppressed nor pending."""
    return and_(EvidenceRow.weighs_from_at.is_(None), EvidenceRow.suppressed_by == [])


def store_outlasted(unit: UnitOfWork, rows: Iterable[EvidenceRow]) -> None:
    """Store pending evidence that has lasted as no longer pending."""
    pending = [(row, evidence_of(row)) for row in rows]
    heard = _contact_of(unit, {row.node_id for row, _ in pending})
    for row, evidence in pending:
        settled = outlasted(evidence, to_ms(unit.now), heard[row.node_id])
        if settled is not evidence:
            change_evidence(row, settled)


def _contact_of(unit: UnitOfWork, node_ids: Collection[NodeId]) -> dict[NodeId, LastContact]:
    if not node_ids:
        return {}
    query = select(Node.id, Node.last_heartbeat_at, Node.boot_id).where(Node.id.in_(node_ids))
    return {
        node_id: LastContact(None if at is None else to_ms(at), boot_id)
        for node_id, at, boot_id in unit.session.execute(query)
    }


def shown_on_node(unit: UnitOfWork, finding: Finding) -> list[Evidence]:
    """Return the newest evidence of the same fault on another GPU of the finding's node.

    A rule that distinguishes a program's fault from a GPU's needs it, within the rule's window.
    """
    query = select(EvidenceRow).where(
        EvidenceRow.node_id == finding.node_id,
        EvidenceRow.gpu_uuid != finding.gpu_uuid,
        EvidenceRow.fault_key == finding.fault_key,
        EvidenceRow.last_seen_at > unit.now - REMEMBERED,
    )
    newest = query.order_by(EvidenceRow.last_seen_at.desc(), EvidenceRow.id.desc()).limit(1)
    return [evidence_of(row) for row in unit.session.scalars(newest)]


class _JudgedGpu(Protocol):
    """A GPU as a row or as a record."""

    @property
    def uuid(self) -> GpuUuid: ...
    @property
    def standing(self) -> Standing: ...
    @property
    def origin_standing(self) -> Standing | None: ...


def case_from(
    gpu: _JudgedGpu,
    evidence: Iterable[Evidence],
    moves: Sequence[GpuStandingChange | StandingChangeRecord],
    burn_ins: Iterable[Row[Any] | DecidedBurnInRecord],
    contact: Contact,
    abandoned_at: datetime | None,
) -> GpuCase:
    """Return the case of one GPU from what is about it alone; moves, and decided burn-ins, come the newest first.

    ``abandoned_at``: when one of its burn-ins last was abandoned.
    """
    return GpuCase(
        gpu_uuid=gpu.uuid,
        standing=gpu.standing,
        since_ms=to_ms(moves[0].at) if moves else 0,
        evidence=tuple(evidence),
        origin=gpu.origin_standing,
        moves=tuple(_move_of(change) for change in reversed(moves) if change.origin is not None),
        burn_ins=tuple(reversed([_burn_in_of(row) for row in burn_ins])),
        has_contact=contact is Contact.LIVE,
        could_not_burn_in_ms=None if abandoned_at is None else to_ms(abandoned_at),
    )


def _burn_in_of(row: Row[Any] | DecidedBurnInRecord) -> BurnInResult:
    covers = EVERY_GROUP if row.covers is None else frozenset(map(FaultGroup, row.covers))
    return BurnInResult(to_ms(row.began_at), to_ms(row.ended_at), row.outcome is BurnInOutcome.PASSED, covers)


def _move_of(change: GpuStandingChange | StandingChangeRecord) -> Move:
    return Move(
        gpu_uuid=change.gpu_uuid,
        from_standing=change.origin or change.target,
        to_standing=change.target,
        at_ms=to_ms(change.at),
        reason=MoveReason(change.move_reason) if change.move_reason else MoveReason.CONDEMNED,
        actor=RULE if change.actor.startswith("system:") else change.actor,
        evidence_ids=tuple(EvidenceId(each) for each in change.evidence_ids),
        text=change.reason,
    )


def contact_of(session: Session, nodes: Iterable[NodeId]) -> dict[NodeId, Contact]:
    return dict(session.execute(select(Node.id, Node.contact).where(Node.id.in_(list(nodes)))).all())
