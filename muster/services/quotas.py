"""Quotas: a tenant's ceiling of GPUs in a tier (I6)."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select

from muster.db.models import Quota, Tenant
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.incidents import IncidentKind
from muster.domain.principals import Permission
from muster.services import incidents
from muster.services.policies import active_policy
from muster.services.reclaims.workload import held_in_tier
from muster.services.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action

SET: Final = declare_action("quota.set")
READ: Final = declare_action("quota.read")
BELOW_HOLDINGS: Final = IncidentKind.QUOTA_BELOW_HOLDINGS


def set_ceiling(unit: UnitOfWork, tenant_id: TenantId, tier: str, ceiling_gpus: int, *, reason: str) -> Quota:
    """From now on no placement passes it. One below what is held opens an incident and stops nothing.

    Raises:
        NotFoundError: there is no such tenant.
        ValidationFailedError: the policy does not define the tier.
    """
    unit.principal.require(Permission.TENANT_WRITE)
    if unit.session.get(Tenant, tenant_id) is None:
        raise NotFoundError
    tiers = active_policy(unit.session).tiers
    if tier not in tiers:
        detail = f"the policy defines: {', '.join(sorted(tiers))}"
        raise ValidationFailedError.at("/tier", "unknown_tier", detail)
    quota = unit.session.get(Quota, (tenant_id, tier), with_for_update={"key_share": True})
    before = None if quota is None else quota.ceiling_gpus
    if quota is None:
        quota = Quota(tenant_id=tenant_id, tier=tier, ceiling_gpus=ceiling_gpus, updated_at=unit.now)
        unit.session.add(quota)
    quota.ceiling_gpus, quota.updated_at = ceiling_gpus, unit.now
    detail_of = {"tier": tier, "from": before, "to": ceiling_gpus, "reason": reason}
    unit.emit("tenant.quota_set", "tenant", tenant_id, tenant_id=tenant_id, payload=detail_of)
    unit.audit("quota.set", "tenant", tenant_id, tenant_id=tenant_id, reason=reason, detail=detail_of)
    unit.wake(SCHEDULER_CHANNEL)
    _tell_of_holdings(unit, quota)
    unit.session.flush()
    return quota


def list_quotas(unit: UnitOfWork, tenant_id: TenantId) -> Sequence[Quota]:
    """A tenant's ceilings, by tier. Raises ``NotFoundError`` for a missing tenant and for another one alike."""
    unit.principal.require(Permission.TENANT_READ)
    is_visible = unit.principal.sees_all_tenants or unit.principal.tenant_id == tenant_id
    if not is_visible or unit.session.get(Tenant, tenant_id) is None:
        raise NotFoundError
    return unit.session.scalars(select(Quota).where(Quota.tenant_id == tenant_id).order_by(Quota.tier)).all()


def ceiling_refusal(unit: UnitOfWork, tenant_id: TenantId, tier: str, num_gpus: int) -> str | None:
    """I6 under the quota's lock: why ``num_gpus`` more would pass the ceiling, or None."""
    query = select(Quota.ceiling_gpus).where(Quota.tenant_id == tenant_id, Quota.tier == tier)
    ceiling = unit.session.scalar(query.with_for_update(key_share=True))
    held = 0 if ceiling is None else held_in_tier(unit.session, tenant_id, tier)
    if ceiling is None or held + num_gpus <= ceiling:
        return None
    return f"its tenant holds {held} of the {ceiling} GPUs that its quota allows in the tier {tier}"


def _tell_of_holdings(unit: UnitOfWork, quota: Quota) -> None:
    """An incident a tier, from the ceiling that lies below what is held to the one that does not."""
    held = held_in_tier(unit.session, quota.tenant_id, quota.tier)
    about_tenant = incidents.open_about(unit, BELOW_HOLDINGS, [quota.tenant_id])
    opened = [each for each in about_tenant if each.payload["tier"] == quota.tier]
    if held <= quota.ceiling_gpus:
        for incident in opened:
            incidents.close_incident(unit, incident, reason=f"the ceiling is {quota.ceiling_gpus} now")
        return
    if opened:
        return
    name = unit.session.get_one(Tenant, quota.tenant_id).name
    summary = f"{name} holds {held} GPUs in the tier {quota.tier}; its quota is now {quota.ceiling_gpus}"
    payload = {"tenant_id": quota.tenant_id, "tier": quota.tier, "held": held, "ceiling_gpus": quota.ceiling_gpus}
    incidents.open_incident(unit, BELOW_HOLDINGS, "tenant", quota.tenant_id, summary, payload)
