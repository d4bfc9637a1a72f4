"""Limits on what one tenant submits: open jobs, stored bytes, and submissions a minute; and all its limits, to read.

A submission locks its tenant's row of ``tenant_submissions`` until its commit. So of two at once the later one counts
the earlier one, and no tenant passes a limit. The lock is the tenant's own: another tenant's submission never waits
for it, and no placement takes it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from sqlalchemy import Select, func, select
from sqlalchemy.dialects.postgresql import insert

from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see
from control.policy.policies import active_policy
from control.tenants.read import TenantRecord, list_tenants
from muster.db.models import Job, Tenant, TenantPlanning, TenantSubmissions
from muster.db.models.jobs import IS_OPEN
from muster.domain.errors import NotFoundError
from muster.domain.ids import TenantId
from muster.domain.job.tenant_limits import (
    LimitInUse,
    TenantUse,
    left_at,
    limits_in_use,
    planning_left_at,
    require_within,
)
from muster.domain.policy.limits import TenantLimits
from muster.domain.principals import Permission

READ: Final = declare_action("tenant.limits")


class TenantLimitsInUse(msgspec.Struct, frozen=True):
    """One tenant and its limits."""

    tenant: TenantRecord
    limits: Sequence[LimitInUse]


def admit_submission(unit: UnitOfWork, tenant_id: TenantId, num_bytes: int) -> None:
    """Count a job of ``num_bytes`` of the tenant. Raise ``TenantLimitError`` if it is beyond a limit."""
    limits = active_policy(unit.session).limits.tenant
    row = _locked(unit, tenant_id, limits)
    left = left_at(limits, row.remaining, row.at, unit.now)
    # Read after the lock: jobs that were committed while this unit waited count.
    used = unit.session.execute(_open_by_tenant([tenant_id])).one_or_none()
    num_jobs, stored_bytes = (0, 0) if used is None else (used.num_jobs, used.num_bytes)
    require_within(limits, TenantUse(num_jobs, stored_bytes, left), num_bytes)
    row.remaining, row.at = left - 1, max(row.at, unit.now)


def _locked(unit: UnitOfWork, tenant_id: TenantId, limits: TenantLimits) -> TenantSubmissions:
    lock = {"key_share": True}
    row = unit.session.get(TenantSubmissions, tenant_id, with_for_update=lock)
    if row is not None:
        return row
    full = {"tenant_id": tenant_id, "remaining": limits.submissions_per_minute, "at": unit.now}
    unit.session.execute(insert(TenantSubmissions).values(full).on_conflict_do_nothing())
    return unit.session.get_one(TenantSubmissions, tenant_id, with_for_update=lock)


def limits_of(unit: UnitOfWork, tenant_id: TenantId) -> Sequence[LimitInUse]:
    """Return the limits and their use. Raise ``NotFoundError`` for a missing tenant and a foreign one alike."""
    unit.principal.require(Permission.TENANT_READ)
    if unit.session.get(Tenant, tenant_id) is None or not may_see(unit.principal, tenant_id):
        raise NotFoundError
    return _in_use(unit, [tenant_id])[tenant_id]


def limits_of_all(unit: UnitOfWork) -> Sequence[TenantLimitsInUse]:
    """Return the limits of each tenant that the reader may know."""
    tenants = list_tenants(unit)
    found = _in_use(unit, [tenant.id for tenant in tenants])
    return [TenantLimitsInUse(tenant, found[tenant.id]) for tenant in tenants]


def _in_use(unit: UnitOfWork, tenant_ids: Sequence[TenantId]) -> Mapping[TenantId, Sequence[LimitInUse]]:
    limits = active_policy(unit.session).limits.tenant
    used = {row.tenant_id: (row.num_jobs, row.num_bytes) for row in unit.session.execute(_open_by_tenant(tenant_ids))}
    rows = select(TenantSubmissions).where(TenantSubmissions.tenant_id.in_(tenant_ids))
    left = {row.tenant_id: left_at(limits, row.remaining, row.at, unit.now) for row in unit.session.scalars(rows)}
    most = float(limits.submissions_per_minute)
    plans = unit.session.scalars(select(TenantPlanning).where(TenantPlanning.tenant_id.in_(tenant_ids)))
    left_s = {row.tenant_id: planning_left_at(limits, row.left_s, row.at, unit.now) for row in plans}

    def use_of(tenant_id: TenantId) -> TenantUse:
        num_jobs, num_bytes = used.get(tenant_id, (0, 0))
        return TenantUse(num_jobs, num_bytes, left.get(tenant_id, most), left_s.get(tenant_id))

    return {tenant_id: limits_in_use(limits, use_of(tenant_id)) for tenant_id in tenant_ids}


def _open_by_tenant(tenant_ids: Sequence[TenantId]) -> Select[TenantId, int, int]:
    """Return the query for the number of jobs of each tenant that have not ended, and their bytes."""
    # A row of release 0.1.0 has no count of its own: the stored size, which may be compressed, reads no program.
    num_bytes = func.coalesce(Job.spec_bytes, func.pg_column_size(Job.spec))
    return (
        select(Job.tenant_id, func.count().label("num_jobs"), func.sum(num_bytes).label("num_bytes"))
        .where(Job.tenant_id.in_(tenant_ids), IS_OPEN)
        .group_by(Job.tenant_id)
    )
