"""The rule of visibility: which rows a principal may read.

A principal of a tenant reads the rows of that tenant alone; an operator, an auditor and the control plane read all. A
row that a principal may not read is answered like one that does not exist. All read models use these functions and
compare no tenant themselves.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, or_, true
from sqlalchemy.orm import InstrumentedAttribute

from muster.domain.errors import ForbiddenError
from muster.domain.ids import TenantId
from muster.domain.principals import Principal


def may_see(principal: Principal, tenant_id: TenantId | None) -> bool:
    """Return whether the principal may read a row of the tenant; ``None`` is the tenant of a row that has none."""
    return principal.sees_all_tenants or principal.tenant_id == tenant_id


def visible_rows(principal: Principal, *tenant_ids: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Return the condition that one of the row's columns ``tenant_ids`` names a tenant that the principal may read."""
    if principal.sees_all_tenants:
        return true()
    return or_(*(column == principal.tenant_id for column in tenant_ids))


def only_tenant_of(principal: Principal) -> TenantId | None:
    """Return the one tenant whose rows the principal may read, for queries that take it as a parameter.

    ``None``: the principal may read the rows of all tenants.

    Raises:
        ForbiddenError: the principal belongs to no tenant and may not read the rows of all, as a node.
    """
    if principal.sees_all_tenants:
        return None
    if principal.tenant_id is None:
        raise ForbiddenError(f"the role {principal.role} reads the rows of no tenant")
    return principal.tenant_id


def visible_to_key(rows_where: Callable[[str], str], tenant_id: str) -> str:
    """Return the SQL of a query that checks the key ``k`` of its caller itself, under the same rule.

    ``rows_where`` gives the query for a condition; ``tenant_id`` is the column with a row's tenant. A key without a
    tenant reads all rows: the statement answers only keys whose role holds the permission, and every such role without
    a tenant reads all tenants.
    """
    of_all, of_tenant = rows_where("true"), rows_where(f"{tenant_id} = k.tenant_id")
    return f"CASE WHEN k.tenant_id IS NULL THEN ({of_all}) ELSE ({of_tenant}) END"
