"""Stops of jobs by a spent budget: jobs of its tenants in reclaimable tiers, each with the notice of its tier.

A job that waits is held instead, so that nothing places it only to stop it. Jobs in other tiers continue:
no rule takes from a tenant what has no notice.
"""

from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy import ColumnElement, select

from control.attempts.attempts import lock_attempt, lock_job, step_job, stop_attempt
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.ledger.budgets import judge_budgets_once, spent_refusal
from control.policy.policies import active_policy
from muster.db.models import Attempt, Job
from muster.db.queries import tenants
from muster.domain.budgets import BudgetAction
from muster.domain.errors import MusterError
from muster.domain.ids import AttemptId, JobId
from muster.domain.lifecycle import job as jobs
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal
from muster.domain.states import STOP_URGENCY, AttemptState, JobState, StopReason

STOP: Final = declare_action("tenant_budget.stop")
HOLD: Final = declare_action("tenant_budget.hold")
_AS_URGENT: Final = [reason for reason in StopReason if STOP_URGENCY[reason] >= STOP_URGENCY[StopReason.BUDGET]]
_log = structlog.get_logger(__name__)


def keep_budgets_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Give the notices of budgets that are due, and enforce spent ones. Return how many jobs were stopped."""
    num_stopped = 0
    for spent in judge_budgets_once(units, principal):
        with units.read() as session:
            policy = active_policy(session)
            tiers = [name for name, tier in policy.tiers.items() if tier.notice_s is not None]
            own = tenants.below(session, spent.row.tenant_id)
            of_them = Job.tenant_id.in_(own) & Job.tier.in_(tiers)
            live = select(Attempt.id).join(Job, Job.id == Attempt.job_id).where(of_them, _may_be_stopped())
            attempt_ids = session.scalars(live.order_by(Attempt.id)).all()
            waiting = select(Job.id).where(of_them, Job.state == JobState.QUEUED)
            job_ids = session.scalars(waiting.order_by(Job.id)).all()
        for attempt_id in attempt_ids:
            num_stopped += _stopped(units, principal, attempt_id)
        for job_id in job_ids:
            _hold(units, principal, job_id)
    return num_stopped


def _may_be_stopped() -> ColumnElement[bool]:
    is_open = Attempt.stop_reason.is_(None) | Attempt.stop_reason.not_in(_AS_URGENT)
    return (Attempt.state != AttemptState.ENDED) & Attempt.ending_cause.is_(None) & is_open


def _stopped(units: UnitOfWorkFactory, principal: Principal, attempt_id: AttemptId) -> bool:
    try:
        with units.begin(principal, STOP) as unit:
            return _stop(unit, attempt_id, active_policy(unit.session))
    except MusterError as error:
        _log.warning("tenant_budget_not_enforced", attempt_id=attempt_id, fault=error.detail)
        return False


def _stop(unit: UnitOfWork, attempt_id: AttemptId, policy: Policy) -> bool:
    """Check the attempt again under its job's lock, and ask it to stop by the end of its tier's notice."""
    loaded = lock_attempt(unit, attempt_id)
    tier = policy.tiers.get(loaded.job.tier)
    is_open = unit.session.scalar(select(Attempt.id).where(Attempt.id == attempt_id, _may_be_stopped()))
    refusal = spent_refusal(unit.session, loaded.job.tenant_id, unit.now, BudgetAction.STOP_RECLAIMABLE)
    if tier is None or tier.notice_s is None or is_open is None or refusal is None:
        return False
    grace = timedelta(seconds=tier.notice_s)
    stop_attempt(unit, loaded, StopReason.BUDGET, policy, grace=grace, detail=refusal)
    payload = {"job_id": loaded.job.id, "notice_s": tier.notice_s, "reason": refusal}
    unit.emit("job.tenant_budget_spent", "job", loaded.job.id, tenant_id=loaded.job.tenant_id, payload=payload)
    return True


def _hold(units: UnitOfWorkFactory, principal: Principal, job_id: JobId) -> None:
    try:
        with units.begin(principal, HOLD) as unit:
            job = lock_job(unit, job_id)
            refusal = spent_refusal(unit.session, job.tenant_id, unit.now, BudgetAction.STOP_RECLAIMABLE)
            if job.state is JobState.QUEUED and refusal is not None:
                step_job(unit, job, jobs.HoldRequested(refusal), active_policy(unit.session))
    except MusterError as error:
        _log.warning("tenant_budget_not_enforced", job_id=job_id, fault=error.detail)
