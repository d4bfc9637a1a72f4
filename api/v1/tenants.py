"""Routes of tenants."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.lists import Cursor, ManyAPage, NamePart, PageRequest
from api.permissions import requires
from api.reading import PRINTABLE, reading, require_id
from api.views import residency_view, tenant_view
from control.core.paging import NameOrder
from control.tenants import read, residency, tenants
from control.tenants.read import TenantFilter
from muster import documents
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.residency import Residency, SiteNames, StoreNames
from muster.domain.strict import Name, StrictModel, Text

router = APIRouter(tags=["tenants"])


class NewTenant(StrictModel):
    name: Name


class TenantPlace(StrictModel):
    """Place of a tenant in the tree: at most 8 levels, and no circles."""

    parent_id: Text | None = None
    weight: Annotated[float, Field(ge=0.001, le=1_000_000, strict=False)] = 1.0
    reason: Annotated[Text, Field(min_length=1, max_length=500)]


class NewResidency(StrictModel):
    """Both parts at once; a null one is no restriction, and both null lift the rule."""

    sites: SiteNames | None = None
    stores: StoreNames | None = None
    reason: Annotated[Text, Field(min_length=1, max_length=500)]

    @property
    def rule(self) -> Residency:
        """The rule that it asks for."""
        sites = None if self.sites is None else frozenset(self.sites)
        return Residency(sites, None if self.stores is None else frozenset(self.stores))


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


@router.put(
    "/tenants/{tenant_id}/place", response_model=documents.ChangedTenant, openapi_extra=described_by(TenantPlace)
)
def place_tenant(
    tenant_id: str,
    principal: Annotated[Principal, requires(Permission.TENANT_WRITE)],
    wanted: Annotated[TenantPlace, json_body(TenantPlace)],
    change: Changing,
) -> JSONResponse:
    """Put a tenant, with all below it, under another one or at the top, and set its weight there."""
    found_id = TenantId(require_id("tenant", tenant_id))
    parent_id = None if wanted.parent_id is None else TenantId(wanted.parent_id)
    return change.run(
        principal,
        tenants.PLACE,
        lambda unit: tenants.place(unit, found_id, tenants.Place(parent_id, wanted.weight), reason=wanted.reason),
        lambda tenant: Answer(tenant_view(tenant)),
    )


@router.put(
    "/tenants/{tenant_id}/residency",
    response_model=documents.ChangedResidency,
    openapi_extra=described_by(NewResidency),
)
def set_residency(
    tenant_id: str,
    request: Request,
    principal: Annotated[Principal, requires(Permission.TENANT_WRITE)],
    wanted: Annotated[NewResidency, json_body(NewResidency)],
    change: Changing,
) -> JSONResponse:
    """Set where jobs of a tenant, and of all below it, may run and where their data may be. Running jobs continue.

    The answer says what is outside of the rule, and what to do about it; with `dry_run` before it holds.
    """
    found_id, store = TenantId(require_id("tenant", tenant_id)), dependencies_of(request).store_place
    return change.run(
        principal,
        residency.SET,
        lambda unit: residency.set_residency(unit, found_id, wanted.rule, store=store, reason=wanted.reason),
        lambda found: Answer(dict(residency_view(found))),
    )


@router.get("/tenants/{tenant_id}/residency")
def show_residency(
    tenant_id: str, request: Request, principal: Annotated[Principal, requires(Permission.TENANT_READ)]
) -> documents.TenantResidency:
    """Return a tenant's residency rule, with those above it, and what is outside of it now."""
    found_id, dependencies = TenantId(require_id("tenant", tenant_id)), dependencies_of(request)
    store = dependencies.store_place
    found = reading(
        dependencies.units,
        principal,
        residency.READ,
        lambda unit: residency.show_residency(unit, found_id, store=store),
    )
    return residency_view(found)


@router.get("/tenants")
def list_tenants(
    request: Request,
    principal: Annotated[Principal, requires(Permission.TENANT_READ)],
    name: NamePart = None,
    parent_id: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE)] = None,
    order: Annotated[NameOrder, Query()] = NameOrder.NAME,
    cursor: Cursor = None,
    limit: ManyAPage = read.MOST,
) -> documents.TenantPage:
    """Return tenants by name unless ``order`` says otherwise; a tenant sees itself."""
    wanted = TenantFilter(name, None if parent_id is None else TenantId(parent_id))
    return PageRequest(request, principal, read.TENANT_SORTS[order], cursor, limit).answer(
        tenants.READ,
        {"path": "tenants", "name": name, "parent_id": parent_id, "order": order, "who": principal.tenant_id},
        lambda unit, part: read.list_tenants(unit, wanted, part),
        tenant_view,
    )
