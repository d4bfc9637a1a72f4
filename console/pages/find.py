"""One field that finds a GPU, a node or a job by its id, its name or a part of it."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.rendering import pages_of
from console.session import Viewer, sees
from control.fleet.search import READ, search
from muster.domain.principals import Permission

router = APIRouter()
MOST: Final = 20


@router.get("/find")
def find_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.JOB_READ)],
    q: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Redirect to the one thing that is found, or list the things that may be meant."""
    found = reading(dependencies_of(request).units, viewer.principal, READ, lambda unit: search(unit, q, limit=MOST))
    if len(found) == 1:
        return RedirectResponse(f"/console/{found[0].kind}s/{found[0].id}", status_code=303)
    return pages_of(request).page(request, "find.html", viewer, place="", found=found, asked=q)
