"""Quotas of a tenant in a tier: its guarantee, its borrowable GPUs and its ceiling (I6), for it and all below it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from sqlalchemy import select, text

from control.core.paging import Part, Sort, SortKey
from control.core.records import record_of
from control.core.tenant_tree import quota_of, tenancy
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.core.visibility import may_see, visible_rows
from control.incidents import incidents
from control.policy.guarantees import Rules, new_excess
from control.policy.policies import active_policy
from control.tenants.lent import Lent
from control.tenants.read import QuotaRecord
from control.tenants.tenancy import limit_refusal
from muster.db.models import Quota as QuotaRow
from muster.db.models import Tenant
from muster.db.queries.tenants import assigned_in_tier, lock_below, lock_guarantees
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import JobId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission
from scheduler.explain.explain import limit_in_use
from scheduler.quota.tenancy import Quota

SET: Final = declare_action("quota.set")
READ: Final = declare_action("quota.read")
BY_TENANT: Final = Sort(
    (SortKey(QuotaRow.tenant_id, attrgetter("row.tenant_id")), SortKey(QuotaRow.tier, attrgetter("row.tier")))
)
BELOW_HOLDINGS: Final = IncidentKind.QUOTA_BELOW_HOLDINGS


@dataclass(frozen=True, slots=True)
class QuotaFound:
    """One quota. ``assigned_gpus``: by the tenant and all below it, now.

    ``lent_gpus``: the GPUs of its unused guarantee on which jobs of others run beyond guarantees of their own.
    """

    row: QuotaRecord
    assigned_gpus: int
    lent_gpus: int


def set_quota(unit: UnitOfWork, tenant_id: TenantId, tier: str, wanted: Quota, *, reason: str) -> QuotaFound:
    """Set a quota: from now on no placement exceeds it.

    A limit below the held GPUs opens an incident and stops nothing.

    Raises:
        NotFoundError: there is no such tenant.
        ValidationFailedError: the policy does not define the tier, or more is guaranteed than the ceiling allows or the
            fleet has.
    """
    unit.principal.require(Permission.TENANT_WRITE)
    if unit.session.get(Tenant, tenant_id) is None:
        raise NotFoundError
    if not unit.dry_run:
        lock_guarantees(unit.session)
    policy = active_policy(unit.session)
    _require_possible(policy, tier, wanted)
    _require_in_fleet(unit, policy, tenant_id, tier, wanted)
    row = _locked(unit, tenant_id, tier)
    before = None if row is None else quota_of(row)
    if row is None:
        row = QuotaRow(tenant_id=tenant_id, tier=tier, ceiling_gpus=wanted.ceiling, updated_at=unit.now)
        unit.session.add(row)
    row.guaranteed_gpus, row.borrowable_gpus, row.ceiling_gpus = wanted.guaranteed, wanted.borrowable, wanted.ceiling
    row.updated_at = unit.now
    detail = {
        "tier": tier,
        "from": None if before is None else _limits(before),
        "to": _limits(wanted),
        "reason": reason,
    }
    unit.emit("tenant.quota_set", "tenant", tenant_id, tenant_id=tenant_id, payload=detail)
    unit.audit("quota.set", "tenant", tenant_id, tenant_id=tenant_id, reason=reason, detail=detail)
    unit.wake(SCHEDULER_CHANNEL)
    held = assigned_in_tier(unit.session, tenant_id, tier)
    report_holdings(unit, row, held)
    unit.session.flush()
    return QuotaFound(record_of(row, QuotaRecord), held, Lent(unit.session, unit.now, policy).of(row, held))


def _locked(unit: UnitOfWork, tenant_id: TenantId, tier: str) -> QuotaRow | None:
    """Return the quota's row, locked; each placement of the tenant that finds the row takes its lock.

    None: none of the tenant's placements can commit before this unit, unless it has already; a change of its parent
    waits too.
    """
    row = unit.session.get(QuotaRow, (tenant_id, tier), with_for_update={"key_share": True})
    if row is not None:
        return row
    unit.session.execute(text("LOCK TABLE tenants IN ROW EXCLUSIVE MODE"))
    lock_below(unit.session, tenant_id)
    return unit.session.get(QuotaRow, (tenant_id, tier), with_for_update={"key_share": True})


def _require_in_fleet(unit: UnitOfWork, policy: Policy, tenant_id: TenantId, tier: str, wanted: Quota) -> None:
    """Refuse a higher guarantee if the fleet cannot meet it together with the others."""
    before = tenancy(unit.session)
    after = replace(before, quotas={**before.quotas, (tenant_id, tier): wanted})
    excess = new_excess(unit.session, Rules(policy, before), Rules(policy, after))
    if excess is None:
        return
    most = max(wanted.guaranteed - excess.beyond, 0)
    detail = f"with {wanted.guaranteed} here, {excess.words}: guarantee at most {most} here, or add hosts first"
    raise ValidationFailedError.at("/guaranteed_gpus", "beyond_fleet", detail)


def _require_possible(policy: Policy, tier: str, wanted: Quota) -> None:
    tiers = policy.tiers
    if tier not in tiers:
        detail = f"the policy defines: {', '.join(sorted(tiers))}"
        raise ValidationFailedError.at("/tier", "unknown_tier", detail)
    if wanted.ceiling is not None and wanted.guaranteed > wanted.ceiling:
        detail = (
            f"{wanted.guaranteed} GPUs are guaranteed, and the ceiling is {wanted.ceiling}: at most that many can be"
        )
        raise ValidationFailedError.at("/guaranteed_gpus", "above_ceiling", detail)


def _limits(quota: Quota) -> dict[str, int | None]:
    return {
        "guaranteed_gpus": quota.guaranteed,
        "borrowable_gpus": quota.borrowable,
        "ceiling_gpus": quota.ceiling,
    }


def list_quotas(unit: UnitOfWork, tenant_id: TenantId) -> Sequence[QuotaFound]:
    """Return a tenant's quotas, by tier. Raises ``NotFoundError`` for a missing tenant and for another one alike."""
    unit.principal.require(Permission.TENANT_READ)
    if not may_see(unit.principal, tenant_id) or unit.session.get(Tenant, tenant_id) is None:
        raise NotFoundError
    return list_all_quotas(unit, QuotaFilter(tenant_id), Part(None))


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """Conditions on a quota; None sets no condition."""

    tenant_id: TenantId | None = None
    tier: str | None = None


def list_all_quotas(unit: UnitOfWork, wanted: QuotaFilter, part: Part) -> Sequence[QuotaFound]:
    """Return the quotas that the reader may see, by tenant and tier."""
    unit.principal.require(Permission.TENANT_READ)
    query = select(QuotaRow).where(visible_rows(unit.principal, QuotaRow.tenant_id))
    if wanted.tenant_id is not None:
        query = query.where(QuotaRow.tenant_id == wanted.tenant_id)
    if wanted.tier is not None:
        query = query.where(QuotaRow.tier == wanted.tier)
    found, lent = [], Lent(unit.session, unit.now, active_policy(unit.session))
    for row in unit.session.scalars(part.of(query, BY_TENANT)).all():
        held = assigned_in_tier(unit.session, row.tenant_id, row.tier)
        found.append(QuotaFound(record_of(row, QuotaRecord), held, lent.of(row, held)))
    return found


def quota_refusal(
    unit: UnitOfWork, tenant_id: TenantId, tier: str, num_gpus: int, *, kept_alongside: JobId | None = None
) -> str | None:
    """Return why ``num_gpus`` more would exceed a limit of the tenant or of one above (I6), or None.

    The quotas are locked. ``kept_alongside``: for a pending job itself. Holds of other pending jobs count as theirs
    already.
    """
    refused = limit_refusal(unit, tenant_id, tier, num_gpus, kept_alongside=kept_alongside)
    return None if refused is None else limit_in_use(refused[0], tier, is_own=refused[1])


def report_holdings(unit: UnitOfWork, row: QuotaRow, assigned: int) -> None:
    """Open an incident a tier while the limit is below the held GPUs, and close it when it is not."""
    most = quota_of(row).most
    about_tenant = incidents.open_about(unit, BELOW_HOLDINGS, [row.tenant_id])
    opened = [each for each in about_tenant if each.payload["tier"] == row.tier]
    if most is None or assigned <= most:
        why = "there is no limit now" if most is None else f"the limit is {most} now"
        for incident in opened:
            incidents.close_incident(unit, incident, reason=why)
        return
    if opened:
        return
    name = unit.session.get_one(Tenant, row.tenant_id).name
    summary = f"{name} holds {assigned} GPUs in the tier {row.tier}; its quota is now {most}"
    payload = {"tenant_id": row.tenant_id, "tier": row.tier, "assigned_gpus": assigned, "ceiling_gpus": most}
    incidents.open_incident(unit, BELOW_HOLDINGS, "tenant", row.tenant_id, summary, payload)
