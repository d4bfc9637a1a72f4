"""The route of a job's cost."""

from typing import Annotated

from fastapi import APIRouter, Request

from api.dependencies import dependencies_of
from api.money_views import job_cost_view
from api.permissions import requires
from api.reading import reading, require_id
from control.ledger import job_costs
from muster.documents import money as documents
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
