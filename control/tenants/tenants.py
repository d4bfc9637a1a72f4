"""Tenants: the customers whose jobs, keys and events stay apart."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, text

from control.core.records import record_of
from control.core.tenant_tree import tenancy
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.policy.guarantees import Rules, new_excess
from control.policy.policies import active_policy
from control.tenants.quotas import report_holdings
from control.tenants.read import TenantRecord
from muster.db.models import Quota, Tenant
from muster.db.queries import tenants as tree
from muster.domain.errors import ConflictError, NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission
from muster.identity import new_id
from scheduler.quota.tenancy import refusal_of_parent

CREATE: Final = declare_action("tenant.create")
READ: Final = declare_action("tenant.read")
PLACE: Final = declare_action("tenant.place")


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a tenant in the tree. ``parent_id`` None: at the top.

    ``weight``: of its share of the GPUs that are not guaranteed, among the tenants with the same parent.
    """

    parent_id: TenantId | None = None
    weight: float = 1.0


def create(unit: UnitOfWork, *, name: str) -> TenantRecord:
    """Create a tenant. Raises ``ConflictError`` when the name is taken."""
    unit.principal.require(Permission.TENANT_WRITE)
    if unit.session.scalar(select(Tenant.id).where(Tenant.name == name)) is not None:
        message = f"a tenant named {name} exists already"
        raise ConflictError(message)
    tenant = Tenant(id=TenantId(new_id("tenant")), name=name, created_at=unit.now)
    unit.session.add(tenant)
    unit.emit("tenant.created", "tenant", tenant.id, tenant_id=tenant.id, payload={"name": name})
    unit.audit("tenant.create", "tenant", tenant.id, tenant_id=tenant.id, detail={"name": name})
    unit.session.flush()
    return record_of(tenant, TenantRecord)


def place(unit: UnitOfWork, tenant_id: TenantId, wanted: Place, *, reason: str) -> TenantRecord:
    """Put a tenant, with all below it, under another or at the top, and set its weight there.

    Nothing that runs is stopped; where one above holds more than its limit by then, an incident opens.

    Raises:
        NotFoundError: there is no such tenant.
        ValidationFailedError: there is no such parent, or the tree would have a circle, too many levels, or more
            guarantees than the fleet has.
    """
    unit.principal.require(Permission.TENANT_WRITE)
    if not unit.dry_run:
        tree.lock_guarantees(unit.session)
    unit.session.execute(text("LOCK TABLE tenants IN SHARE ROW EXCLUSIVE MODE"))  # two moves could make a circle
    tenant = unit.session.get(Tenant, tenant_id, populate_existing=True)
    if tenant is None:
        raise NotFoundError
    if wanted.parent_id is not None:
        _require_parent(unit, tenant_id, wanted.parent_id)
    tree.lock_below(unit.session, tenant_id)
    concerned = [*tree.below(unit.session, tenant_id), *tree.line(unit.session, tenant_id)]
    before = {"parent_id": tenant.parent_id, "weight": tenant.weight}
    guarantees = Rules(active_policy(unit.session), tenancy(unit.session))
    tenant.parent_id, tenant.weight = wanted.parent_id, wanted.weight
    unit.session.flush()
    _require_in_fleet(unit, guarantees)
    concerned += tree.line(unit.session, tenant_id)
    detail = {
        "from": before,
        "to": {"parent_id": wanted.parent_id, "weight": wanted.weight},
        "reason": reason,
    }
    unit.emit("tenant.placed", "tenant", tenant_id, tenant_id=tenant_id, payload=detail)
    unit.audit("tenant.place", "tenant", tenant_id, tenant_id=tenant_id, reason=reason, detail=detail)
    unit.wake(SCHEDULER_CHANNEL)
    rows = select(Quota).where(Quota.tenant_id.in_(concerned)).order_by(Quota.tenant_id, Quota.tier)
    for row in unit.session.scalars(rows.with_for_update(key_share=True)).all():
        report_holdings(unit, row, tree.assigned_in_tier(unit.session, row.tenant_id, row.tier))
    return record_of(tenant, TenantRecord)


def _require_parent(unit: UnitOfWork, tenant_id: TenantId, parent_id: TenantId) -> None:
    parents = tree.parents(unit.session)
    if parent_id not in parents:
        raise ValidationFailedError.at("/parent_id", "unknown_tenant", "there is no such tenant")
    refusal = refusal_of_parent(parents, tenant_id, parent_id)
    if refusal is not None:
        raise ValidationFailedError.at("/parent_id", "no_tree", refusal)


def _require_in_fleet(unit: UnitOfWork, before: Rules) -> None:
    """Refuse a place with which guarantees add up to more than the fleet has: a parent's no longer contains them."""
    excess = new_excess(unit.session, before, Rules(before.policy, tenancy(unit.session)))
    if excess is not None:
        detail = f"there, {excess.words}: lower guarantees by {excess.beyond} first, or add hosts"
        raise ValidationFailedError.at("/parent_id", "beyond_fleet", detail)
