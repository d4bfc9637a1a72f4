"""Queries of reclaims. A tenant sees the ones that concern it, and of the other side only the necessary facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Select, and_, or_, select, tuple_
from sqlalchemy.orm import aliased

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see, visible_rows
from muster.db.models import Job, Reclaim
from muster.domain.errors import NotFoundError
from muster.domain.ids import AttemptId, JobId, ReclaimId, TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.states import ReclaimOutcome, ReclaimState

READ: Final = declare_action("reclaim.read")


class ReclaimRecord(msgspec.Struct, frozen=True):
    """A reclaim. Its columns' meanings are in ``muster.db.models.reclaims``."""

    id: ReclaimId
    beneficiary_job_id: JobId
    beneficiary_tenant_id: TenantId
    beneficiary_tier: str
    victim_attempt_id: AttemptId
    victim_job_id: JobId
    victim_tenant_id: TenantId
    victim_tier: str
    num_gpus: int
    state: ReclaimState
    reason: str
    notice_s: float
    notified_at: datetime
    deadline_at: datetime
    delivered_at: datetime | None
    settled_at: datetime | None
    settled_why: str | None
    outcome: ReclaimOutcome | None
    cost_gpu_s: float
    lost_gpu_s: float | None
    runner_up: dict[str, Any] | None
    keeps: list[str] | None
    policy_version: int | None


@dataclass(frozen=True, slots=True)
class ReclaimView:
    """A reclaim with the sides that its reader may know by name.

    ``shows_choice``: whether it may see the victim sets.
    """

    reclaim: ReclaimRecord
    victim_job_name: str
    beneficiary_job_name: str
    shows_victim: bool
    shows_beneficiary: bool
    shows_choice: bool


def list_reclaims(
    unit: UnitOfWork,
    *,
    states: Sequence[ReclaimState] = (),
    job_id: JobId | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int = 50,
) -> list[ReclaimView]:
    """Return reclaims, the newest first. ``job_id``: on either side, as far as the reader may know it there."""
    principal = unit.principal
    principal.require(Permission.JOB_READ)
    is_visible = visible_rows(principal, Reclaim.victim_tenant_id, Reclaim.beneficiary_tenant_id)
    query = _with_names().where(is_visible)
    query = query.order_by(Reclaim.notified_at.desc(), Reclaim.id.desc()).limit(limit)
    if job_id is not None:
        query = query.where(_of_job(principal, job_id))
    if states:
        query = query.where(Reclaim.state.in_(states))
    if before is not None:
        query = query.where(tuple_(Reclaim.notified_at, Reclaim.id) < tuple_(*before))
    return [_seen_by(principal, *row) for row in unit.session.execute(query)]


def get(unit: UnitOfWork, reclaim_id: ReclaimId) -> ReclaimView:
    """Return the reclaim. Raises ``NotFoundError`` for a missing reclaim and for one of other tenants alike."""
    unit.principal.require(Permission.JOB_READ)
    row = unit.session.execute(_with_names().where(Reclaim.id == reclaim_id)).one_or_none()
    view = None if row is None else _seen_by(unit.principal, *row)
    if view is None or not (view.shows_victim or view.shows_beneficiary):
        raise NotFoundError
    return view


def _with_names() -> Select[Reclaim, str, str]:
    victim, beneficiary = aliased(Job), aliased(Job)
    return (
        select(Reclaim, victim.name, beneficiary.name)
        .join(victim, victim.id == Reclaim.victim_job_id)
        .join(beneficiary, beneficiary.id == Reclaim.beneficiary_job_id)
    )


def _seen_by(principal: Principal, reclaim: Reclaim, victim_job_name: str, beneficiary_job_name: str) -> ReclaimView:
    return ReclaimView(
        record_of(reclaim, ReclaimRecord),
        victim_job_name,
        beneficiary_job_name,
        shows_victim=may_see(principal, reclaim.victim_tenant_id),
        shows_beneficiary=may_see(principal, reclaim.beneficiary_tenant_id),
        shows_choice=principal.sees_all_tenants,
    )


def _of_job(principal: Principal, job_id: JobId) -> ColumnElement[bool]:
    """Return the condition on a job's reclaims.

    A tenant must not learn by it whether a foreign job is on the other side.
    """
    return or_(
        and_(Reclaim.victim_job_id == job_id, visible_rows(principal, Reclaim.victim_tenant_id)),
        and_(Reclaim.beneficiary_job_id == job_id, visible_rows(principal, Reclaim.beneficiary_tenant_id)),
    )
