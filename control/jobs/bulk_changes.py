"""Changes of all jobs that a selector matches: cancel, hold, release, try again."""

from collections.abc import Callable
from typing import Final

from sqlalchemy import ColumnElement, and_

from control.core.bulk import BulkRequest, BulkResult, Subjects, change_matching
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from control.jobs import holding, jobs, retrying
from control.jobs.listing import JobFilter, conditions_on
from muster.db.models import Job
from muster.domain.ids import JobId
from muster.domain.principals import Permission
from muster.domain.residency import StorePlace
from muster.domain.state_sets import JOBS_THAT_WAIT_FOR_GPUS
from muster.domain.states import TERMINAL_JOB_STATES, JobState

CANCEL: Final = declare_action("jobs.cancel")
HOLD: Final = declare_action("jobs.hold")
RELEASE: Final = declare_action("jobs.release")
RETRY: Final = declare_action("jobs.retry")


def cancel(unit: UnitOfWork, wanted: JobFilter, request: BulkRequest) -> BulkResult:
    """Cancel each job that has not ended and is not being cancelled. Raises as ``change_matching`` does."""
    unit.principal.require(Permission.JOB_CANCEL)
    is_due = and_(Job.state.not_in(TERMINAL_JOB_STATES), Job.cancel_requested_at.is_(None))
    return _changed(
        unit, wanted, request, is_due, lambda job_id: jobs.cancel(unit, JobId(job_id), reason=request.reason)
    )


def hold(unit: UnitOfWork, wanted: JobFilter, request: BulkRequest) -> BulkResult:
    """Hold each job that waits for GPUs. Raises as ``cancel`` does."""
    unit.principal.require(Permission.JOB_SUBMIT)
    is_due = Job.state.in_(JOBS_THAT_WAIT_FOR_GPUS)
    return _changed(
        unit, wanted, request, is_due, lambda job_id: holding.hold(unit, JobId(job_id), reason=request.reason)
    )


def retry(unit: UnitOfWork, wanted: JobFilter, request: BulkRequest, *, store: StorePlace | None = None) -> BulkResult:
    """Submit each job again that failed or was cancelled and of which there is no copy. Raises as ``cancel`` does.

    ``store``: the content store; None: there is none.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    is_due = retrying.is_to_be_retried()
    return _changed(
        unit,
        wanted,
        request,
        is_due,
        lambda job_id: retrying.retry(unit, JobId(job_id), reason=request.reason, store=store),
    )


def release(unit: UnitOfWork, wanted: JobFilter, request: BulkRequest) -> BulkResult:
    """Release each HELD job; one with a suspect program is refused to all but operators. Raises as ``cancel`` does."""
    unit.principal.require(Permission.JOB_SUBMIT)
    is_due = Job.state == JobState.HELD
    return _changed(
        unit, wanted, request, is_due, lambda job_id: jobs.release(unit, JobId(job_id), reason=request.reason)
    )


def _changed(
    unit: UnitOfWork,
    wanted: JobFilter,
    request: BulkRequest,
    is_due: ColumnElement[bool],
    change: Callable[[str], object],
) -> BulkResult:
    visible = visible_rows(unit.principal, Job.tenant_id)
    return change_matching(
        unit, request, Subjects(Job.id, Job.name, list(conditions_on(wanted)), is_due, visible), change
    )
