"""The residency rules that hold for tenants: each one's own and the rules of all above it."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from muster.db.models import Job, Tenant
from muster.db.queries.tenants import line
from muster.domain.ids import TenantId
from muster.domain.residency import ANY, Residency, read_residency, residency_of

_RULES: Final = text(
    """
    WITH RECURSIVE bound AS (
        SELECT id, residency FROM tenants WHERE residency IS NOT NULL
        UNION ALL
        SELECT tenants.id, bound.residency FROM tenants JOIN bound ON tenants.parent_id = bound.id
    )
    SELECT id, residency FROM bound
    """
)
CHECKPOINT_STORE: Final = Job.spec["checkpoint"]["store"].as_string()
"""The store of a job's checkpoints; NULL: a folder, or each host itself."""


def residencies(session: Session) -> Mapping[TenantId, Residency]:
    """Return the rule of each tenant that has one, or that stands below one that has."""
    found: dict[TenantId, Residency] = {}
    for tenant_id, document in session.execute(_RULES):
        found[tenant_id] = found.get(tenant_id, ANY).with_rule(read_residency(document))
    return found


def residency_of_tenant(session: Session, tenant_id: TenantId) -> Residency:
    """Return the rule that holds for the tenant."""
    own = select(Tenant.residency).where(Tenant.id.in_(line(session, tenant_id)), Tenant.residency.is_not(None))
    return residency_of(read_residency(document) for document in session.scalars(own))
