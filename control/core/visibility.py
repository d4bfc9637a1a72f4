"""Which tenants' rows a principal may see."""

from muster.domain.ids import TenantId
from muster.domain.principals import Principal


def may_see(principal: Principal, tenant_id: TenantId) -> bool:
    return principal.sees_all_tenants or principal.tenant_id == tenant_id
