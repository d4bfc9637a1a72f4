"""Page of quotas: limits and GPUs of each tenant, tier by tier, in the order of the tree."""

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from control.core.unit_of_work import UnitOfWork
from control.tenants import job_limits, quota_views
from control.tenants.job_limits import TenantLimitsInUse
from control.tenants.quota_views import QuotaLine
from muster.domain.principals import Permission

router = APIRouter()
SHOWN: Final = 500


@router.get("/quotas")
def quotas_page(request: Request, viewer: Annotated[Viewer, sees(Permission.TENANT_READ)]) -> Response:
    def read(unit: UnitOfWork) -> tuple[list[QuotaLine], Sequence[TenantLimitsInUse]]:
        return quota_views.quota_lines(unit), job_limits.limits_of_all(unit)

    found, limits = reading(dependencies_of(request).units, viewer.principal, quota_views.READ, read)
    template = "parts/quota_table.html" if is_fragment(request) else "quotas.html"
    return pages_of(request).page(
        request,
        template,
        viewer,
        place="jobs",
        lines=found[:SHOWN],
        num_lines=len(found),
        limits=limits[:SHOWN],
        num_limits=len(limits),
    )
