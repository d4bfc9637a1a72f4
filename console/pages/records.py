"""Pages of records: reclaims, incidents, events and the audit, each by the page, the newest first."""

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console import job_texts
from console.actions import act, reason_in
from console.forms import Form
from console.paging import page_of, place_in
from console.rendering import is_fragment, pages_of
from console.session import Viewer, changes, sees
from control.core import audit
from control.core.audit import AuditFilter
from control.core.events import READ as READ_EVENTS
from control.core.events import EventFilter, EventRecord, list_events
from control.core.paging import Part, TimeOrder
from control.core.unit_of_work import UnitOfWork
from control.incidents import incidents
from control.incidents.read import READ as READ_INCIDENTS
from control.incidents.read import IncidentFilter, IncidentRecord, list_incidents
from control.reclaim import read as reclaims
from control.reclaim.read import ReclaimFilter, ReclaimView
from muster.domain.evidence.incidents import IncidentState
from muster.domain.principals import Permission
from muster.domain.states import ReclaimState

router = APIRouter()
A_PAGE: Final = 50
Cursor = Annotated[str | None, Query(max_length=1024)]
Text = Annotated[str, Query(max_length=256)]


@router.get("/reclaims")
def reclaims_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.JOB_READ)],
    state: Text = "",
    cursor: Cursor = None,
) -> Response:
    """Show reclaims; open ones count down to their deadline."""
    dependencies = dependencies_of(request)
    states = [ReclaimState(state)] if state in set(ReclaimState) else []
    filters = {"state": state if states else ""}
    place = place_in(dependencies.secret_key, filters, cursor, length=2)

    def read(unit: UnitOfWork) -> list[ReclaimView]:
        return reclaims.list_reclaims(unit, ReclaimFilter(states), Part(A_PAGE + 1, place))

    found = reading(dependencies.units, viewer.principal, reclaims.READ, read)
    page = page_of(
        dependencies.secret_key,
        filters,
        found,
        size=A_PAGE,
        path="/console/reclaims",
        place=reclaims.SORTS[TimeOrder.NEWEST].position_of,
    )
    template = "parts/reclaims.html" if is_fragment(request) else "reclaims.html"
    return pages_of(request).page(
        request, template, viewer, place="reclaims", page=page, states=list(ReclaimState), chosen=state
    )


@router.get("/incidents")
def incidents_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.INCIDENT_READ)],
    state: Text = "",
    cursor: Cursor = None,
) -> Response:
    dependencies = dependencies_of(request)
    asked = IncidentState(state) if state in set(IncidentState) else None
    filters = {"state": "" if asked is None else asked.value}
    place = place_in(dependencies.secret_key, filters, cursor, length=1)

    def read(unit: UnitOfWork) -> Sequence[IncidentRecord]:
        return list_incidents(unit, IncidentFilter(asked), Part(A_PAGE + 1, place))

    found = reading(dependencies.units, viewer.principal, READ_INCIDENTS, read)
    page = page_of(
        dependencies.secret_key,
        filters,
        found,
        size=A_PAGE,
        path="/console/incidents",
        place=lambda last: [last.id],
    )
    template = "parts/incidents.html" if is_fragment(request) else "incidents.html"
    return pages_of(request).page(
        request, template, viewer, place="incidents", page=page, chosen=filters["state"], states=list(IncidentState)
    )


@router.post("/incidents/{incident_id}/close")
def close_incident(
    request: Request,
    viewer: Annotated[Viewer, changes(Permission.INCIDENT_WRITE)],
    fields: Form,
    incident_id: Annotated[str, Path(pattern=r"^inc_[0-9a-z]{26}$")],
) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        incidents.CLOSE,
        lambda unit: incidents.close(unit, incident_id, reason=reason),
        back_to="/console/incidents",
        done="The incident is closed.",
    )


@router.get("/events")
def events_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.EVENT_READ)],
    kind: Text = "",
    subject: Text = "",
    cursor: Cursor = None,
) -> Response:
    dependencies = dependencies_of(request)
    filters = {"kind": kind.strip(), "subject": subject.strip()}
    place = place_in(dependencies.secret_key, filters, cursor, length=1)
    wanted = EventFilter(kind=filters["kind"] or None, subject_id=filters["subject"] or None)

    def read(unit: UnitOfWork) -> Sequence[EventRecord]:
        return list_events(unit, wanted, Part(A_PAGE + 1, place))

    found = reading(dependencies.units, viewer.principal, READ_EVENTS, read)
    page = page_of(
        dependencies.secret_key,
        filters,
        found,
        size=A_PAGE,
        path="/console/events",
        place=lambda last: [str(last.position)],
    )
    template = "parts/events.html" if is_fragment(request) else "events.html"
    return pages_of(request).page(
        request,
        template,
        viewer,
        place="events",
        page=page,
        kind=filters["kind"],
        subject=filters["subject"],
        payload_texts=job_texts.reported_by,
    )


@router.get("/audit")
def audit_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.AUDIT_READ)],
    actor: Text = "",
    action: Text = "",
    subject: Text = "",
    cursor: Cursor = None,
) -> Response:
    dependencies = dependencies_of(request)
    filters = {"actor": actor.strip(), "action": action.strip(), "subject": subject.strip()}
    place = place_in(dependencies.secret_key, filters, cursor, length=1)
    wanted = AuditFilter(
        actor=filters["actor"] or None,
        actions=[filters["action"]] if filters["action"] else (),
        subject_id=filters["subject"] or None,
    )

    def read(unit: UnitOfWork) -> Sequence[audit.ReadEntry]:
        return audit.list_entries(unit, wanted, Part(A_PAGE + 1, place))

    found = reading(dependencies.units, viewer.principal, audit.READ, read)
    page = page_of(
        dependencies.secret_key,
        filters,
        found,
        size=A_PAGE,
        path="/console/audit",
        place=lambda last: [str(last.entry.serial)],
    )
    return pages_of(request).page(
        request, "audit.html", viewer, place="audit", page=page, actor=actor, action=action, subject=subject
    )
