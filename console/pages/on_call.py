"""Page of the person on call: what fails now, what failed lately, and what would be lost."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from console.annotations import marks_in
from console.figure_charts import chart_of, compared
from console.measure_tiles import TileGroup
from console.on_call_tiles import SATURATION, tiles_of_counts, tiles_of_saturation
from console.ranges import RECENT_RANGES, Shown
from console.rendering import is_fragment, pages_of
from console.session import Viewer, read_at_once, sees
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.incidents.read import IncidentFilter, list_incidents
from control.jobs import failures
from control.jobs.newest_faults import newest_faults
from muster.domain.evidence.incidents import IncidentState
from muster.domain.principals import Permission

router = APIRouter()
ROWS: Final = 12
_INCIDENTS: Final = 8
_CHARTED: Final = ("job_success", "requeue_rate", "gpu_utilisation", "collective_share")


Chosen = Annotated[Shown, Depends()]
Reader = Annotated[Viewer, sees(Permission.JOB_READ)]


@router.get("/on-call")
def on_call_page(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Show what went wrong within a stretch of time; a tenant sees its own jobs."""
    shown = read_at_once(request, viewer, failures.READ, lambda unit: _read(unit, chosen))
    template = "parts/on_call.html" if is_fragment(request) else "on_call.html"
    return pages_of(request).page(
        request, template, viewer, place="on_call", chosen=chosen, ranges=RECENT_RANGES, **shown
    )


@router.get("/on-call.json")
def on_call_charts(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Return success, restarts and saturation over time for the page's charts."""

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)
        marks = marks_in(unit, shown)
        every = [compared(unit, name, shown, with_before=chosen.compare) for name in _CHARTED]
        return {"charts": [chart_of(each, marks) for each in every]}

    return JSONResponse(read_at_once(request, viewer, failures.READ, read))


def _read(unit: UnitOfWork, chosen: Shown) -> dict[str, Any]:
    shown = chosen.stretch(unit.now)
    now, before = shown.span, shown.before.span
    incidents = None
    if unit.principal.may(Permission.INCIDENT_READ):
        incidents = list_incidents(unit, IncidentFilter(IncidentState.OPEN), Part(_INCIDENTS))
    counts = failures.counts_in(unit, now)
    saturation = [compared(unit, name, shown, is_whole=True) for name in SATURATION]
    groups: list[TileGroup] = [
        tiles_of_counts(counts, failures.counts_in(unit, before), chosen),
        tiles_of_saturation(saturation, chosen),
    ]
    return {
        "found": failures.failures_in(unit, now, limit=ROWS),
        "newest": newest_faults(unit, now, limit=ROWS),
        "incidents": incidents,
        "groups": groups,
    }
