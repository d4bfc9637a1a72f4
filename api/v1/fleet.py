"""Routes of GPUs by the page."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import NodeNamed, page_of, reading
from api.views import gpu_view
from control.fleet import inventory, read
from control.fleet.read import GpuFilter
from muster import documents
from muster.domain.ids import NodeId
from muster.domain.principals import Permission, Principal
from muster.domain.states import Standing

router = APIRouter(tags=["fleet"])
Printable = Annotated[str | None, Query(max_length=128, pattern=r"^[ -~]+$")]
GPUS_A_PAGE = 1000


@router.get("/gpus", response_model=documents.GpuPage)
def list_gpus(
    request: Request,
    principal: Annotated[Principal, requires(Permission.GPU_READ)],
    standing: Annotated[
        list[Standing] | None, Query(max_length=10, description="its effective standing; may be repeated")
    ] = None,
    node: NodeNamed = None,
    model: Annotated[Printable, Query(description="a part of its model's name, in any case")] = None,
    below: Annotated[float | None, Query(ge=0, le=101, description="only scores under this")] = None,
    uuid: Annotated[Printable, Query(description="its beginning, its end, or both with .. between")] = None,
    cordoned: Annotated[
        bool | None, Query(description="only GPUs with a cordon of their own or of their node, or without one")
    ] = None,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Annotated[int, Query(ge=1, le=GPUS_A_PAGE, description="how many items a page holds")] = GPUS_A_PAGE,
) -> JSONResponse:
    """Return GPUs by node and slot; ``next_cursor`` is null on the last page."""
    dependencies = dependencies_of(request)
    standings = sorted(standing or [])
    asked = {"node": node, "model": model, "below": below, "uuid": uuid, "cordoned": cordoned}
    filters = {"path": "gpus", "standings": standings, **asked}
    wanted = GpuFilter(standings, node, model, below, uuid, cordoned)
    after = None
    if cursor is not None:
        node_id, slot = read_cursor(dependencies.secret_key, filters, cursor, length=2)
        after = (NodeId(node_id), int(slot))
    found = reading(
        dependencies.units,
        principal,
        inventory.READ,
        lambda unit: read.list_gpus(unit, wanted, after=after, limit=limit + 1),
    )
    page = page_of(
        found,
        limit,
        lambda each: gpu_view(each.gpu, each.override, is_cordoned=each.is_cordoned),
        lambda last: make_cursor(dependencies.secret_key, filters, [last.gpu.node_id, str(last.gpu.slot_index)]),
    )
    return JSONResponse(page)
