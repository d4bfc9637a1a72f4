"""Tenants: the customers whose jobs, keys and events stay apart."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select

from muster.db.models import Tenant
from muster.domain.errors import ConflictError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission
from muster.identity import new_id
from muster.services.unit_of_work import UnitOfWork, declare_action

CREATE: Final = declare_action("tenant.create")
READ: Final = declare_action("tenant.read")


def create(unit: UnitOfWork, *, name: str) -> Tenant:
    """Raises ``ConflictError`` when the name is taken."""
    unit.principal.require(Permission.TENANT_WRITE)
    if unit.session.scalar(select(Tenant.id).where(Tenant.name == name)) is not None:
        message = f"a tenant named {name} exists already"
        raise ConflictError(message)
    tenant = Tenant(id=TenantId(new_id("tenant")), name=name, created_at=unit.now)
    unit.session.add(tenant)
    unit.emit("tenant.created", "tenant", tenant.id, tenant_id=tenant.id, payload={"name": name})
    unit.audit("tenant.create", "tenant", tenant.id, tenant_id=tenant.id, detail={"name": name})
    unit.session.flush()
    return tenant


def list_tenants(unit: UnitOfWork) -> Sequence[Tenant]:
    """Every tenant for an operator; a tenant sees itself."""
    unit.principal.require(Permission.TENANT_READ)
    query = select(Tenant).order_by(Tenant.name).limit(1000)
    if not unit.principal.sees_all_tenants:
        query = query.where(Tenant.id == unit.principal.tenant_id)
    return unit.session.scalars(query).all()
