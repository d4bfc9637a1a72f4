"""Routes of a job's training: ranks, loss, checkpoints."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.job_views import checkpoint_view, energy_view, rank_view, step_view
from api.lists import Cursor, ManyAPage, PageRequest, Within
from api.permissions import requires
from api.reading import reading, require_id
from control.jobs import job_energy as energy
from control.jobs import jobs, pins, training_views
from control.jobs.training_views import CheckpointFilter
from muster import documents
from muster.domain.ids import CheckpointId, JobId
from muster.domain.principals import Permission, Principal
from muster.domain.states import CheckpointStatus
from muster.domain.strict import StrictModel, Text

router = APIRouter(prefix="/jobs/{job_id}", tags=["jobs"])
Reader = Annotated[Principal, requires(Permission.JOB_READ)]
STEPS_A_PAGE = 1_000
CHECKPOINTS_A_PAGE = 1_000


class Pinning(StrictModel):
    reason: Annotated[Text, Field(max_length=500)] | None = None


@router.get("/checkpoints")
def list_checkpoints(
    job_id: str,
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    status: Annotated[list[CheckpointStatus] | None, Query(max_length=10)] = None,
    pinned: Annotated[bool | None, Query()] = None,
    cursor: Cursor = None,
    limit: ManyAPage = CHECKPOINTS_A_PAGE,
) -> documents.CheckpointPage:
    """Return generations with their status, the newest step first unless ``order`` says otherwise.

    TAINTED and REJECTED ones are never resumed from, and have a reason. ``since`` and ``until`` are about the time at
    which they were begun.
    """
    found_id, statuses = JobId(require_id("job", job_id)), sorted(status or [])
    wanted = CheckpointFilter(statuses, pinned, within.span)
    return PageRequest(request, principal, training_views.CHECKPOINT_SORTS[within.order], cursor, limit).answer(
        jobs.READ,
        {"path": "checkpoints", "job": job_id, "statuses": statuses, "pinned": pinned, **within.conditions},
        lambda unit, part: training_views.list_checkpoints(unit, found_id, wanted, part),
        checkpoint_view,
    )


@router.post(
    "/checkpoints/{checkpoint_id}/pin",
    response_model=documents.ChangedCheckpoint,
    openapi_extra=described_by(Pinning),
)
def pin_checkpoint(
    job_id: str,
    checkpoint_id: str,
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    wanted: Annotated[Pinning, json_body(Pinning)],
    change: Changing,
) -> JSONResponse:
    """Keep a checkpoint from retention from now on; `pin_applied_at`: since when its storage has the mark.

    A TAINTED one may be pinned, to be examined: it is never resumed from all the same.
    """
    found = JobId(require_id("job", job_id)), CheckpointId(require_id("checkpoint", checkpoint_id))
    return change.run(
        principal,
        pins.PIN,
        lambda unit: pins.pin(unit, *found, reason=wanted.reason),
        lambda row: Answer(checkpoint_view(row)),
    )


@router.delete("/checkpoints/{checkpoint_id}/pin", response_model=documents.ChangedCheckpoint)
def unpin_checkpoint(
    job_id: str,
    checkpoint_id: str,
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    change: Changing,
) -> JSONResponse:
    """Allow retention to remove it again, once newer ones are whole."""
    found = JobId(require_id("job", job_id)), CheckpointId(require_id("checkpoint", checkpoint_id))
    return change.run(
        principal, pins.UNPIN, lambda unit: pins.unpin(unit, *found), lambda row: Answer(checkpoint_view(row))
    )


@router.get("/training/ranks")
def list_ranks(job_id: str, request: Request, principal: Reader) -> documents.RankPage:
    """Return the progress of each rank of the newest attempt, by its own report."""
    found_id = JobId(require_id("job", job_id))
    units = dependencies_of(request).units
    rows = reading(units, principal, jobs.READ, lambda unit: training_views.ranks_of(unit, found_id))
    return {"items": [rank_view(row) for row in rows], "next_cursor": None}


@router.get("/training/steps")
def list_steps(
    job_id: str,
    request: Request,
    principal: Reader,
    after: Annotated[int, Query(ge=-1, lt=1 << 53)] = -1,
) -> documents.StepPage:
    """Return the loss curve after step ``after``, at most 1,000 steps; a step trained twice is as trained last."""
    found_id = JobId(require_id("job", job_id))
    units = dependencies_of(request).units
    rows = reading(
        units,
        principal,
        jobs.READ,
        lambda unit: training_views.steps_of(unit, found_id, after=after, limit=STEPS_A_PAGE),
    )
    more = rows[-1].step if len(rows) == STEPS_A_PAGE else None
    return {"items": [step_view(row) for row in rows], "next_after": more}


@router.get("/energy")
def job_energy(job_id: str, request: Request, principal: Reader) -> documents.JobEnergy:
    """Return the energy of its attempts, by the counters of their GPUs. Without a counter it is null, never zero."""
    found_id = JobId(require_id("job", job_id))
    units = dependencies_of(request).units
    return energy_view(reading(units, principal, jobs.READ, lambda unit: energy.energy_of(unit, found_id)))
