"""Pages of the fleet: what needs attention, every GPU on one live map, and the GPUs as a table."""

import gzip
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from api.dependencies import dependencies_of
from api.reading import reading
from api.streams import sse
from console.capacity_tables import groups_table
from console.live_map import LiveMaps, encoded
from console.pages import start
from console.pages.capacity import paths_of
from console.ranges import Range, Stretch
from console.rendering import is_fragment, pages_of, takes_gzip
from console.session import Viewer, sees
from console.tables import TablePage
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.fleet.fault_timeline import READ, fault_timelines
from control.fleet.fleet_map import FleetMap, fleet_map, gpu_at
from control.health import rollup_reads
from control.health.rollup_reads import RollupFilter, list_rollups
from muster.domain.gpu.rollup_groups import GroupKind
from muster.domain.principals import Permission

router = APIRouter()
FAULTS_SHOWN: Final = 6
RACKS_SHOWN: Final = 6
MORE_FAULTS_SHOWN: Final = 24  # each takes some queries of its own, again at each change that the page shows
JobReader = Annotated[Viewer, sees(Permission.JOB_READ)]


@router.get("")
def fleet_page(
    request: Request, viewer: JobReader, faults: Annotated[str, Query(pattern="^(newest|more)$")] = "newest"
) -> Response:
    """Show the fleet and its newest faults. ``faults=more`` shows more of them."""
    units = dependencies_of(request).units
    limit = MORE_FAULTS_SHOWN if faults == "more" else FAULTS_SHOWN
    timelines = reading(units, viewer.principal, READ, lambda unit: fault_timelines(unit, limit=limit + 1))
    shown: dict[str, Any] = {"fault_timelines": timelines[:limit], "faults": faults, "has_more": len(timelines) > limit}
    if is_fragment(request):  # a live page requests it after each change: without the map, which it does not show
        return pages_of(request).page(request, "parts/fault_timelines.html", viewer, place="fleet", **shown)
    counts = _counts(fleet_map(units, viewer.principal))
    shown |= _racks(request, viewer) if viewer.may(Permission.GPU_READ) else {"racks": None}
    return pages_of(request).page(
        request, "fleet.html", viewer, place="fleet", **counts, **shown, **_first_steps(request, viewer)
    )


def _racks(request: Request, viewer: Viewer) -> dict[str, Any]:
    """Return the worst racks with the last day of each."""
    kind, day = GroupKind.RACK, Range.DAY

    def read(unit: UnitOfWork) -> dict[str, Any]:
        found = list_rollups(unit, RollupFilter(kind), Part(RACKS_SHOWN + 1))
        racks = found[:RACKS_SHOWN]
        table = groups_table(kind, f"Last {day.value}")
        return {
            "racks": TablePage(table, table.own, racks, len(racks)),
            "paths": paths_of(unit, racks, Stretch(unit.now - day.length, unit.now)),
            "has_more_racks": len(found) > RACKS_SHOWN,
        }

    return reading(dependencies_of(request).units, viewer.principal, rollup_reads.READ, read)


def _first_steps(request: Request, viewer: Viewer) -> dict[str, Any]:
    """Return a tenant's first steps as long as it has no job."""
    steps = start.steps_of(request, viewer) if viewer.principal.tenant_id is not None else None
    return {"steps": None} if steps is None or steps.job is not None else start.context_of(request, steps)


@router.get("/fleet/map")
async def fleet_bytes(request: Request, viewer: JobReader) -> Response:
    """Return the map's columns as one binary document; its stream continues from its mark."""
    fleet, mark = await _maps(request).current(viewer.principal)
    content = await run_in_threadpool(_packed, fleet, mark, is_compressed=takes_gzip(request))
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding, Cookie"} if takes_gzip(request) else None
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.get("/fleet/stream")
async def fleet_stream(
    request: Request, viewer: JobReader, mark: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    """Stream the cells that change as server-sent events. ``Last-Event-ID`` has priority over ``mark``."""
    return sse(
        request,
        viewer.principal,
        _maps(request).stream(viewer.principal, request.headers.get("last-event-id", mark)[:64]),
    )


@router.get("/fleet/at/{node}/{place}")
def place_on_map(
    request: Request, viewer: JobReader, node: str, place: Annotated[int, Path(ge=0, le=10_000)]
) -> Response:
    """Redirect from a chosen cell to its GPU's page."""
    uuid = gpu_at(dependencies_of(request).units, viewer.principal, node, place)
    return RedirectResponse(f"/console/gpus/{uuid}", status_code=303)


def _packed(fleet: FleetMap, mark: str, *, is_compressed: bool) -> bytes:
    content = encoded(fleet, mark)
    return gzip.compress(content, 4, mtime=0) if is_compressed else content


def _counts(fleet: FleetMap) -> dict[str, Any]:
    return {
        "counts": {standing.value: number for standing, number in fleet.count().items()},
        "num_cordoned": fleet.count_cordoned(),
        "num_gpus": fleet.num_gpus,
        "num_nodes": len(fleet.nodes),
        "is_simulated": any(node.is_simulated for node in fleet.nodes),
    }


def _maps(request: Request) -> LiveMaps:
    maps: LiveMaps = request.app.state.live_maps
    return maps
