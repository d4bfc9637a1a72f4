"""Quotas as people read them: for each tenant of the tree, its limits and its GPUs in a tier."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from control.core.tenant_tree import tenancy
from control.core.unit_of_work import UnitOfWork, declare_action
from control.tenants.read import TenantRecord, list_tenants
from muster.db.queries import tenants as trees
from muster.domain.ids import TenantId
from muster.domain.principals import Permission
from scheduler.quota.tenancy import Holdings, Quota

READ: Final = declare_action("quota.view")
_NO_QUOTA: Final = Quota()


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """One tenant and tier. ``depth``: number of tenants above it. ``assigned_gpus``: by the tenant and all below it."""

    tenant: TenantRecord
    depth: int
    tier: str
    quota: Quota
    assigned_gpus: int

    @property
    def most_gpus(self) -> int | None:
        """The most GPUs that the quota allows; None: no limit."""
        return self.quota.most

    @property
    def borrowed_gpus(self) -> int:
        """GPUs held beyond the guarantee."""
        return max(self.assigned_gpus - self.quota.guaranteed, 0)

    @property
    def is_over(self) -> bool:
        return self.most_gpus is not None and self.assigned_gpus > self.most_gpus


def quota_lines(unit: UnitOfWork) -> list[QuotaLine]:
    """Return lines of each tenant that the reader may know with a quota or GPUs, in the tree's order, by tier."""
    unit.principal.require(Permission.TENANT_READ)
    shown = list_tenants(unit)
    holdings = Holdings(tenancy(unit.session))
    own = trees.assigned_by_tier(unit.session)
    for (tenant_id, tier), num_gpus in own.items():
        holdings.add(tenant_id, tier, num_gpus)
    quotas = holdings.tenancy.quotas
    tiers = sorted({tier for _, tier in (*quotas, *own)})
    return [
        QuotaLine(tenant, depth, tier, quotas.get((tenant.id, tier), _NO_QUOTA), holdings.of(tenant.id, tier))
        for tenant, depth in _in_tree_order(shown)
        for tier in tiers
        if (tenant.id, tier) in quotas or holdings.of(tenant.id, tier)
    ]


def _in_tree_order(shown: Sequence[TenantRecord]) -> Iterator[tuple[TenantRecord, int]]:
    """Yield each tenant below its parent, by name; one whose parent the reader may not know is at the top."""
    known = {tenant.id for tenant in shown}
    below: dict[TenantId | None, list[TenantRecord]] = defaultdict(list)
    for tenant in sorted(shown, key=lambda one: one.name, reverse=True):
        below[tenant.parent_id if tenant.parent_id in known else None].append(tenant)
    stack = [(tenant, 0) for tenant in below[None]]
    while stack:
        tenant, depth = stack.pop()
        yield tenant, depth
        stack += [(each, depth + 1) for each in below[tenant.id]]
