"""The usage of tenants as the planner reads it, and their limits under lock, as a commit checks them (I6)."""

from collections.abc import Collection
from datetime import datetime
from itertools import pairwise
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, select
from sqlalchemy.orm import Session

from control.core.tenant_tree import quota_of
from control.core.unit_of_work import UnitOfWork
from muster.db.models import Quota as QuotaRow
from muster.db.queries import tenants
from muster.domain.errors import ConflictError
from muster.domain.ids import JobId, TenantId
from muster.domain.policy.document import Policy
from scheduler.quota.tenancy import Holdings, Limit, Member, Tenancy

Used = dict[tuple[TenantId, str], float]
_USED: Final[WeakKeyDictionary[Engine, tuple[datetime, float, Used]]] = WeakKeyDictionary()


class TreeChangedError(ConflictError):
    """The tenant was moved under another one while its limits were read."""

    code, status, title = "tenant_tree_changed", 409, "The tenant has another place since"


def used(session: Session, now: datetime, policy: Policy) -> Used:
    """Return the usage until the last full hour. It does not change later, so a process reads it once an hour."""
    until = now.replace(minute=0, second=0, microsecond=0)
    half_life_s = policy.queue.usage_half_life_s
    bind = session.get_bind()
    engine = bind.engine if isinstance(bind, Connection) else bind
    known = _USED.get(engine)
    if known is None or known[:2] != (until, half_life_s):
        known = _USED[engine] = (until, half_life_s, tenants.used(session, until, half_life_s))
    return known[2]


def locked_holdings(
    unit: UnitOfWork, tenant_ids: Collection[TenantId], tier: str, *, kept_alongside: JobId | None = None
) -> Holdings:
    """Return the GPUs held now by each of these tenants and all above them that has a quota, whose row stays locked.

    ``kept_alongside``: with the holds of every other pending job.

    Raises:
        TreeChangedError: one was moved under another tenant meanwhile. Such a move locks the same rows.
    """
    lines = {tenant_id: tenants.line(unit.session, tenant_id) for tenant_id in sorted(tenant_ids)}
    concerned = {above for line in lines.values() for above in line}
    query = select(QuotaRow).where(QuotaRow.tenant_id.in_(concerned), QuotaRow.tier == tier)
    locked = query.order_by(QuotaRow.tenant_id).with_for_update(key_share=True)
    rows = unit.session.scalars(locked.execution_options(populate_existing=True)).all()
    if rows and any(tenants.line(unit.session, tenant_id) != line for tenant_id, line in lines.items()):
        raise TreeChangedError(f"{min(lines)} has another place in the tree of tenants now")
    members = {below: Member(above) for line in lines.values() for below, above in pairwise(line)}
    holdings = Holdings(Tenancy(members, {(row.tenant_id, tier): quota_of(row) for row in rows}))
    for row in rows:
        held = tenants.assigned_in_tier(unit.session, row.tenant_id, tier)
        kept = 0
        if kept_alongside is not None:
            kept = tenants.hold_in_tier(unit.session, row.tenant_id, tier, alongside=kept_alongside)
        holdings.set(row.tenant_id, tier, held, kept)
    return holdings


def limit_refusal(
    unit: UnitOfWork, tenant_id: TenantId, tier: str, num_gpus: int, *, kept_alongside: JobId | None = None
) -> tuple[Limit, bool] | None:
    """Return the limit that ``num_gpus`` more would exceed (I6), and whether it is the tenant's own, or None.

    The quotas are locked.
    """
    limit = locked_holdings(unit, [tenant_id], tier, kept_alongside=kept_alongside).limit(tenant_id, tier)
    if limit is None or num_gpus <= limit.left:
        return None
    return limit, limit.tenant_id == tenant_id
