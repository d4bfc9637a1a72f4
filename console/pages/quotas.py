"""Page of quotas: limits and GPUs of each tenant, tier by tier, in the order of the tree."""

from typing import Annotated, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from control.tenants import quota_views
from muster.domain.principals import Permission

router = APIRouter()
SHOWN: Final = 500


@router.get("/quotas")
def quotas_page(request: Request, viewer: Annotated[Viewer, sees(Permission.TENANT_READ)]) -> Response:
    found = reading(dependencies_of(request).units, viewer.principal, quota_views.READ, quota_views.quota_lines)
    template = "parts/quota_table.html" if is_fragment(request) else "quotas.html"
    return pages_of(request).page(request, template, viewer, place="jobs", lines=found[:SHOWN], num_lines=len(found))
