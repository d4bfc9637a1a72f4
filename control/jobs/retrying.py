"""A failed or cancelled job is submitted again, as it was, with a link to it."""

from typing import Final

from sqlalchemy import ColumnElement, and_, exists, select
from sqlalchemy.orm import aliased

from control.attempts.attempts import lock_job
from control.attempts.mapping import submitted_job
from control.attempts.types import SubmittedJob
from control.core.unit_of_work import UnitOfWork
from control.core.visibility import may_see
from control.jobs import jobs
from muster.db.models import Job
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import JobId
from muster.domain.principals import Permission
from muster.domain.residency import StorePlace
from muster.domain.states import JobState

RETRIED_STATES: Final = (JobState.FAILED, JobState.CANCELLED)
_COPY: Final = aliased(Job)


def is_to_be_retried() -> ColumnElement[bool]:
    """Return the condition on a job that failed or was cancelled, and of which there is no copy yet."""
    has_copy = exists().where(_COPY.copied_from == Job.id)
    return and_(Job.state.in_(RETRIED_STATES), ~has_copy)


def retry(unit: UnitOfWork, job_id: JobId, *, store: StorePlace | None, reason: str | None = None) -> SubmittedJob:
    """Submit the job again for its tenant, and return the new one, which begins at its first step.

    ``store``: the content store; None: there is none.

    Raises:
        NotFoundError: no such job, or another tenant's.
        ConflictError: it has not failed and was not cancelled, or there is a copy of it already.
        ValidationFailedError: it could not be submitted as it was any more, as ``jobs.submit`` refuses it.
        TenantLimitError: the tenant has reached a limit of the policy.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    job = lock_job(unit, job_id)
    if not may_see(unit.principal, job.tenant_id):
        raise NotFoundError
    if job.state not in RETRIED_STATES:
        message = f"the job is {job.state}: only one that FAILED or was CANCELLED is tried again"
        raise ConflictError(message, suggestion="A copy is an equal job.")
    copy_id = unit.session.scalar(select(Job.id).where(Job.copied_from == job.id).order_by(Job.id).limit(1))
    if copy_id is not None:
        raise ConflictError(f"it was submitted again already, as {copy_id}", suggestion="A copy is an equal job.")
    spec = submitted_job(unit.session, job).specification()
    return jobs.submit(unit, spec, tenant_id=job.tenant_id, reason=reason, copied_from=job_id, store=store)
