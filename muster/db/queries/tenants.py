"""The tree of tenants, what each holds with all below it, and what each has used recently."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import CTE, Integer, func, literal, literal_column, or_, select, text
from sqlalchemy.orm import Session, aliased

from muster.db.models import Allocation, AllocationGpu, Attempt, Gpu, GpuHold, Job, Quota, Tenant
from muster.db.pipeline.pg_pipeline import Query
from muster.db.stored_values import stored_value
from muster.domain.ids import JobId, TenantId
from muster.domain.states import AllocationState, JobState, Standing

HALF_LIVES: Final = 5
"""Number of half-lives after which use, below a thirtieth by then, no longer counts."""
_COUNTED: Final = (
    select(func.count()).where(AllocationGpu.allocation_id == Allocation.id).correlate(Allocation).scalar_subquery()
)
NUM_GPUS: Final = func.coalesce(Allocation.num_gpus, _COUNTED)
"""Number of an allocation's GPUs as placed; counted where a release placed it that did not write the number yet."""
LOCK_GUARANTEES: Final[Query] = ("LOCK TABLE quotas IN ROW EXCLUSIVE MODE", {})
"""For a commit that takes GPUs: guarantees, the tree and the policy stay as they are until its end."""
GUARANTEES: Final[Query] = (
    r"""
    SELECT CASE WHEN EXISTS (SELECT FROM quotas WHERE guaranteed_gpus > 0) THEN concat_ws('/',
        (SELECT version FROM policy_versions WHERE is_active),
        (SELECT sum(hashtextextended(concat_ws('/', tenant_id, tier, guaranteed_gpus), 0))
            FROM quotas WHERE guaranteed_gpus > 0),
        (SELECT sum(hashtextextended(concat_ws('/', id, parent_id), 0)) FROM tenants WHERE parent_id IS NOT NULL)
    ) ELSE '' END AS guarantees""",
    {},
)
"""A text that differs where guarantees, the tree of tenants or the policy do; empty where nothing is guaranteed."""
_IS_ASSIGNED: Final = Allocation.state == literal_column(f"'{stored_value(AllocationState.ASSIGNED)}'")


def line(session: Session, tenant_id: TenantId) -> tuple[TenantId, ...]:
    """Return the tenant and all above it, from below."""
    up = (
        select(Tenant.id, Tenant.parent_id, literal(0).label("level")).where(Tenant.id == tenant_id).cte(recursive=True)
    )
    above = aliased(Tenant)
    up = up.union_all(select(above.id, above.parent_id, up.c.level + 1).join(up, up.c.parent_id == above.id))
    return tuple(session.scalars(select(up.c.id).order_by(up.c.level)))


def _below(tenant_id: TenantId) -> CTE:
    """Return the tenant and all below it."""
    down = select(Tenant.id).where(Tenant.id == tenant_id).cte(recursive=True)
    team = aliased(Tenant)
    return down.union_all(select(team.id).join(down, team.parent_id == down.c.id))


def below(session: Session, tenant_id: TenantId) -> Sequence[TenantId]:
    return session.scalars(select(_below(tenant_id).c.id)).all()


def lock_below(session: Session, tenant_id: TenantId) -> None:
    """Lock the tenant and all below it until the commit: a placement for one of them is committed before, or waits.

    A placement holds its tenant's row FOR KEY SHARE, before it reads the limits.
    """
    session.scalars(
        select(Tenant.id).where(Tenant.id.in_(select(_below(tenant_id).c.id))).order_by(Tenant.id).with_for_update()
    ).all()


def parents(session: Session) -> dict[TenantId, TenantId | None]:
    rows = session.execute(select(Tenant.id, Tenant.parent_id))
    return {tenant_id: parent_id for tenant_id, parent_id in rows}  # noqa: C416  # rows are no pairs to the type checker


def placed(session: Session) -> list[tuple[TenantId, TenantId | None, float]]:
    """Return (id, parent, weight) of the tenants that have a parent or a weight other than 1."""
    query = select(Tenant.id, Tenant.parent_id, Tenant.weight).where(
        or_(Tenant.parent_id.is_not(None), Tenant.weight != 1)
    )
    return [(tenant_id, parent_id, weight) for tenant_id, parent_id, weight in session.execute(query)]


def quotas(session: Session) -> Sequence[Quota]:
    return session.scalars(select(Quota)).all()


def assigned_in_tier(session: Session, tenant_id: TenantId, tier: str) -> int:
    """Return the GPUs that live attempts of the tenant and of all below it hold there, without GPUs being cleaned."""
    query = select(func.sum(NUM_GPUS)).where(
        Allocation.tenant_id.in_(select(_below(tenant_id).c.id)),
        Allocation.tier == tier,
        _IS_ASSIGNED,
    )
    return int(session.scalar(query) or 0)


def hold_in_tier(session: Session, tenant_id: TenantId, tier: str, *, alongside: JobId) -> int:
    """Return the GPUs held there for waiting jobs of the tenant and of all below it, without the job ``alongside``."""
    query = (
        select(func.count())
        .select_from(GpuHold)
        .join(Job, Job.id == GpuHold.job_id)
        .where(
            Job.tenant_id.in_(select(_below(tenant_id).c.id)),
            Job.tier == tier,
            Job.state.in_((JobState.QUEUED, JobState.RECOVERING)),
            Job.id != alongside,
        )
    )
    return session.scalar(query) or 0


def fleet_gpus(session: Session) -> int:
    """Return the GPUs of the fleet that are not retired."""
    query = select(func.count()).select_from(Gpu).where(Gpu.standing != Standing.RETIRED)
    return int(session.scalar(query) or 0)


def lock_guarantees(session: Session) -> None:
    """Let no other transaction change guarantees, or place a job, until this one ends. Take it before any row's lock.

    A placement holds ``LOCK_GUARANTEES``: it is committed before, or reads what this transaction has written. A dry
    run takes no such lock: it reads the whole fleet afterwards, and all placements would wait.
    """
    session.execute(text("LOCK TABLE quotas IN SHARE ROW EXCLUSIVE MODE"))


def assigned_by_tier(session: Session) -> dict[tuple[TenantId, str], int]:
    """Return the GPUs as ``assigned_in_tier`` does, but of each tenant alone, without tenants below it."""
    query = (
        select(Allocation.tenant_id, Allocation.tier, func.sum(NUM_GPUS))
        .where(_IS_ASSIGNED)
        .group_by(Allocation.tenant_id, Allocation.tier)
    )
    return {(tenant_id, tier): int(num_gpus) for tenant_id, tier, num_gpus in session.execute(query)}


def used(session: Session, until: datetime, half_life_s: float) -> dict[tuple[TenantId, str], float]:
    """Return the mean number of GPUs before ``until`` by tenant and tier, without tenants below it.

    A second counts half as much as one that is ``half_life_s`` younger. Tenants without any use are left out.
    """
    since = until - timedelta(seconds=HALF_LIVES * half_life_s)

    def age_s(moment: Any) -> Any:
        return func.extract("epoch", until - func.least(func.greatest(moment, since), until))

    faded = math.log(2) / half_life_s
    began, ended = (
        age_s(func.coalesce(Attempt.charged_from, Attempt.placed_at)),
        age_s(func.coalesce(Attempt.ended_at, until)),
    )
    counts = func.exp(-faded * ended) - func.exp(-faded * began)  # the integral of 2^(-age ÷ half-life), × faded
    num_gpus = Attempt.num_nodes * Job.request["shape"]["gpus_per_node"].astext.cast(Integer)
    query = (
        select(Attempt.tenant_id, Job.tier, func.sum(num_gpus * counts))
        .join(Job, Job.id == Attempt.job_id)
        .where(or_(Attempt.ended_at.is_(None), Attempt.ended_at > since), Attempt.placed_at < until)
        .group_by(Attempt.tenant_id, Job.tier)
    )
    return {(tenant_id, tier): float(gpus) for tenant_id, tier, gpus in session.execute(query) if gpus}
