"""Jobs that a residency rule bars without end: HELD with the reason, since no wait makes them possible.

A job that would write checkpoints to a store outside its tenant's rule was refused at its submission, unless the rule
was set or tightened since. Its tenant submits it with another store, or an operator permits this one; then it is
released.
"""

from typing import Final

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.attempts.attempts import lock_job, step_job
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.policy.policies import active_policy
from muster.db.models import Job
from muster.db.queries.residency import CHECKPOINT_STORE, residencies, residency_of_tenant
from muster.domain.ids import JobId, TenantId
from muster.domain.lifecycle import job as jobs
from muster.domain.principals import Permission, Principal
from muster.domain.states import JobState

_log = structlog.get_logger(__name__)
HOLD: Final = declare_action("residency.hold")


def hold_outside(units: UnitOfWorkFactory, principal: Principal) -> list[JobId]:
    """Hold each QUEUED job whose store of checkpoints is outside its tenant's rule. Return them."""
    with units.read() as session:
        found = _outside(session)
    for job_id in found:

        def hold(job_id: JobId = job_id) -> None:
            with units.begin(principal, HOLD) as unit:
                _hold(unit, job_id)

        retrying(hold)
        _log.info("job_outside_residency", job_id=job_id)
    return found


def _outside(session: Session) -> list[JobId]:
    rules = residencies(session)
    if not rules:
        return []
    query = select(Job.id, Job.tenant_id, CHECKPOINT_STORE).where(
        Job.state == JobState.QUEUED, Job.tenant_id.in_(rules), CHECKPOINT_STORE.is_not(None)
    )
    return [
        job_id
        for job_id, tenant_id, location in session.execute(query.order_by(Job.id))
        if rules[tenant_id].checkpoint_refusal(location) is not None
    ]


def _hold(unit: UnitOfWork, job_id: JobId) -> None:
    unit.principal.require(Permission.SYSTEM_RUN)
    job = lock_job(unit, job_id)
    why = checkpoint_refusal_of(unit.session, job.id, job.tenant_id)
    if job.state is JobState.QUEUED and why is not None:
        told = f"{why}: submit it with a permitted `checkpoint.store`, or have this one permitted and release the job"
        step_job(unit, job, jobs.HoldRequested(told), active_policy(unit.session))


def checkpoint_refusal_of(session: Session, job_id: JobId, tenant_id: TenantId) -> str | None:
    """Return why the job must not write its checkpoints where it would; None: it may."""
    location = session.scalar(select(CHECKPOINT_STORE).where(Job.id == job_id))
    return None if location is None else residency_of_tenant(session, tenant_id).checkpoint_refusal(location)
