"""Routes of GPUs by the page."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from api.lists import Cursor, Labels, PageRequest, Racked, holder_in, order_of, place_in
from api.permissions import requires
from api.reading import PRINTABLE, NodeNamed
from api.views import gpu_view
from control.fleet import inventory, read
from control.fleet.read import GpuFilter, GpuOrder
from muster import documents
from muster.domain.principals import Permission, Principal
from muster.domain.states import Standing
from muster.domain.strict import Name

router = APIRouter(tags=["fleet"])
Printable = Annotated[str | None, Query(max_length=128, pattern=r"^[ -~]+$")]
GPUS_A_PAGE = 1000


@dataclass(frozen=True, slots=True)
class GpuQuery:
    """The query of a list of GPUs: its conditions, order and page."""

    standing: Annotated[list[Standing] | None, Query(max_length=10)] = None
    node: NodeNamed = None
    model: Annotated[Printable, Query()] = None
    below: Annotated[float | None, Query(ge=0, le=101)] = None
    uuid: Annotated[Printable, Query()] = None
    cordoned: Annotated[bool | None, Query()] = None
    rack: Racked = None
    label: Labels = None
    job_id: Annotated[
        str | None, Query(max_length=64, pattern=PRINTABLE, description="only GPUs that this job has now")
    ] = None
    tenant_id: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE)] = None
    tier: Annotated[Name | None, Query()] = None
    order: Annotated[
        GpuOrder,
        Query(),
    ] = GpuOrder.PLACE
    cursor: Cursor = None
    limit: Annotated[int, Query(ge=1, le=GPUS_A_PAGE)] = GPUS_A_PAGE

    @property
    def wanted(self) -> GpuFilter:
        """The filter. Raises ValidationFailedError: a label is none."""
        return GpuFilter(
            sorted(self.standing or []),
            self.node,
            self.model,
            self.below,
            self.uuid,
            self.cordoned,
            place_in(self.rack, self.label),
            holder_in(self.job_id, self.tenant_id, self.tier),
        )

    @property
    def of_cursor(self) -> dict[str, Any]:
        """What a cursor of the list is bound to, as in release 0.1.0."""
        asked = {"node": self.node, "model": self.model, "below": self.below, "uuid": self.uuid}
        standings = sorted(self.standing or [])
        return {"path": "gpus", "standings": standings, **asked, "cordoned": self.cordoned}

    @property
    def newer(self) -> dict[str, Any]:
        """What it is bound to besides, where it is given."""
        return {
            "rack": self.rack,
            "labels": sorted(self.label or []) or None,
            "job_id": self.job_id,
            "tenant_id": self.tenant_id,
            "tier": self.tier,
            "order": order_of(self.order, GpuOrder.PLACE),
        }


@router.get("/gpus", response_model=documents.GpuPage)
def list_gpus(
    request: Request,
    principal: Annotated[Principal, requires(Permission.GPU_READ)],
    query: Annotated[GpuQuery, Depends()],
) -> JSONResponse:
    """Return GPUs by node and slot unless ``order`` says otherwise; ``next_cursor`` is null on the last page."""
    wanted = query.wanted
    page = PageRequest(request, principal, read.GPU_SORTS[query.order], query.cursor, query.limit).answer(
        inventory.READ,
        query.of_cursor,
        lambda unit, part: read.list_gpus(unit, wanted, part),
        lambda each: gpu_view(each.gpu, each.override, is_cordoned=each.is_cordoned),
        newer=query.newer,
    )
    return JSONResponse(page)
