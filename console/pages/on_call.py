"""Page of the person on call: what fails now, what failed lately, and what would be lost."""

from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from control.core.paging import Part
from control.incidents.read import READ as READ_INCIDENTS
from control.incidents.read import IncidentFilter, list_incidents
from control.jobs import failures
from muster.domain.evidence.incidents import IncidentState
from muster.domain.principals import Permission

router = APIRouter()
_SPANS: Final = {"1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": timedelta(days=1), "7d": timedelta(days=7)}
USUAL: Final = "24h"
ROWS: Final = 12
_INCIDENTS: Final = 8


@router.get("/on-call")
def on_call_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.JOB_READ)],
    span: Annotated[str, Query(max_length=8)] = USUAL,
) -> Response:
    """Show what went wrong within a span; a tenant sees its own jobs."""
    units = dependencies_of(request).units
    chosen = span if span in _SPANS else USUAL
    found = reading(
        units,
        viewer.principal,
        failures.READ,
        lambda unit: failures.failures_since(unit, unit.now - _SPANS[chosen], limit=ROWS),
    )
    incidents = None
    if viewer.may(Permission.INCIDENT_READ):
        incidents = reading(
            units,
            viewer.principal,
            READ_INCIDENTS,
            lambda unit: list_incidents(unit, IncidentFilter(IncidentState.OPEN), Part(_INCIDENTS)),
        )
    template = "parts/on_call.html" if is_fragment(request) else "on_call.html"
    return pages_of(request).page(
        request, template, viewer, place="on_call", found=found, incidents=incidents, chosen=chosen, spans=list(_SPANS)
    )
