"""Routes of a GPU's past: its attempts, every move of its standing, and its burn-ins compared with the cohort's."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from api.gpu_views import move_view
from api.lists import Cursor, PageRequest, Within
from api.permissions import requires
from api.reading import Limit, require_gpu_uuid
from api.v1.cohorts import spread_view
from api.views import burn_in_view, time_of
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.fleet import gpu_jobs, inventory
from control.fleet.gpu_jobs import PastHolder
from control.health import gpu_details
from control.health.burn_ins import comparing
from control.health.burn_ins.comparing import SORTS as COMPARED_SORTS
from control.health.burn_ins.comparing import ComparedBurnIn, ComparedRate
from control.health.burn_ins.read import READ as READ_BURN_INS
from muster.documents import gpu_history as documents
from muster.domain.principals import Permission, Principal

router = APIRouter(prefix="/gpus/{uuid}", tags=["fleet"])
Reader = Annotated[Principal, requires(Permission.GPU_READ)]


@router.get("/jobs")
def list_gpu_jobs(
    uuid: str,
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.GpuJobPage:
    """Return the attempts that had the GPU, with cause, the newest first unless ``order`` says otherwise.

    ``since`` and ``until`` are about the time at which they were placed.
    """
    found_uuid, span = require_gpu_uuid(uuid), within.span
    return PageRequest(request, principal, gpu_jobs.SORTS[within.order], cursor, limit).answer(
        gpu_jobs.READ,
        {"path": "gpu_jobs", "gpu_uuid": uuid},
        lambda unit, part: gpu_jobs.holders_of(unit, found_uuid, part, span=span),
        _job_view,
        newer=within.conditions,
    )


@router.get("/standings")
def list_gpu_standings(
    uuid: str,
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.MovePage:
    """Return every move of its standing with its reason, the newest first unless ``order`` says otherwise."""
    found_uuid, span = require_gpu_uuid(uuid), within.span
    return PageRequest(request, principal, gpu_details.MOVE_SORTS[within.order], cursor, limit).answer(
        inventory.READ,
        {"path": "standings", "gpu_uuid": uuid},
        lambda unit, part: gpu_details.moves_of(unit, found_uuid, part, span=span),
        move_view,
        newer=within.conditions,
    )


@router.get("/burn-ins")
def list_gpu_burn_ins(
    uuid: str,
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.ComparedBurnInPage:
    """Return its burn-ins, each figure next to the newest of its cohort; the newest order first unless ``order`` says
    otherwise.
    """
    found_uuid, span = require_gpu_uuid(uuid), within.span
    cohorts: list[str] = []

    def find(unit: UnitOfWork, part: Part) -> Sequence[ComparedBurnIn]:
        found = comparing.compare(unit, found_uuid, part, span=span)
        cohorts.append(found.cohort_key)
        return found.burn_ins

    page = PageRequest(request, principal, COMPARED_SORTS[within.order], cursor, limit).answer(
        READ_BURN_INS,
        {"path": "gpu_burn_ins", "gpu_uuid": uuid},
        find,
        _burn_in_view,
        newer=within.conditions,
    )
    return {"cohort_key": cohorts[0], "items": page["items"], "next_cursor": page["next_cursor"]}


def _job_view(found: PastHolder) -> documents.GpuJob:
    return {
        "job_id": found.job_id,
        "job_name": found.job_name,
        "tenant_id": found.tenant_id,
        "tier": found.tier,
        "attempt_id": found.attempt_id,
        "attempt_number": found.attempt_number,
        "attempt_state": found.attempt_state,
        "cause": found.cause,
        "proof": found.proof,
        "stop_reason": found.stop_reason,
        "placed_at": time_of(found.placed_at),
        "running_at": time_of(found.running_at),
        "ended_at": time_of(found.ended_at),
        "node_id": found.node_id,
        "node_rank": found.node_rank,
        "local_index": found.local_index,
        "state": found.state,
    }


def _burn_in_view(found: ComparedBurnIn) -> documents.ComparedBurnIn:
    return {**burn_in_view(found.row), "compared": [_rate_view(rate) for rate in found.rates]}


def _rate_view(rate: ComparedRate) -> documents.ComparedRate:
    return {
        "measure": rate.measure,
        "value": rate.value,
        "cohort": None if rate.spread is None else spread_view(rate.spread),
        "is_outlier": rate.is_outlier,
    }
