"""A person keeps a waiting job out of placement, until it is released."""

from dataclasses import replace
from typing import Final

from control.attempts.attempts import lock_job, step_job
from control.attempts.mapping import job_lifecycle, store_job, submitted_job
from control.attempts.types import SubmittedJob
from control.content.uses import await_no_bundle
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see
from control.policy.policies import active_policy
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import JobId
from muster.domain.lifecycle import job as jobs
from muster.domain.principals import Permission
from muster.domain.state_sets import JOBS_THAT_WAIT_FOR_GPUS
from muster.domain.states import TERMINAL_JOB_STATES, JobState

HOLD: Final = declare_action("job.hold")
_WHY: Final = "held by request"


def hold(unit: UnitOfWork, job_id: JobId, *, reason: str | None = None) -> SubmittedJob:
    """Hold a job that waits for GPUs: nothing places it until it is released. Twice is the same as once.

    One that is HELD until its bundle is whole again is held by request from then on.

    Raises:
        NotFoundError: no such job, or another tenant's.
        ConflictError: it has GPUs, or has ended.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    job = lock_job(unit, job_id)
    if not may_see(unit.principal, job.tenant_id):
        raise NotFoundError
    is_held = job.state is JobState.HELD
    if is_held and not await_no_bundle(unit, job_id):
        return submitted_job(unit.session, job)
    if not is_held and job.state not in JOBS_THAT_WAIT_FOR_GPUS:
        raise _refusal(job.state)
    unit.audit("job.hold", "job", job.id, tenant_id=job.tenant_id, reason=reason, detail={"was": job.state_reason})
    why = _WHY if reason is None else f"{_WHY}: {reason}"
    if is_held:
        store_job(unit, job, replace(job_lifecycle(job), reason=why))
        job.wait_verdict = None
    else:
        step_job(unit, job, jobs.HoldRequested(why), active_policy(unit.session))
    unit.session.flush()
    return submitted_job(unit.session, job)


def _refusal(state: JobState) -> ConflictError:
    if state in TERMINAL_JOB_STATES:
        return ConflictError(f"the job has ended already: {state}", suggestion="There is nothing to hold.")
    return ConflictError(f"the job is {state}: only one that waits for GPUs is held", suggestion="A cancel ends it.")
