"""Fault timeline: what went wrong with a GPU, which jobs it hit, and which actions followed.

It is read from the rows of the decisions, never from texts stored separately.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import only_tenant_of
from control.evidence.types import EvidenceRecord, StandingChangeRecord
from control.fleet.types import GpuRecord
from muster.db.models import (
    Allocation,
    AllocationGpu,
    Attempt,
    Checkpoint,
    Event,
    EvidenceRow,
    Gpu,
    GpuOverride,
    GpuStandingChange,
    Job,
    Node,
)
from muster.db.queries.assignments import IS_OR_WAS_ASSIGNED
from muster.db.queries.effective_standing import effective_standing
from muster.domain.gpu.effective_standing import effective_standing as effective_standing_of
from muster.domain.ids import AttemptId, GpuUuid, JobId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import Cause, CheckpointStatus, JobState, Standing

READ: Final = declare_action("fault_timeline.read")
FELL_TO: Final = (Standing.SUSPECT, Standing.QUARANTINED)
TAINTED: Final = f"checkpoint.{CheckpointStatus.TAINTED.lower()}"
BACK_AT: Final = (Standing.PROBATION, Standing.HEALTHY)
MAX_READ: Final = 400
"""Number of the newest moves that are read."""


@dataclass(frozen=True, slots=True)
class HitJob:
    """An attempt that ran on the GPU as it fell. ``next_number``: the attempt that continued its work."""

    job_id: JobId
    job_name: str
    job_state: JobState
    tenant_id: TenantId
    attempt_id: AttemptId
    number: int
    cause: Cause | None
    num_tainted: int
    next_number: int | None
    resumed_step: int | None
    resumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class FaultTimeline:
    """One fault, from a fall of the GPU to its next fall or to now.

    ``is_over``: the GPU serves again since ``back_at``. ``evidence``: the grounds of the move. ``standing``: the GPU's
    effective one at the end of that time, so that a later fault does not reopen this one.
    """

    gpu: GpuRecord
    standing: Standing
    node_name: str
    move: StandingChangeRecord
    evidence: Sequence[EvidenceRecord]
    hit: Sequence[HitJob]
    later: Sequence[StandingChangeRecord]
    next_fall: StandingChangeRecord | None

    @property
    def back_at(self) -> datetime | None:
        return next((move.at for move in self.later if move.target in BACK_AT), None)

    @property
    def is_over(self) -> bool:
        return self.back_at is not None and self.standing not in FELL_TO


def fault_timelines(unit: UnitOfWork, *, limit: int, gpu_uuid: GpuUuid | None = None) -> Sequence[FaultTimeline]:
    """Return the fault timelines, the newest first, at most one for each fall. A tenant reads its own jobs' alone."""
    unit.principal.require(Permission.JOB_READ)
    session = unit.session
    query = (
        select(GpuStandingChange, Gpu, effective_standing(unit.now), Node.name)
        .join(Gpu, Gpu.uuid == GpuStandingChange.gpu_uuid)
        .join(Node, Node.id == Gpu.node_id)
        .where(GpuStandingChange.target.in_(FELL_TO))
        .order_by(GpuStandingChange.id.desc())
        .limit(MAX_READ)
    )
    if gpu_uuid is not None:
        query = query.where(GpuStandingChange.gpu_uuid == gpu_uuid)
    own = only_tenant_of(unit.principal)
    found: list[FaultTimeline] = []
    for move, gpu, standing, node_name in session.execute(query).all():
        hit = _hit(session, move, own)
        if own is None or hit:
            later, next_fall = _later(session, move)
            found.append(
                FaultTimeline(
                    gpu=record_of(gpu, GpuRecord),
                    standing=standing if next_fall is None else _standing_before(session, next_fall, (move, *later)),
                    node_name=node_name,
                    move=record_of(move, StandingChangeRecord),
                    evidence=records_of(_evidence(session, move), EvidenceRecord),
                    hit=hit,
                    later=records_of(later, StandingChangeRecord),
                    next_fall=None if next_fall is None else record_of(next_fall, StandingChangeRecord),
                )
            )
        if len(found) == limit:
            break
    return found


def _later(session: Session, move: GpuStandingChange) -> tuple[Sequence[GpuStandingChange], GpuStandingChange | None]:
    """Return the moves up to the GPU's next fall, the oldest first, and that fall."""
    query = select(GpuStandingChange).where(GpuStandingChange.gpu_uuid == move.gpu_uuid, GpuStandingChange.id > move.id)
    query = query.order_by(GpuStandingChange.id)
    next_fall = session.scalar(query.where(GpuStandingChange.target.in_(FELL_TO)).limit(1))
    if next_fall is not None:
        query = query.where(GpuStandingChange.id < next_fall.id)
    return session.scalars(query).all(), next_fall


def _standing_before(session: Session, next_fall: GpuStandingChange, moves: Sequence[GpuStandingChange]) -> Standing:
    """Return the effective standing just before a fall; an override may have ended with it."""
    at = next_fall.at
    query = select(GpuOverride.standing).where(
        GpuOverride.gpu_uuid == next_fall.gpu_uuid,
        GpuOverride.created_at < at,
        GpuOverride.until > at,
        or_(GpuOverride.ended_at.is_(None), GpuOverride.ended_at >= at),
    )
    override = session.scalar(query.order_by(GpuOverride.created_at.desc()).limit(1))
    return effective_standing_of(moves[-1].target, override)


def _evidence(session: Session, move: GpuStandingChange) -> Sequence[EvidenceRow]:
    query = select(EvidenceRow).where(EvidenceRow.id.in_(move.evidence_ids))
    return session.scalars(query.order_by(EvidenceRow.severity.desc(), EvidenceRow.id)).all()


def _hit(session: Session, move: GpuStandingChange, own: TenantId | None) -> Sequence[HitJob]:
    """Return attempts that held the GPU at its fall, and ended by it or continued."""
    query = (
        select(Attempt, Job)
        .join(Job, Job.id == Attempt.job_id)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(
            AllocationGpu.gpu_uuid == move.gpu_uuid,
            IS_OR_WAS_ASSIGNED,
            Attempt.placed_at <= move.at,
            or_(Attempt.ended_at.is_(None), Attempt.ended_at >= move.at),
        )
        .order_by(Attempt.placed_at)
    )
    if own is not None:
        query = query.where(Attempt.tenant_id == own)
    rows = session.execute(query).all()
    tainted = _num_tainted(session, [attempt.id for attempt, _ in rows])
    return [_hit_job(session, attempt, job, tainted[attempt.id]) for attempt, job in rows]


def _hit_job(session: Session, attempt: Attempt, job: Job, num_tainted: int) -> HitJob:
    query = select(Attempt).where(Attempt.job_id == job.id, Attempt.number > attempt.number)
    following = session.scalar(query.order_by(Attempt.number).limit(1))
    resumed = None
    if following is not None:
        resumed = session.scalar(
            select(Event)
            .where(Event.subject_type == "attempt", Event.subject_id == following.id, Event.kind == "attempt.resumed")
            .order_by(Event.serial)
            .limit(1)
        )
    return HitJob(
        job_id=job.id,
        job_name=job.name,
        job_state=job.state,
        tenant_id=job.tenant_id,
        attempt_id=attempt.id,
        number=attempt.number,
        cause=attempt.cause or attempt.ending_cause,
        num_tainted=num_tainted,
        next_number=None if following is None else following.number,
        resumed_step=None if resumed is None else resumed.payload.get("step"),
        resumed_at=None if resumed is None else resumed.at,
    )


def _num_tainted(session: Session, attempt_ids: Sequence[AttemptId]) -> dict[AttemptId, int]:
    """Return the number of tainted generations by their events: retention may have deleted the generations since."""
    query = (
        select(Checkpoint.attempt_id, func.count(func.distinct(Checkpoint.id)))
        .join(Event, (Event.subject_type == "checkpoint") & (Event.subject_id == Checkpoint.id))
        .where(Checkpoint.attempt_id.in_(attempt_ids), Event.kind == TAINTED)
        .group_by(Checkpoint.attempt_id)
    )
    return defaultdict(int, {AttemptId(attempt_id): num for attempt_id, num in session.execute(query)})
