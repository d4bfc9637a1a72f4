"""What went wrong lately, as the person on call reads it: failed jobs, ends by cause, lost hosts, saves."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Select, func, select, true

from control.core.paging import Span
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
NODE_LOST: Final = "node.lost"
SAVE_FAILED: Final = "checkpoint.failed"
EXPECTED: Final = frozenset({Cause.SUCCEEDED, Cause.CANCELLED})
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
class Counts:
    """How often what happened. ``restarts``: attempts after a job's first.

    ``node_losses``: None for a tenant, which has no hosts.
    """

    num_succeeded: int
    num_failed: int
    restarts: int
    node_losses: int | None
    verified_saves: int
    rejected_saves: int
    failed_saves: int


@dataclass(frozen=True, slots=True)
class Failures:
    """What went wrong, one by one."""

    causes: Sequence[CauseCount]
    failed: Sequence[FailingJob]
    stuck: Sequence[FailingJob]
    oldest_saves: Sequence[SaveAge]
    rejected: Sequence[RejectedSave]
    verdicts: Sequence[NewVerdict]


def counts_in(unit: UnitOfWork, span: Span) -> Counts:
    """Return how often each kind of failure happened. Raises ``ValidationFailedError``: the time is too long."""
    unit.principal.require(Permission.JOB_READ)
    _require_short(span)
    ended = _jobs_ended(unit, span)
    losses = _losses(unit, span) if unit.principal.sees_all_tenants else None
    saves = _saves(unit, span)
    return Counts(
        num_succeeded=ended.get(JobState.SUCCEEDED, 0),
        num_failed=ended.get(JobState.FAILED, 0),
        restarts=_restarts(unit, span),
        node_losses=losses,
        verified_saves=sum(saves.get(status, 0) for status in _DURABLE),
        rejected_saves=saves.get(CheckpointStatus.REJECTED, 0),
        failed_saves=_failed_saves(unit, span),
    )


def failures_in(unit: UnitOfWork, span: Span, *, limit: int) -> Failures:
    """Return what went wrong, with at most ``limit`` rows of each list, the newest first.

    Jobs that wait and checkpoints of running jobs are as of now.

    Raises:
        ValidationFailedError: the time is too long.
    """
    unit.principal.require(Permission.JOB_READ)
    _require_short(span)
    return Failures(
        causes=_causes(unit, span),
        failed=_failed(unit, span, limit),
        stuck=_stuck(unit, limit),
        oldest_saves=_oldest_saves(unit, limit),
        rejected=_rejected(unit, span, limit),
        verdicts=_verdicts(unit, span, limit),
    )


def _require_short(span: Span) -> None:
    if span.since is None or span.until is None or span.until - span.since > MAX_SPAN:
        raise ValidationFailedError.at("since", "too_long", f"at most {MAX_SPAN.days} days may be looked through")


def _jobs_ended(unit: UnitOfWork, span: Span) -> dict[JobState, int]:
    """Return how many jobs ended in each state."""
    query = select(Job.state, func.count()).where(*_has_ended(unit, span)).group_by(Job.state)
    return dict(unit.session.execute(query).all())


def _has_ended(unit: UnitOfWork, span: Span) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of jobs that ended in the span, with or without an attempt."""
    return *span.conditions(Job.finished_at), visible_rows(unit.principal, Job.tenant_id)


def _restarts(unit: UnitOfWork, span: Span) -> int:
    own = visible_rows(unit.principal, Attempt.tenant_id)
    query = select(func.count()).where(*span.conditions(Attempt.placed_at))
    recent = (Attempt.ended_at >= span.since) | Attempt.ended_at.is_(None)
    return unit.session.scalar(query.where(recent, Attempt.number > 1, own)) or 0


def _losses(unit: UnitOfWork, span: Span) -> int:
    """Return how often hosts were lost."""
    return unit.session.scalar(select(func.count()).where(*happened(unit, span, NODE_LOST))) or 0


def _failed_saves(unit: UnitOfWork, span: Span) -> int:
    return unit.session.scalar(select(func.count()).where(*happened(unit, span, SAVE_FAILED))) or 0


def happened(unit: UnitOfWork, span: Span, kind: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of events of a kind that the reader may see."""
    return (
        *span.conditions(Event.at),
        Event.position.is_not(None),
        Event.kind == kind,
        visible_rows(unit.principal, Event.tenant_id),
    )


def _saves(unit: UnitOfWork, span: Span) -> dict[CheckpointStatus, int]:
    query = select(Checkpoint.status, func.count()).where(*_was_begun(unit, span))
    return dict(unit.session.execute(query.group_by(Checkpoint.status)).all())


def _was_begun(unit: UnitOfWork, span: Span) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of checkpoints that were begun in the span: an index of their attempts leads to them."""
    recent = select(Attempt.id).where((Attempt.ended_at >= span.since) | Attempt.ended_at.is_(None))
    own = visible_rows(unit.principal, Checkpoint.tenant_id)
    return Checkpoint.attempt_id.in_(recent), *span.conditions(Checkpoint.created_at), own


def _causes(unit: UnitOfWork, span: Span) -> list[CauseCount]:
    own = visible_rows(unit.principal, Attempt.tenant_id)
    query = select(Attempt.cause, func.count(), func.count(Attempt.job_id.distinct()))
    query = query.where(*span.conditions(Attempt.ended_at), own).group_by(Attempt.cause).order_by(func.count().desc())
    return [
        CauseCount(cause, CAUSE_RULES[cause].budget is Budget.INFRASTRUCTURE, num_attempts, num_jobs)
        for cause, num_attempts, num_jobs in unit.session.execute(query)
        if cause is not None and cause not in EXPECTED
    ]


def _failed(unit: UnitOfWork, span: Span, limit: int) -> list[FailingJob]:
    query = _failing().where(*_has_ended(unit, span), Job.state == JobState.FAILED)
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


def _rejected(unit: UnitOfWork, span: Span, limit: int) -> list[RejectedSave]:
    query = (
        select(Job.id, Job.name, Checkpoint.step, func.coalesce(Checkpoint.reason, ""), Checkpoint.created_at)
        .join(Job, Job.id == Checkpoint.job_id)
        .where(*_was_begun(unit, span), Checkpoint.status == CheckpointStatus.REJECTED)
    )
    ordered = query.order_by(Checkpoint.created_at.desc(), Checkpoint.id).limit(limit)
    return [RejectedSave(*row) for row in unit.session.execute(ordered)]


def _verdicts(unit: UnitOfWork, span: Span, limit: int) -> list[NewVerdict]:
    query = (
        select(Job.id, Job.name, VerdictRow.kind, VerdictRow.sentence, VerdictRow.created_at)
        .join(Job, Job.id == VerdictRow.job_id)
        .where(*span.conditions(VerdictRow.created_at))
        .where(VerdictRow.state == VerdictState.STANDING)
        .where(visible_rows(unit.principal, VerdictRow.tenant_id))
    )
    ordered = query.order_by(VerdictRow.created_at.desc(), VerdictRow.id).limit(limit)
    return [NewVerdict(*row) for row in unit.session.execute(ordered)]
