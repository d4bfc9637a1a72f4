"""Routes of a job's cost, and of several jobs side by side."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.dependencies import dependencies_of
from api.job_comparison_views import compared_job_view
from api.money_views import job_cost_view
from api.permissions import requires
from api.reading import reading, require_id
from api.refusals import refusing_also
from control.ledger import job_comparisons, job_costs
from muster.documents import money as documents
from muster.domain.errors import NotFoundError
from muster.domain.ids import JobId
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["money"])


@router.get("/jobs/{job_id}/cost")
def show_job_cost(
    job_id: str, request: Request, principal: Annotated[Principal, requires(Permission.JOB_READ)]
) -> documents.JobCost:
    """Return what a job has cost until now, by account, and what a step, a token, an epoch and a checkpoint cost."""
    found_id, units = JobId(require_id("job", job_id)), dependencies_of(request).units
    return job_cost_view(
        reading(
            units, principal, job_costs.READ, lambda unit: job_costs.cost_of_job(unit, found_id), is_one_snapshot=True
        )
    )


@router.get("/job-comparisons", dependencies=[refusing_also(NotFoundError)])
def compare_jobs(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_READ)],
    job: Annotated[list[str], Query(min_length=1, max_length=job_comparisons.MOST_JOBS)],
) -> documents.JobComparison:
    """Return jobs side by side: speed, use of their GPUs, cost, and tokens for a unit of money."""
    found_ids, units = [JobId(require_id("job", each)) for each in job], dependencies_of(request).units
    found = reading(
        units,
        principal,
        job_comparisons.READ,
        lambda unit: job_comparisons.compare(unit, found_ids),
        is_one_snapshot=True,
    )
    return {"items": [compared_job_view(each) for each in found], "next_cursor": None}
