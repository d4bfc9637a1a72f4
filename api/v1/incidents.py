"""Routes of incidents: conditions that need an operator, and closing them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.incident_views import incident_view
from api.lists import Cursor, PageRequest, Within
from api.permissions import requires
from api.reading import PRINTABLE, Limit, reading, require_id
from control.incidents import incidents, read
from control.incidents.read import IncidentFilter
from muster import documents
from muster.domain.evidence.incidents import IncidentKind, IncidentState
from muster.domain.principals import Permission, Principal
from muster.domain.strict import StrictModel, Text

router = APIRouter(tags=["fleet"])
Reader = Annotated[Principal, requires(Permission.INCIDENT_READ)]


class IncidentClosing(StrictModel):
    reason: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]


@router.get("/incidents")
def list_incidents(
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    state: Annotated[IncidentState | None, Query()] = None,
    kind: Annotated[list[IncidentKind] | None, Query(max_length=10)] = None,
    subject: Annotated[str | None, Query(max_length=256, pattern=PRINTABLE)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.IncidentPage:
    """Return incidents, the newest first unless ``order`` says otherwise.

    ``since`` and ``until`` are about the time at which they were opened.
    """
    kinds = sorted(kind or [])
    wanted = IncidentFilter(state, kinds, subject, within.span)
    return PageRequest(request, principal, read.SORTS[within.order], cursor, limit).answer(
        read.READ,
        {"path": "incidents", "state": state, "kinds": kinds, "subject": subject},
        lambda unit, part: read.list_incidents(unit, wanted, part),
        incident_view,
        newer=within.conditions,
    )


@router.get("/incidents/{incident_id}")
def show_incident(incident_id: str, request: Request, principal: Reader) -> documents.Incident:
    """Return one incident with all facts of its kind."""
    found_id = require_id("incident", incident_id)
    units = dependencies_of(request).units
    return incident_view(reading(units, principal, read.READ, lambda unit: read.get(unit, found_id)))


@router.post(
    "/incidents/{incident_id}/close",
    response_model=documents.ChangedIncident,
    openapi_extra=described_by(IncidentClosing),
)
def close_incident(
    incident_id: str,
    principal: Annotated[Principal, requires(Permission.INCIDENT_WRITE)],
    requested: Annotated[IncidentClosing, json_body(IncidentClosing)],
    change: Changing,
) -> JSONResponse:
    """Close an incident that was handled; twice is the same as once.

    One that a rule closes is refused, with the way to close it.
    """
    found_id = require_id("incident", incident_id)
    return change.run(
        principal,
        incidents.CLOSE,
        lambda unit: incidents.close(unit, found_id, reason=requested.reason),
        lambda row: Answer(incident_view(row)),
    )
