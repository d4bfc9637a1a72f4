"""The tree of tenants with its quotas, as the planner reads it."""

from sqlalchemy.orm import Session

from muster.db.models import Quota as QuotaRow
from muster.db.queries import tenants
from scheduler.quota.tenancy import Member, Quota, Tenancy


def quota_of(row: QuotaRow) -> Quota:
    return Quota(row.guaranteed_gpus, row.borrowable_gpus, row.ceiling_gpus)


def tenancy(session: Session) -> Tenancy:
    """Return the tree without usage, which ``used`` gives where tenants have to share."""
    members = {tenant_id: Member(parent_id, weight) for tenant_id, parent_id, weight in tenants.placed(session)}
    return Tenancy(members, {(row.tenant_id, row.tier): quota_of(row) for row in tenants.quotas(session)})
