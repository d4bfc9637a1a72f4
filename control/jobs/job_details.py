"""One job in full, as its page shows it: each attempt with its begin, its end, and the cost of both.

Read from the rows and events that the decisions left. Lists that grow without bound (attempts, hosts, checkpoints) are
read up to a limit that the answer names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, select, tuple_
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import aliased

from control.attempts import suspects
from control.attempts.types import AttemptRecord, JobRecord, StopRequestRecord
from control.core.events import EventRecord, events_about
from control.core.paging import Part
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork
from control.evidence.types import EvidenceRecord
from control.jobs.read import row_of
from control.reclaim.read import ReclaimFilter, ReclaimView, list_reclaims
from muster.db.models import (
    Allocation,
    AllocationGpu,
    Attempt,
    AttemptHost,
    AttemptUsage,
    Checkpoint,
    Event,
    EvidenceRow,
    GpuStandingChange,
    Job,
    Node,
    StopRequest,
    Tenant,
    TrainingStep,
)
from muster.domain.ids import AttemptId, EvidenceId, GpuUuid, JobId
from muster.domain.job.dropped import COUNTED_KINDS
from muster.domain.principals import Permission
from muster.domain.states import CheckpointStatus, Standing

ATTEMPTS_SHOWN: Final = 20
HOSTS_NAMED: Final = 4
KEPT_COUNTED: Final = 150_000
"""Only of the newest attempts with so many GPUs, and of one at least, the GPUs that were taken over are counted."""
RECLAIMS_SHOWN: Final = 50
EVENTS_SHOWN: Final = 60
_SHOWN: Final = ("attempt.placed", "attempt.resumed", "attempt.evacuating", "attempt.training_ended")
_UNDER_SUSPICION_OR_OUT: Final = (Standing.SUSPECT, Standing.QUARANTINED, Standing.REPAIR, Standing.RETIRED)


@dataclass(frozen=True, slots=True)
class Evacuation:
    """Evacuation of an attempt from its GPUs; ``grounds``: the evidence that each GPU's move was decided on."""

    at: datetime
    gpus: Sequence[GpuUuid]
    threatens_correctness: bool
    grounds: Sequence[EvidenceRecord]


@dataclass(frozen=True, slots=True)
class AttemptDetail:
    """One attempt. ``node_names``: of its first hosts. ``num_kept``: GPUs that it took over from the attempt before;
    None: they are not counted.

    ``dropped``: by kind, what was left out beyond a limit (``muster.domain.job.dropped``).
    """

    attempt: AttemptRecord
    node_names: Sequence[str]
    racks: Sequence[str]
    num_gpus: int
    num_kept: int | None
    stops: Sequence[StopRequestRecord]
    placed: EventRecord | None
    resumed: EventRecord | None
    ended_training: EventRecord | None
    evacuation: Evacuation | None
    reclaim: ReclaimView | None
    steps: tuple[int, int] | None
    num_checkpoints: int
    num_tainted: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job. ``attempts``: the newest, in order of their numbers; ``num_attempts``: all.

    ``hold``: reclaims with this job as beneficiary.
    """

    job: JobRecord
    tenant_name: str
    attempts: Sequence[AttemptDetail]
    num_attempts: int
    hold: Sequence[ReclaimView]
    is_suspected: bool


def detail_of(unit: UnitOfWork, job_id: JobId, *, limit: int = ATTEMPTS_SHOWN) -> JobDetail:
    """Return the job's details. Raises ``NotFoundError`` for a missing job and for another tenant's alike."""
    job = row_of(unit, job_id)
    query = select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(limit)
    rows = list(reversed(unit.session.scalars(query).all()))
    reclaims = list_reclaims(unit, ReclaimFilter(job_id=job.id), Part(RECLAIMS_SHOWN))
    return JobDetail(
        job=record_of(job, JobRecord),
        tenant_name=unit.session.get_one(Tenant, job.tenant_id).name,
        attempts=_Attempts(unit, job, rows, reclaims).details(),
        num_attempts=rows[-1].number if rows else 0,
        hold=[view for view in reclaims if view.reclaim.beneficiary_job_id == job.id],
        is_suspected=suspects.open_suspicion_of(unit, job.id) is not None,
    )


class _Attempts:
    """Data of several attempts, each kind of row by one statement."""

    def __init__(self, unit: UnitOfWork, job: Job, rows: Sequence[Attempt], reclaims: Sequence[ReclaimView]) -> None:
        self._session = unit.session
        self._job = job
        self._rows = rows
        self._ids = [row.id for row in rows]
        self._reclaims = {view.reclaim.victim_attempt_id: view for view in reversed(reclaims)}

    def details(self) -> list[AttemptDetail]:
        hosts, num_gpus, stops = self._hosts(), self._num_gpus(), self._stops()
        kept = self._num_kept(num_gpus)
        events, steps, checkpoints = self._events(), self._steps(), self._checkpoints()
        dropped = self._dropped()
        found = []
        for row in self._rows:
            told = events.get(row.id, {})
            evacuating = told.get("attempt.evacuating")
            found.append(
                AttemptDetail(
                    attempt=record_of(row, AttemptRecord),
                    node_names=[name for name, _ in hosts.get(row.id, ())],
                    racks=sorted({rack for _, rack in hosts.get(row.id, ()) if rack is not None}),
                    num_gpus=num_gpus.get(row.id, 0),
                    num_kept=kept.get(row.id),
                    stops=stops.get(row.id, ()),
                    placed=told.get("attempt.placed"),
                    resumed=told.get("attempt.resumed"),
                    ended_training=told.get("attempt.training_ended"),
                    evacuation=None if evacuating is None else self._evacuation(evacuating),
                    reclaim=self._reclaims.get(row.id),
                    steps=steps.get(row.id),
                    num_checkpoints=checkpoints.get(row.id, (0, 0))[0],
                    num_tainted=checkpoints.get(row.id, (0, 0))[1],
                    dropped=dropped.get(row.id, {}),
                )
            )
        return found

    def _hosts(self) -> dict[AttemptId, list[tuple[str, str | None]]]:
        query = (
            select(AttemptHost.attempt_id, Node.name, Node.rack)
            .join(Node, Node.id == AttemptHost.node_id)
            .where(AttemptHost.attempt_id.in_(self._ids), AttemptHost.node_rank < HOSTS_NAMED)
            .order_by(AttemptHost.node_rank)
        )
        found: dict[AttemptId, list[tuple[str, str | None]]] = {}
        for attempt_id, name, rack in self._session.execute(query):
            found.setdefault(attempt_id, []).append((name, rack))
        return found

    def _num_gpus(self) -> dict[AttemptId, int]:
        """Return the GPUs of each attempt; in rows of an older release they are counted."""
        counted = select(func.count()).where(AllocationGpu.allocation_id == Allocation.id).scalar_subquery()
        query = select(Allocation.attempt_id, func.coalesce(Allocation.num_gpus, counted))
        return {row[0]: row[1] for row in self._session.execute(query.where(Allocation.attempt_id.in_(self._ids)))}

    def _num_kept(self, num_gpus: Mapping[AttemptId, int]) -> dict[AttemptId, int]:
        """Return how many GPUs each attempt took over: of the newest attempts with ``KEPT_COUNTED`` GPUs among them."""
        room = KEPT_COUNTED
        counted: list[AttemptId] = []
        for row in reversed(self._rows):
            room -= num_gpus.get(row.id, 0)
            if room < 0 and counted:
                break
            counted.append(row.id)
        before, earlier, gpus_before = aliased(Attempt), aliased(Allocation), aliased(AllocationGpu)
        query = (
            select(Attempt.id, func.count())
            .join(Allocation, Allocation.attempt_id == Attempt.id)
            .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
            .join(before, (before.job_id == Attempt.job_id) & (before.number == Attempt.number - 1))
            .join(earlier, earlier.attempt_id == before.id)
            .join(
                gpus_before,
                (gpus_before.allocation_id == earlier.id) & (gpus_before.gpu_uuid == AllocationGpu.gpu_uuid),
            )
            .where(Attempt.id.in_(counted))
            .group_by(Attempt.id)
        )
        return {**dict.fromkeys(counted, 0), **{row[0]: row[1] for row in self._session.execute(query)}}

    def _stops(self) -> dict[AttemptId, list[StopRequestRecord]]:
        query = select(StopRequest).where(StopRequest.attempt_id.in_(self._ids)).order_by(StopRequest.created_at)
        found: dict[AttemptId, list[StopRequestRecord]] = {}
        for row in self._session.scalars(query):
            found.setdefault(row.attempt_id, []).append(record_of(row, StopRequestRecord))
        return found

    def _events(self) -> dict[str, dict[str, EventRecord]]:
        """Return, for each attempt, the newest event of each kind that its page shows."""
        query = (
            select(Event)
            .where(Event.subject_type == "attempt", Event.subject_id.in_(self._ids), Event.kind.in_(_SHOWN))
            .ext(distinct_on(Event.subject_id, Event.kind))
            .order_by(Event.subject_id, Event.kind, Event.serial.desc())
        )
        found: dict[str, dict[str, EventRecord]] = {}
        for event in self._session.scalars(query):
            found.setdefault(event.subject_id, {})[event.kind] = record_of(event, EventRecord)
        return found

    def _steps(self) -> dict[AttemptId, tuple[int, int]]:
        """Return the first and last step of each, from the ends of its index."""
        own = TrainingStep.attempt_id == Attempt.id
        first = select(func.min(TrainingStep.step)).where(own).correlate(Attempt).scalar_subquery()
        last = select(func.max(TrainingStep.step)).where(own).correlate(Attempt).scalar_subquery()
        query = select(Attempt.id, first, last).where(Attempt.id.in_(self._ids))
        return {AttemptId(row[0]): (row[1], row[2]) for row in self._session.execute(query) if row[1] is not None}

    def _checkpoints(self) -> dict[AttemptId, tuple[int, int]]:
        """Return the generations of each, and how many were committed since its results may be false, in any state."""
        is_tainted = Checkpoint.committed_at >= Attempt.tainted_since
        query = (
            select(Checkpoint.attempt_id, func.count(), func.count().filter(is_tainted))
            .join(Attempt, Attempt.id == Checkpoint.attempt_id)
            .where(Checkpoint.attempt_id.in_(self._ids), Checkpoint.status != CheckpointStatus.WRITING)
            .group_by(Checkpoint.attempt_id)
        )
        return {AttemptId(attempt_id): (num, tainted) for attempt_id, num, tainted in self._session.execute(query)}

    def _dropped(self) -> dict[AttemptId, dict[str, int]]:
        usage = AttemptUsage
        is_sum = usage.kind.in_(COUNTED_KINDS) & (usage.subject == "")
        query = select(usage.attempt_id, usage.kind, usage.num_dropped)
        found: dict[AttemptId, dict[str, int]] = {}
        rows = query.where(usage.attempt_id.in_(self._ids), is_sum, usage.num_dropped > 0)
        for attempt_id, kind, num_dropped in self._session.execute(rows):
            found.setdefault(attempt_id, {})[kind] = num_dropped
        return found

    def _evacuation(self, event: EventRecord) -> Evacuation:
        gpus = [GpuUuid(uuid) for uuid in event.payload.get("gpus", ())]
        return Evacuation(
            at=event.at,
            gpus=gpus,
            threatens_correctness=bool(event.payload.get("threatens_correctness")),
            grounds=self._grounds(gpus, event.at),
        )

    def _grounds(self, gpus: Sequence[GpuUuid], at: datetime) -> Sequence[EvidenceRecord]:
        """Return the evidence of each GPU's standing then.

        Empty for one that a person took out, or the breaker kept in.
        """
        newest = (
            select(GpuStandingChange.target, GpuStandingChange.evidence_ids)
            .where(GpuStandingChange.gpu_uuid.in_(gpus), GpuStandingChange.at <= at)
            .ext(distinct_on(GpuStandingChange.gpu_uuid))
            .order_by(GpuStandingChange.gpu_uuid, GpuStandingChange.id.desc())
        )
        rows = self._session.execute(newest).all()
        cited = [EvidenceId(each) for target, ids in rows if target in _UNDER_SUSPICION_OR_OUT for each in ids]
        query = select(EvidenceRow).where(EvidenceRow.id.in_(cited))
        found = self._session.scalars(query.order_by(EvidenceRow.severity.desc(), EvidenceRow.id))
        return records_of(found, EvidenceRecord)


def events_behind(unit: UnitOfWork, job_id: JobId, position: int, *, limit: int) -> Sequence[EventRecord]:
    """Return what happened to a visible job itself behind ``position``, in the order of positions."""
    return events_about(unit, row_of(unit, job_id).id, position, limit=limit)


def events_of(unit: UnitOfWork, job_id: JobId, *, limit: int = EVENTS_SHOWN) -> Sequence[EventRecord]:
    """Return the events of a visible job and of its newest attempts, the newest first."""
    unit.principal.require(Permission.EVENT_READ)
    job = row_of(unit, job_id)
    query = select(Attempt.id).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(ATTEMPTS_SHOWN)
    subjects: list[tuple[str, Any]] = [("job", job.id)]
    subjects += [("attempt", attempt_id) for attempt_id in unit.session.scalars(query)]
    found = select(Event).where(tuple_(Event.subject_type, Event.subject_id).in_(subjects))
    return records_of(unit.session.scalars(found.order_by(Event.serial.desc()).limit(limit)), EventRecord)
