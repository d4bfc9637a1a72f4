"""Routes of a GPU's past: its attempts, every move of its standing, and its burn-ins compared with the cohort's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request

from api.gpu_views import move_view
from api.lists import Cursor, PageRequest, Within
from api.permissions import requires
from api.reading import Limit, PageOf, require_gpu_uuid
from api.v1.cohorts import spread_view
from api.views import burn_in_view, time_of
from control.core.paging import Part, Sort, Span, TimeOrder
from control.core.unit_of_work import UnitOfWork
from control.fleet import gpu_jobs, inventory
from control.fleet.gpu_jobs import PastHolder
from control.health import gpu_details
from control.health.burn_ins import comparing
from control.health.burn_ins.comparing import SORTS as COMPARED_SORTS
from control.health.burn_ins.comparing import ComparedBurnIn, ComparedRate
from control.health.burn_ins.read import READ as READ_BURN_INS
from muster.documents import gpu_history as documents
from muster.domain.ids import GpuUuid
from muster.domain.principals import Permission, Principal

router = APIRouter(prefix="/gpus/{uuid}", tags=["fleet"])
T = TypeVar("T")
V = TypeVar("V")
Reader = Annotated[Principal, requires(Permission.GPU_READ)]


@dataclass(frozen=True, slots=True)
class PastQuery:
    """The query of a list of one GPU's past: its stretch of time, order and page."""

    uuid: str
    request: Request
    principal: Reader
    within: Annotated[Within, Depends()]
    cursor: Cursor = None
    limit: Limit = 50

    def answer(
        self,
        action: str,
        path: str,
        sorts: Mapping[TimeOrder, Sort],
        find: Callable[[UnitOfWork, GpuUuid, Part, Span], Sequence[T]],
        view: Callable[[T], V],
    ) -> PageOf[V]:
        """Return the page of what ``find`` returns. ``path``: names the list in its cursors."""
        uuid, span = require_gpu_uuid(self.uuid), self.within.span
        return PageRequest(self.request, self.principal, sorts[self.within.order], self.cursor, self.limit).answer(
            action,
            {"path": path, "gpu_uuid": uuid},
            lambda unit, part: find(unit, uuid, part, span),
            view,
            newer=self.within.conditions,
        )


Past = Annotated[PastQuery, Depends()]


@router.get("/jobs")
def list_gpu_jobs(past: Past) -> documents.GpuJobPage:
    """Return the attempts that had the GPU, with cause, the newest first unless ``order`` says otherwise.

    ``since`` and ``until`` are about the time at which they were placed.
    """
    return past.answer(gpu_jobs.READ, "gpu_jobs", gpu_jobs.SORTS, gpu_jobs.holders_of, _job_view)


@router.get("/standings")
def list_gpu_standings(past: Past) -> documents.MovePage:
    """Return every move of its standing with its reason, the newest first unless ``order`` says otherwise."""
    return past.answer(inventory.READ, "standings", gpu_details.MOVE_SORTS, gpu_details.moves_of, move_view)


@router.get("/burn-ins")
def list_gpu_burn_ins(past: Past) -> documents.ComparedBurnInPage:
    """Return its burn-ins, each figure next to the newest of its cohort; the newest order first unless ``order`` says
    otherwise.
    """
    cohorts: list[str] = []

    def find(unit: UnitOfWork, uuid: GpuUuid, part: Part, span: Span) -> Sequence[ComparedBurnIn]:
        found = comparing.compare(unit, uuid, part, span)
        cohorts.append(found.cohort_key)
        return found.burn_ins

    page = past.answer(READ_BURN_INS, "gpu_burn_ins", COMPARED_SORTS, find, _burn_in_view)
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
