"""Reading reclaims. A tenant sees those that take from it or give to it, and of the other side what it must know."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, or_, select, tuple_

from muster.db.models import Reclaim
from muster.domain.errors import NotFoundError
from muster.domain.ids import JobId, ReclaimId
from muster.domain.principals import Permission, Principal
from muster.domain.states import ReclaimState
from muster.services.unit_of_work import UnitOfWork, declare_action

READ: Final = declare_action("reclaim.read")


@dataclass(frozen=True, slots=True)
class ReclaimView:
    """A reclaim with the sides that its reader may know by name."""

    reclaim: Reclaim
    shows_victim: bool
    shows_beneficiary: bool


def list_reclaims(
    unit: UnitOfWork,
    *,
    states: Sequence[ReclaimState] = (),
    job_id: JobId | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int = 50,
) -> list[ReclaimView]:
    """Newest first. ``job_id``: on either side, as far as the reader may know it there."""
    principal = unit.principal
    principal.require(Permission.JOB_READ)
    query = select(Reclaim).order_by(Reclaim.notified_at.desc(), Reclaim.id.desc()).limit(limit)
    if not principal.sees_all_tenants:
        own = principal.tenant_id
        query = query.where(or_(Reclaim.victim_tenant_id == own, Reclaim.beneficiary_tenant_id == own))
    if job_id is not None:
        query = query.where(_of_job(principal, job_id))
    if states:
        query = query.where(Reclaim.state.in_(states))
    if before is not None:
        query = query.where(tuple_(Reclaim.notified_at, Reclaim.id) < tuple_(*before))
    return [_seen_by(principal, reclaim) for reclaim in unit.session.scalars(query)]


def get(unit: UnitOfWork, reclaim_id: ReclaimId) -> ReclaimView:
    """Raises ``NotFoundError`` for a missing reclaim and for one of other tenants alike."""
    unit.principal.require(Permission.JOB_READ)
    reclaim = unit.session.get(Reclaim, reclaim_id)
    view = None if reclaim is None else _seen_by(unit.principal, reclaim)
    if view is None or not (view.shows_victim or view.shows_beneficiary):
        raise NotFoundError
    return view


def _seen_by(principal: Principal, reclaim: Reclaim) -> ReclaimView:
    sees_all = principal.sees_all_tenants
    return ReclaimView(
        reclaim,
        shows_victim=sees_all or reclaim.victim_tenant_id == principal.tenant_id,
        shows_beneficiary=sees_all or reclaim.beneficiary_tenant_id == principal.tenant_id,
    )


def _of_job(principal: Principal, job_id: JobId) -> ColumnElement[bool]:
    """A tenant must not learn by asking whether a foreign job is on the other side."""
    as_victim, as_beneficiary = Reclaim.victim_job_id == job_id, Reclaim.beneficiary_job_id == job_id
    if not principal.sees_all_tenants:
        own = principal.tenant_id
        as_victim &= Reclaim.victim_tenant_id == own
        as_beneficiary &= Reclaim.beneficiary_tenant_id == own
    return or_(as_victim, as_beneficiary)
