"""Queries of reclaims. A tenant sees the ones that concern it, and of the other side only the necessary facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.orm import aliased

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see, visible_rows
from muster.db.models import Job, Reclaim
from muster.domain.errors import NotFoundError
from muster.domain.ids import AttemptId, JobId, ReclaimId, TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.states import ReclaimOutcome, ReclaimState

READ: Final = declare_action("reclaim.read")
SORTS: Final = by_time(
    SortKey(Reclaim.notified_at, attrgetter("reclaim.notified_at"), datetime.fromisoformat),
    SortKey(Reclaim.id, attrgetter("reclaim.id")),
)


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


@dataclass(frozen=True, slots=True)
class ReclaimFilter:
    """Conditions on a reclaim; None and empty set no condition.

    ``job_id``, ``tenant_id``, ``tier``: on either side, as far as the reader may know it there. ``span``: in which the
    notice was given.
    """

    states: Sequence[ReclaimState] = ()
    job_id: JobId | None = None
    tenant_id: TenantId | None = None
    tier: str | None = None
    span: Span = ALWAYS


def list_reclaims(unit: UnitOfWork, wanted: ReclaimFilter, part: Part) -> list[ReclaimView]:
    """Return reclaims, the newest first unless ``part`` says otherwise."""
    principal = unit.principal
    principal.require(Permission.JOB_READ)
    is_visible = visible_rows(principal, Reclaim.victim_tenant_id, Reclaim.beneficiary_tenant_id)
    query = _with_names().where(is_visible, *wanted.span.conditions(Reclaim.notified_at))
    for victim, beneficiary, value in (
        (Reclaim.victim_job_id, Reclaim.beneficiary_job_id, wanted.job_id),
        (Reclaim.victim_tenant_id, Reclaim.beneficiary_tenant_id, wanted.tenant_id),
        (Reclaim.victim_tier, Reclaim.beneficiary_tier, wanted.tier),
    ):
        if value is not None:
            query = query.where(_on_a_side(principal, victim == value, beneficiary == value))
    if wanted.states:
        query = query.where(Reclaim.state.in_(wanted.states))
    query = part.of(query, SORTS[TimeOrder.NEWEST])
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


def _on_a_side(
    principal: Principal, of_victim: ColumnElement[bool], of_beneficiary: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return the condition that one side is such, as far as the reader may know that side.

    A tenant must not learn by it whether a foreign job is on the other side.
    """
    return or_(
        and_(of_victim, visible_rows(principal, Reclaim.victim_tenant_id)),
        and_(of_beneficiary, visible_rows(principal, Reclaim.beneficiary_tenant_id)),
    )
