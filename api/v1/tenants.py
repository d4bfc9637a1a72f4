"""Tenants."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import reading
from api.views import tenant_view
from muster import documents
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Name, StrictModel
from muster.services import tenants

router = APIRouter(tags=["tenants"])


class NewTenant(StrictModel):
    name: Name


@router.post("/tenants", response_model=documents.ChangedTenant, status_code=201, openapi_extra=described_by(NewTenant))
def create_tenant(
    principal: Annotated[Principal, requires(Permission.TENANT_WRITE)],
    wanted: Annotated[NewTenant, json_body(NewTenant)],
    change: Changing,
) -> JSONResponse:
    return change.run(
        principal,
        tenants.CREATE,
        lambda unit: tenants.create(unit, name=wanted.name),
        lambda tenant: Answer(tenant_view(tenant), 201),
    )


@router.get("/tenants")
def list_tenants(
    request: Request, principal: Annotated[Principal, requires(Permission.TENANT_READ)]
) -> documents.TenantPage:
    """Every tenant for an operator; a tenant sees itself."""
    found = reading(dependencies_of(request).units, principal, tenants.READ, tenants.list_tenants)
    return {"items": [tenant_view(tenant) for tenant in found], "next_cursor": None}
