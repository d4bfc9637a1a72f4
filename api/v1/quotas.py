"""Quotas: how many GPUs a tenant may hold in a tier."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import reading, require_id
from api.views import quota_view
from muster import documents
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.strict import StrictModel, Text
from muster.services import quotas

router = APIRouter(tags=["tenants"])


class Ceiling(StrictModel):
    """No placement passes it. One below what is held stops nothing and opens an incident."""

    ceiling_gpus: Annotated[int, Field(ge=0, le=1_000_000)]
    reason: Annotated[Text, Field(min_length=1, max_length=500)]


@router.put(
    "/tenants/{tenant_id}/quotas/{tier}", response_model=documents.ChangedQuota, openapi_extra=described_by(Ceiling)
)
def set_quota(
    tenant_id: str,
    tier: str,
    principal: Annotated[Principal, requires(Permission.TENANT_WRITE)],
    wanted: Annotated[Ceiling, json_body(Ceiling)],
    change: Changing,
) -> JSONResponse:
    """Set the ceiling of one tenant in one tier."""
    found_id = TenantId(require_id("tenant", tenant_id))
    return change.run(
        principal,
        quotas.SET,
        lambda unit: quotas.set_ceiling(unit, found_id, tier, wanted.ceiling_gpus, reason=wanted.reason),
        lambda quota: Answer(quota_view(quota)),
    )


@router.get("/tenants/{tenant_id}/quotas")
def list_quotas(
    tenant_id: str, request: Request, principal: Annotated[Principal, requires(Permission.TENANT_READ)]
) -> documents.QuotaPage:
    """A tenant's ceilings; a tier that is not listed has none."""
    found_id = TenantId(require_id("tenant", tenant_id))
    units = dependencies_of(request).units
    found = reading(units, principal, quotas.READ, lambda unit: quotas.list_quotas(unit, found_id))
    return {"items": [quota_view(quota) for quota in found], "next_cursor": None}
