"""Conditions on lists of keys and of persons."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query

from api.lists import NamePart, OfTenant
from control.tenants.read import AccessFilter
from muster.domain.ids import TenantId
from muster.domain.principals import Role


@dataclass(frozen=True, slots=True)
class AccessConditions:
    """The parameters of a list of keys or persons."""

    name: NamePart = None
    role: Annotated[list[Role] | None, Query(max_length=8)] = None
    tenant_id: OfTenant = None
    active: Annotated[bool | None, Query()] = None

    @property
    def wanted(self) -> AccessFilter:
        """The filter."""
        of_tenant = None if self.tenant_id is None else TenantId(self.tenant_id)
        return AccessFilter(self.name, sorted(self.role or []), of_tenant, self.active)

    @property
    def of_cursor(self) -> dict[str, Any]:
        """What a cursor of the list is bound to."""
        roles = sorted(self.role or [])
        return {"name": self.name, "roles": roles, "tenant_id": self.tenant_id, "active": self.active}
