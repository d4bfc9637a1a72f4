"""Jobs by the page: each with the hosts of its live attempt, or the reason why it waits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, func, select, tuple_

from control.core.unit_of_work import UnitOfWork
from control.core.visibility import visible_rows
from control.policy.policies import active_policy
from muster.db.models import Attempt, AttemptHost, Job, Node, Tenant
from muster.domain.ids import AttemptId, JobId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import AttemptState, JobState

HOSTS_NAMED = 2
"""Number of hosts of a live attempt that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Conditions on a job; None and empty set no condition. ``name``: a part of it, in any case."""

    states: Sequence[JobState] = ()
    tier: str | None = None
    name: str | None = None
    tenant_id: TenantId | None = None


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job.

    ``live``: its attempt that has not ended; ``node_names``: the first hosts; ``num_attempts``: all attempts.
    """

    job: Job
    tenant_name: str
    num_attempts: int
    live: Attempt | None
    node_names: Sequence[str]


def list_jobs(
    unit: UnitOfWork, wanted: JobFilter, *, before: tuple[datetime, JobId] | None = None, limit: int
) -> Sequence[ListedJob]:
    """Return jobs, the newest first; for a tenant its own. ``before``: (created_at, id) of the last page's last job."""
    unit.principal.require(Permission.JOB_READ)
    query = select(Job, Tenant.name).join(Tenant, Tenant.id == Job.tenant_id).where(*_conditions(unit, wanted))
    if before is not None:
        query = query.where(tuple_(Job.created_at, Job.id) < tuple_(*before))
    rows = unit.session.execute(query.order_by(Job.created_at.desc(), Job.id.desc()).limit(limit)).all()
    job_ids = [job.id for job, _ in rows]
    numbers, live = _attempts_of(unit, job_ids)
    names = _hosts_of(unit, [attempt.id for attempt in live.values()])
    return [
        ListedJob(
            job,
            tenant_name,
            numbers.get(job.id, 0),
            live.get(job.id),
            names.get(live[job.id].id, ()) if job.id in live else (),
        )
        for job, tenant_name in rows
    ]


def known_tiers(unit: UnitOfWork) -> Sequence[str]:
    """Return the tiers that the active policy defines."""
    unit.principal.require(Permission.JOB_READ)
    return sorted(active_policy(unit.session).tiers)


def known_levels(unit: UnitOfWork) -> Sequence[str]:
    """Return the levels that the active policy names, widest first."""
    unit.principal.require(Permission.JOB_READ)
    return active_policy(unit.session).placement.levels


def _conditions(unit: UnitOfWork, wanted: JobFilter) -> Iterator[ColumnElement[bool]]:
    yield visible_rows(unit.principal, Job.tenant_id)
    if wanted.tenant_id is not None:
        yield Job.tenant_id == wanted.tenant_id
    if wanted.states:
        yield Job.state.in_(wanted.states)
    if wanted.tier is not None:
        yield Job.tier == wanted.tier
    if wanted.name is not None:
        yield Job.name.icontains(wanted.name, autoescape=True)


def _attempts_of(unit: UnitOfWork, job_ids: Sequence[JobId]) -> tuple[dict[JobId, int], dict[JobId, Attempt]]:
    counted = select(Attempt.job_id, func.max(Attempt.number)).where(Attempt.job_id.in_(job_ids))
    numbers = {JobId(job_id): number for job_id, number in unit.session.execute(counted.group_by(Attempt.job_id))}
    query = select(Attempt).where(Attempt.job_id.in_(job_ids), Attempt.state != AttemptState.ENDED)
    return numbers, {attempt.job_id: attempt for attempt in unit.session.scalars(query)}


def _hosts_of(unit: UnitOfWork, attempt_ids: Sequence[AttemptId]) -> dict[AttemptId, list[str]]:
    query = (
        select(AttemptHost.attempt_id, Node.name)
        .join(Node, Node.id == AttemptHost.node_id)
        .where(AttemptHost.attempt_id.in_(attempt_ids), AttemptHost.node_rank < HOSTS_NAMED)
        .order_by(AttemptHost.attempt_id, AttemptHost.node_rank)
    )
    names: dict[AttemptId, list[str]] = {}
    for attempt_id, name in unit.session.execute(query):
        names.setdefault(attempt_id, []).append(name)
    return names
