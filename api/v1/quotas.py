"""Routes of quotas: how many GPUs a tenant may hold in a tier."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.lists import Cursor, OfTenant, PageRequest
from api.permissions import requires
from api.reading import Limit, reading, require_id
from api.views import quota_view
from control.tenants import job_limits, quotas
from control.tenants.quotas import QuotaFilter
from muster import documents
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Name, StrictModel, Text
from scheduler.quota.tenancy import Quota

router = APIRouter(tags=["tenants"])


Gpus = Annotated[int, Field(ge=0, le=1_000_000)]


class NewQuota(StrictModel):
    """All three numbers at once; a missing one is no limit, and no guarantee.

    No placement exceeds a limit. One below the held GPUs stops nothing and opens an incident.
    """

    guaranteed_gpus: Gpus = 0
    borrowable_gpus: Gpus | None = None
    ceiling_gpus: Gpus | None = None
    reason: Annotated[Text, Field(min_length=1, max_length=500)]


@router.put(
    "/tenants/{tenant_id}/quotas/{tier}", response_model=documents.ChangedQuota, openapi_extra=described_by(NewQuota)
)
def set_quota(
    tenant_id: str,
    tier: str,
    principal: Annotated[Principal, requires(Permission.TENANT_WRITE)],
    wanted: Annotated[NewQuota, json_body(NewQuota)],
    change: Changing,
) -> JSONResponse:
    """Set how many GPUs one tenant, with all below it, may hold in one tier."""
    found_id = TenantId(require_id("tenant", tenant_id))
    quota = Quota(wanted.guaranteed_gpus, wanted.borrowable_gpus, wanted.ceiling_gpus)
    return change.run(
        principal,
        quotas.SET,
        lambda unit: quotas.set_quota(unit, found_id, tier, quota, reason=wanted.reason),
        lambda found: Answer(quota_view(found)),
    )


@router.get("/quotas")
def list_all_quotas(
    request: Request,
    principal: Annotated[Principal, requires(Permission.TENANT_READ)],
    tenant_id: OfTenant = None,
    tier: Annotated[Name | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.QuotaPage:
    """Return the quotas of all tenants that the caller sees, by tenant and tier."""
    wanted = QuotaFilter(None if tenant_id is None else TenantId(tenant_id), tier)
    return PageRequest(request, principal, quotas.BY_TENANT, cursor, limit).answer(
        quotas.READ,
        {"path": "quotas", "tenant_id": tenant_id, "tier": tier, "who": principal.tenant_id},
        lambda unit, part: quotas.list_all_quotas(unit, wanted, part),
        quota_view,
    )


@router.get("/tenants/{tenant_id}/quotas")
def list_quotas(
    tenant_id: str, request: Request, principal: Annotated[Principal, requires(Permission.TENANT_READ)]
) -> documents.QuotaPage:
    """Return a tenant's quotas; a tier that is not listed has none: no guarantee and no limit."""
    found_id = TenantId(require_id("tenant", tenant_id))
    units = dependencies_of(request).units
    found = reading(units, principal, quotas.READ, lambda unit: quotas.list_quotas(unit, found_id))
    return {"items": [quota_view(quota) for quota in found], "next_cursor": None}


@router.get("/tenants/{tenant_id}/limits")
def list_tenant_limits(
    tenant_id: str, request: Request, principal: Annotated[Principal, requires(Permission.TENANT_READ)]
) -> documents.TenantLimitPage:
    """List how much one tenant has submitted, and how much it may: the policy's `limits.tenant`."""
    found_id, units = TenantId(require_id("tenant", tenant_id)), dependencies_of(request).units
    found = reading(units, principal, job_limits.READ, lambda unit: job_limits.limits_of(unit, found_id))
    items: list[documents.TenantLimit] = [{"field": one.field, "used": one.used, "most": one.most} for one in found]
    return {"items": items, "next_cursor": None}
