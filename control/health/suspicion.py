"""Suspicion by evidence that comes after the attempt's end: hosts report late, and the judge has its own pace."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.attempts import suspects
from control.attempts.attempts import lock_job, step_job
from control.core.unit_of_work import UnitOfWorkFactory, declare_action, retrying
from control.policy.policies import active_policy
from muster.db.models import Attempt, Job
from muster.domain.ids import JobId
from muster.domain.lifecycle import job as jobs
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal
from muster.domain.state_sets import JOBS_THAT_WAIT_FOR_GPUS
from muster.domain.states import Cause

HOLD: Final = declare_action("judge.hold_suspect")
SUSPEND: Final = declare_action("judge.suspend_evidence")


def hold_suspects_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Hold pending jobs that are suspected by now; suspend late evidence. Return how many jobs were held."""
    with units.read() as session:
        waiting = _often_ended(session, active_policy(session), units.clock())
        late = [each for each in suspects.open_suspicions(session) if suspects.not_yet_suspended(session, each)]
        late_jobs = [JobId(incident.payload["job_id"]) for incident in late]
    for job_id in late_jobs:
        retrying(lambda job_id=job_id: _suspend(units, principal, job_id))  # type: ignore[misc]  # bound at once
    return sum(retrying(lambda job_id=job_id: _hold(units, principal, job_id)) for job_id in waiting)  # type: ignore[misc]  # bound at once


def _often_ended(session: Session, policy: Policy, now: datetime) -> Sequence[JobId]:
    since = now - timedelta(seconds=policy.suspicion.window_s)
    query = (
        select(Job.id)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Job.state.in_(JOBS_THAT_WAIT_FOR_GPUS), Attempt.ended_at > since, Attempt.cause != Cause.SUCCEEDED)
        .group_by(Job.id)
        .having(func.count() >= policy.suspicion.disjoint_sets)
        .order_by(Job.id)
    )
    return session.scalars(query).all()


def _hold(units: UnitOfWorkFactory, principal: Principal, job_id: JobId) -> bool:
    with units.begin(principal, HOLD) as unit:
        job = lock_job(unit, job_id)
        policy = active_policy(unit.session)
        suspicion = suspects.suspicion_about(unit, job, policy) if job.state in JOBS_THAT_WAIT_FOR_GPUS else None
        if suspicion is None:
            return False
        step_job(unit, job, jobs.HoldRequested(suspects.text_of(suspicion)), policy)
        suspects.open_suspicion(unit, job, suspicion)
        return True


def _suspend(units: UnitOfWorkFactory, principal: Principal, job_id: JobId) -> None:
    with units.begin(principal, SUSPEND) as unit:
        lock_job(unit, job_id)
        incident = suspects.open_suspicion_of(unit, job_id)
        if incident is not None:
            suspects.suspend_evidence(unit, incident)
