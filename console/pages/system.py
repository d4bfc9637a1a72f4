"""Page of the control plane: contact with hosts, lengths of queues, open scopes of the breaker."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.actions import act, reason_in
from console.forms import Form
from console.rendering import is_fragment, pages_of
from console.session import Viewer, changes, sees
from control.health import breakers
from control.system import system_figures
from muster.domain.principals import Permission

router = APIRouter()
BACK: Final = "/console/system"


@router.get("/system")
def system_page(request: Request, viewer: Annotated[Viewer, sees(Permission.METRICS_READ)]) -> Response:
    units = dependencies_of(request).units
    found = reading(units, viewer.principal, system_figures.READ, system_figures.figures)
    template = "parts/system_live.html" if is_fragment(request) else "system.html"
    return pages_of(request).page(request, template, viewer, place="system", found=found)


@router.post("/breakers/{name}/close")
def close_breaker(
    request: Request,
    viewer: Annotated[Viewer, changes(Permission.GPU_WRITE)],
    fields: Form,
    name: Annotated[str, Path(pattern=r"^[a-z_]{1,40}$")],
) -> Response:
    """Close one scope of the breaker: the rules may act there again."""
    reason, scope = reason_in(fields), fields.get("scope", "")
    return act(
        request,
        viewer,
        fields,
        breakers.CLOSE,
        lambda unit: breakers.close_scope(unit, name, scope, reason=reason),
        back_to=BACK,
        done="Closed: what the rules proposed may now be done.",
    )
