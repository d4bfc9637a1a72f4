"""Page of the network between racks, as hosts that probe each other reported it: the worst pairs first."""

from typing import Annotated, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.rendering import pages_of
from console.session import Viewer, sees
from control.hosts import pair_probes
from muster.domain.principals import Permission

router = APIRouter()
SHOWN: Final = 100
HOURS: Final = 1
"""Time in hours of the shown results: four rounds of probes."""


@router.get("/rack-pairs")
def rack_pairs_page(request: Request, viewer: Annotated[Viewer, sees(Permission.NODE_READ)]) -> Response:
    found = reading(
        dependencies_of(request).units,
        viewer.principal,
        pair_probes.READ,
        lambda unit: pair_probes.rack_pairs(unit, hours=HOURS, limit=SHOWN),
    )
    return pages_of(request).page(request, "rack_pairs.html", viewer, place="fleet", pairs=found, shown=SHOWN)
