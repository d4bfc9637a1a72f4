"""A job's budget: the GPU-hours that all its attempts together may hold.

A job that has spent it is stopped, and FAILED.

The count runs from an attempt's placement to its end, for each GPU that it holds, also where the fleet is to blame for
lost work: it limits a job's use, and is no bill. Only a re-run that Muster ordered is left out (``charged_from``). It
is computed from rows, so no restart or outage loses any.
"""

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import structlog
from sqlalchemy import ColumnElement, Select, bindparam, func, or_, select
from sqlalchemy.orm import Session, aliased

from control.attempts.attempts import lock_attempt, stop_attempt
from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from muster.db.base import UtcTimestamp
from muster.db.models import Allocation, AllocationGpu, Attempt, Job
from muster.domain.errors import MusterError
from muster.domain.ids import AttemptId
from muster.domain.principals import Principal
from muster.domain.states import STOP_URGENCY, AttemptState, StopReason

STOP: Final = declare_action("budget.stop")
_SECONDS_PER_HOUR: Final = 3600.0
_log = structlog.get_logger(__name__)
_AS_URGENT: Final = [reason for reason in StopReason if STOP_URGENCY[reason] >= STOP_URGENCY[StopReason.BUDGET]]


def stop_what_is_spent(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Stop each live attempt whose job has spent its budget, and that nothing as urgent stops. Return how many."""
    with units.read() as session:
        attempt_ids = _overspent(session, units.clock())
    num_stopped = 0
    for attempt_id in attempt_ids:
        try:
            num_stopped += _stop(units, principal, attempt_id)
        except MusterError as error:
            _log.warning("budget_not_enforced", attempt_id=attempt_id, fault=error.detail)
    return num_stopped


def _overspent(session: Session, now: datetime) -> Sequence[AttemptId]:
    return session.scalars(_live_and_overspent(), {"now": now}).all()


@functools.cache
def _live_and_overspent() -> Select[AttemptId]:
    """Return the query, built once: each reconciliation asks it."""
    budget, now = Job.request["budget_gpu_hours"].as_float(), bindparam("now", type_=UtcTimestamp())
    return (
        select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .where(_may_be_stopped(), budget.is_not(None), _gpu_s(now) >= budget * _SECONDS_PER_HOUR)
        .order_by(Attempt.id)
    )


def _may_be_stopped() -> ColumnElement[bool]:
    is_open = or_(Attempt.stop_reason.is_(None), Attempt.stop_reason.not_in(_AS_URGENT))
    return (Attempt.state != AttemptState.ENDED) & Attempt.ending_cause.is_(None) & is_open


def _gpu_s(now: datetime | ColumnElement[datetime]) -> ColumnElement[float]:
    """Return the GPU-seconds that attempts of the outer query's job have held until now."""
    each = aliased(Attempt)
    num_gpus = (
        select(func.count(AllocationGpu.gpu_uuid))
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(Allocation.attempt_id == each.id)
        .correlate(each)
        .scalar_subquery()
    )
    held_s = func.extract("epoch", func.coalesce(each.ended_at, now) - func.coalesce(each.charged_from, each.placed_at))
    spent = select(func.coalesce(func.sum(held_s * num_gpus), 0.0)).where(each.job_id == Job.id)
    return spent.correlate(Job).scalar_subquery()


def _stop(units: UnitOfWorkFactory, principal: Principal, attempt_id: AttemptId) -> bool:
    """Check the attempt again under the job's lock, and stop it.

    It may have ended, or be stopped more urgently by now.
    """
    with units.begin(principal, STOP) as unit:
        loaded = lock_attempt(unit, attempt_id)
        budget = job_request(loaded.job).budget_gpu_hours
        found = select(Attempt.id).where(Attempt.id == attempt_id, _may_be_stopped())
        if budget is None or unit.session.scalar(found) is None:
            return False
        spent = unit.session.scalars(select(_gpu_s(unit.now)).where(Job.id == loaded.job.id)).one()
        detail = f"{spent / _SECONDS_PER_HOUR:.3g} of {budget:g} GPU-hours are spent"
        stop_attempt(unit, loaded, StopReason.BUDGET, active_policy(unit.session), detail=detail)
        payload = {"job_id": loaded.job.id, "budget_gpu_hours": budget, "reason": detail}
        unit.emit("job.budget_spent", "job", loaded.job.id, tenant_id=loaded.job.tenant_id, payload=payload)
    return True
