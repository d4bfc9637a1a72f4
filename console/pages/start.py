"""Page of a tenant's first steps, with the commands for this control plane. Until its first job it is on top of all."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.pages.install import address_of
from console.rendering import pages_of
from console.served_wheels import BASE, CLIENT, ServedWheels
from console.session import Viewer, sees
from control.tenants import first_steps
from control.tenants.first_steps import FirstSteps
from muster.domain.principals import Permission

router = APIRouter()


@router.get("/start")
def start_page(request: Request, viewer: Annotated[Viewer, sees(Permission.JOB_READ)]) -> Response:
    """Show the three steps of a tenant; a person of no tenant is redirected to the fleet."""
    steps = steps_of(request, viewer)
    if steps is None:
        return RedirectResponse("/console", status_code=303)
    return pages_of(request).page(request, "start.html", viewer, place="start", **context_of(request, steps))


def steps_of(request: Request, viewer: Viewer) -> FirstSteps | None:
    units = dependencies_of(request).units
    return reading(units, viewer.principal, first_steps.READ, first_steps.steps_of)


def context_of(request: Request, steps: FirstSteps) -> dict[str, Any]:
    """Return what the list of steps needs."""
    wheels: ServedWheels = request.app.state.wheels
    return {
        "steps": steps,
        "address": address_of(request),
        "has_wheels": {BASE, CLIENT} <= wheels.by_project().keys(),
        "has_store": dependencies_of(request).store is not None,
    }
