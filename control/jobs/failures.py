"""What went wrong lately, as the person on call reads it: failed jobs, ends by cause, lost hosts, saves."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Select, func, select, true

from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from muster.db.models import Attempt, Checkpoint, Event, Job, Tenant, VerdictRow
from muster.db.models.jobs import IS_OPEN
from muster.domain.errors import ValidationFailedError
from muster.domain.exit.causes import CAUSE_RULES, Budget
from muster.domain.ids import JobId
from muster.domain.job.verdicts import VerdictState
from muster.domain.principals import Permission
from muster.domain.states import AttemptState, Cause, CheckpointStatus, JobState

READ: Final = declare_action("failures.read")
MAX_SPAN: Final = timedelta(days=31)
_EXPECTED: Final = frozenset({Cause.SUCCEEDED, Cause.CANCELLED})
_DURABLE: Final = (CheckpointStatus.VERIFIED, CheckpointStatus.GOOD)
_STUCK: Final = (JobState.HELD, JobState.RECOVERING)


@dataclass(frozen=True, slots=True)
class CauseCount:
    """Attempts that ended by a cause. ``is_of_fleet``: infrastructure is charged with it, and not the job."""

    cause: Cause
    is_of_fleet: bool
    num_attempts: int
    num_jobs: int


@dataclass(frozen=True, slots=True)
class FailingJob:
    """A job that failed, or waits for a person or its next try. ``at``: since when."""

    job_id: JobId
    name: str
    tenant_name: str
    state: JobState
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SaveAge:
    """A running job and its newest checkpoint that was verified. ``saved_at``: None: it has none."""

    job_id: JobId
    name: str
    placed_at: datetime
    saved_at: datetime | None
    step: int | None


@dataclass(frozen=True, slots=True)
class RejectedSave:
    job_id: JobId
    name: str
    step: int
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NewVerdict:
    job_id: JobId
    name: str
    kind: str
    sentence: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Failures:
    """All of it. ``node_losses``: None for a tenant, whose are no hosts. ``restarts``: attempts after a job's first."""

    num_succeeded: int
    num_failed: int
    restarts: int
    node_losses: int | None
    nodes_lost: int | None
    verified_saves: int
    rejected_saves: int
    causes: Sequence[CauseCount]
    failed: Sequence[FailingJob]
    stuck: Sequence[FailingJob]
    oldest_saves: Sequence[SaveAge]
    rejected: Sequence[RejectedSave]
    verdicts: Sequence[NewVerdict]


def failures_since(unit: UnitOfWork, since: datetime, *, limit: int) -> Failures:
    """Return what went wrong since a moment, with at most ``limit`` rows of each list, the newest first.

    Raises:
        ValidationFailedError: ``since`` is ahead, or too long ago.
    """
    unit.principal.require(Permission.JOB_READ)
    if not timedelta() < unit.now - since <= MAX_SPAN:
        raise ValidationFailedError.at("since", "bad_span", f"it must lie within the last {MAX_SPAN.days} days")
    ended = _jobs_ended(unit, since)
    losses = _losses(unit, since) if unit.principal.sees_all_tenants else (None, None)
    saves = _saves(unit, since)
    return Failures(
        num_succeeded=ended.get(JobState.SUCCEEDED, 0),
        num_failed=ended.get(JobState.FAILED, 0),
        restarts=_restarts(unit, since),
        node_losses=losses[0],
        nodes_lost=losses[1],
        verified_saves=sum(saves.get(status, 0) for status in _DURABLE),
        rejected_saves=saves.get(CheckpointStatus.REJECTED, 0),
        causes=_causes(unit, since),
        failed=_failed(unit, since, limit),
        stuck=_stuck(unit, limit),
        oldest_saves=_oldest_saves(unit, limit),
        rejected=_rejected(unit, since, limit),
        verdicts=_verdicts(unit, since, limit),
    )


def _jobs_ended(unit: UnitOfWork, since: datetime) -> dict[JobState, int]:
    """Return how many jobs ended in each state."""
    query = select(Job.state, func.count()).where(*_has_ended(unit, since)).group_by(Job.state)
    return dict(unit.session.execute(query).all())


def _has_ended(unit: UnitOfWork, since: datetime) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of jobs that ended since then, with or without an attempt."""
    return Job.finished_at >= since, visible_rows(unit.principal, Job.tenant_id)


def _restarts(unit: UnitOfWork, since: datetime) -> int:
    own = visible_rows(unit.principal, Attempt.tenant_id)
    query = select(func.count()).where(Attempt.placed_at >= since, Attempt.number > 1, own)
    recent = (Attempt.ended_at >= since) | Attempt.ended_at.is_(None)
    return unit.session.scalar(query.where(recent)) or 0


def _losses(unit: UnitOfWork, since: datetime) -> tuple[int, int]:
    """Return how often hosts were lost, and how many hosts that were."""
    query = select(func.count(), func.count(Event.subject_id.distinct()))
    found = unit.session.execute(query.where(Event.at >= since, Event.position.is_not(None), Event.kind == "node.lost"))
    losses, nodes = found.one()
    return losses, nodes


def _saves(unit: UnitOfWork, since: datetime) -> dict[CheckpointStatus, int]:
    query = select(Checkpoint.status, func.count()).where(*_was_begun(unit, since))
    return dict(unit.session.execute(query.group_by(Checkpoint.status)).all())


def _was_begun(unit: UnitOfWork, since: datetime) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of checkpoints that were begun since then: an index of their attempts leads to them."""
    recent = select(Attempt.id).where((Attempt.ended_at >= since) | Attempt.ended_at.is_(None))
    own = visible_rows(unit.principal, Checkpoint.tenant_id)
    return Checkpoint.attempt_id.in_(recent), Checkpoint.created_at >= since, own


def _causes(unit: UnitOfWork, since: datetime) -> list[CauseCount]:
    own = visible_rows(unit.principal, Attempt.tenant_id)
    query = select(Attempt.cause, func.count(), func.count(Attempt.job_id.distinct()))
    query = query.where(Attempt.ended_at >= since, own).group_by(Attempt.cause).order_by(func.count().desc())
    return [
        CauseCount(cause, CAUSE_RULES[cause].budget is Budget.INFRASTRUCTURE, num_attempts, num_jobs)
        for cause, num_attempts, num_jobs in unit.session.execute(query)
        if cause is not None and cause not in _EXPECTED
    ]


def _failed(unit: UnitOfWork, since: datetime, limit: int) -> list[FailingJob]:
    query = _failing().where(*_has_ended(unit, since), Job.state == JobState.FAILED)
    return _jobs_in(unit, query.order_by(Job.finished_at.desc(), Job.id).limit(limit))


def _stuck(unit: UnitOfWork, limit: int) -> list[FailingJob]:
    own = visible_rows(unit.principal, Job.tenant_id)
    query = _failing().where(IS_OPEN, Job.state.in_(_STUCK), own)
    return _jobs_in(unit, query.order_by(Job.updated_at.desc(), Job.id).limit(limit))


def _failing() -> Select[JobId, str, str, JobState, str, datetime]:
    at = func.coalesce(Job.finished_at, Job.updated_at)
    query = select(Job.id, Job.name, Tenant.name, Job.state, Job.state_reason, at)
    return query.join(Tenant, Tenant.id == Job.tenant_id)


def _jobs_in(unit: UnitOfWork, query: Select[JobId, str, str, JobState, str, datetime]) -> list[FailingJob]:
    return [FailingJob(*row) for row in unit.session.execute(query)]


def _oldest_saves(unit: UnitOfWork, limit: int) -> list[SaveAge]:
    """Return running jobs by the age of what they would continue from, the oldest first."""
    newest = (
        select(Checkpoint.committed_at, Checkpoint.step)
        .where(Checkpoint.job_id == Job.id, Checkpoint.status.in_(_DURABLE))
        .order_by(Checkpoint.committed_at.desc())
        .limit(1)
        .lateral()
    )
    began = func.coalesce(newest.c.committed_at, Attempt.placed_at)
    query = (
        select(Job.id, Job.name, Attempt.placed_at, newest.c.committed_at, newest.c.step)
        .select_from(Attempt)
        .join(Job, Job.id == Attempt.job_id)
        .join(newest, true(), isouter=True)
        .where(Attempt.state == AttemptState.RUNNING, visible_rows(unit.principal, Attempt.tenant_id))
    )
    return [SaveAge(*row) for row in unit.session.execute(query.order_by(began, Job.id).limit(limit))]


def _rejected(unit: UnitOfWork, since: datetime, limit: int) -> list[RejectedSave]:
    query = (
        select(Job.id, Job.name, Checkpoint.step, func.coalesce(Checkpoint.reason, ""), Checkpoint.created_at)
        .join(Job, Job.id == Checkpoint.job_id)
        .where(*_was_begun(unit, since), Checkpoint.status == CheckpointStatus.REJECTED)
    )
    ordered = query.order_by(Checkpoint.created_at.desc(), Checkpoint.id).limit(limit)
    return [RejectedSave(*row) for row in unit.session.execute(ordered)]


def _verdicts(unit: UnitOfWork, since: datetime, limit: int) -> list[NewVerdict]:
    query = (
        select(Job.id, Job.name, VerdictRow.kind, VerdictRow.sentence, VerdictRow.created_at)
        .join(Job, Job.id == VerdictRow.job_id)
        .where(VerdictRow.created_at >= since, VerdictRow.state == VerdictState.STANDING)
        .where(visible_rows(unit.principal, VerdictRow.tenant_id))
    )
    ordered = query.order_by(VerdictRow.created_at.desc(), VerdictRow.id).limit(limit)
    return [NewVerdict(*row) for row in unit.session.execute(ordered)]
