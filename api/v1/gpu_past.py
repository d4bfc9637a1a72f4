"""Routes of a GPU's past: its attempts, every move of its standing, and its burn-ins compared with the cohort's."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.gpu_views import move_view
from api.permissions import requires
from api.reading import Limit, page_of, reading, require_gpu_uuid
from api.v1.cohorts import spread_view
from api.views import burn_in_view, time_of
from control.fleet import gpu_jobs, inventory
from control.fleet.gpu_jobs import PastHolder
from control.health import gpu_details
from control.health.burn_ins import comparing
from control.health.burn_ins.comparing import ComparedBurnIn, ComparedRate
from control.health.burn_ins.read import READ as READ_BURN_INS
from muster.documents import gpu_history as documents
from muster.domain.ids import AllocationId
from muster.domain.principals import Permission, Principal

router = APIRouter(prefix="/gpus/{uuid}", tags=["fleet"])
Reader = Annotated[Principal, requires(Permission.GPU_READ)]
Cursor = Annotated[str | None, Query(max_length=1024)]


@router.get("/jobs")
def list_gpu_jobs(
    uuid: str, request: Request, principal: Reader, cursor: Cursor = None, limit: Limit = 50
) -> documents.GpuJobPage:
    """Return the attempts that had the GPU, the newest first, with cause; ``next_cursor`` is null on the last page."""
    dependencies, found_uuid = dependencies_of(request), require_gpu_uuid(uuid)
    filters = {"path": "gpu_jobs", "gpu_uuid": uuid}
    before = None
    if cursor is not None:
        (text,) = read_cursor(dependencies.secret_key, filters, cursor, length=1)
        before = AllocationId(text)
    found = reading(
        dependencies.units,
        principal,
        gpu_jobs.READ,
        lambda unit: gpu_jobs.holders_of(unit, found_uuid, before=before, limit=limit + 1),
    )
    return page_of(
        found, limit, _job_view, lambda last: make_cursor(dependencies.secret_key, filters, [last.allocation_id])
    )


@router.get("/standings")
def list_gpu_standings(
    uuid: str, request: Request, principal: Reader, cursor: Cursor = None, limit: Limit = 50
) -> documents.MovePage:
    """Return every move of its standing, the newest first, with its reason, evidence, policy and actor."""
    dependencies, found_uuid = dependencies_of(request), require_gpu_uuid(uuid)
    filters = {"path": "standings", "gpu_uuid": uuid}
    before = None
    if cursor is not None:
        (text,) = read_cursor(dependencies.secret_key, filters, cursor, length=1)
        before = int(text)
    found = reading(
        dependencies.units,
        principal,
        inventory.READ,
        lambda unit: gpu_details.moves_of(unit, found_uuid, before=before, limit=limit + 1),
    )
    return page_of(found, limit, move_view, lambda last: make_cursor(dependencies.secret_key, filters, [str(last.id)]))


@router.get("/burn-ins")
def list_gpu_burn_ins(
    uuid: str, request: Request, principal: Reader, cursor: Cursor = None, limit: Limit = 50
) -> documents.ComparedBurnInPage:
    """Return its burn-ins, the newest order first, each figure next to the newest figures of its cohort."""
    dependencies, found_uuid = dependencies_of(request), require_gpu_uuid(uuid)
    filters = {"path": "gpu_burn_ins", "gpu_uuid": uuid}
    before = None
    if cursor is not None:
        moment, last_id = read_cursor(dependencies.secret_key, filters, cursor, length=2)
        before = (datetime.fromisoformat(moment), last_id)
    found = reading(
        dependencies.units,
        principal,
        READ_BURN_INS,
        lambda unit: comparing.compare(unit, found_uuid, before=before, limit=limit + 1),
    )
    page = page_of(
        found.burn_ins,
        limit,
        _burn_in_view,
        lambda last: make_cursor(dependencies.secret_key, filters, [last.row.ordered_at.isoformat(), last.row.id]),
    )
    return {"cohort_key": found.cohort_key, "items": page["items"], "next_cursor": page["next_cursor"]}


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
