"""The fleet's record of failures, counted periodically, and the part of it that an attempt gets."""

from collections.abc import Collection
from datetime import timedelta
from typing import Final

from sqlalchemy import ColumnElement, false, func, not_, or_, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from muster.db.models import Allocation, AllocationGpu, Attempt, Cluster
from muster.domain.ids import JobId
from muster.domain.job.failure_rate import FAILURES, LOST_WORK, Record, failures_per_gpu_hour, rule_for_program
from muster.domain.policy.document import Policy
from muster.domain.principals import system_principal
from muster.domain.states import Cause

COUNT: Final = declare_action("failure_rates.count")
_PRINCIPAL: Final = system_principal("failure-rates")


def count_once(units: UnitOfWorkFactory) -> Record:
    """Count the policy's window again and store it in the cluster's row. It moves nothing, so it leaves no event."""
    with units.begin(_PRINCIPAL, COUNT, quiet=True) as unit:
        window_days = active_policy(unit.session).training.checkpoint_interval.window_days
        record = _counted(unit, window_days, FAILURES, is_measured=True)
        row = unit.session.get_one(Cluster, 1, with_for_update={"key_share": True})
        row.num_failures, row.gpu_hours = record.num_failures, record.gpu_hours
    return record


def _counted(
    unit: UnitOfWork,
    window_days: int,
    causes: Collection[Cause],
    *of: ColumnElement[bool],
    is_measured: bool = False,
) -> Record:
    """Return failures and GPU-hours of attempts that ran, in as much of the window as they did.

    ``is_measured``: leave out failures that only a program reported of its GPUs: else one tenant could have all others
    save too often.
    """
    since = unit.now - timedelta(days=window_days)
    num_gpus = (  # counted for each attempt of the window: grouped, it would read all of the past
        select(func.count(AllocationGpu.gpu_uuid))
        .join(Allocation, AllocationGpu.allocation_id == Allocation.id)
        .where(Allocation.attempt_id == Attempt.id)
        .correlate(Attempt)
        .scalar_subquery()
    )
    until = func.coalesce(Attempt.ended_at, unit.now)
    ran_s = func.extract("epoch", until - func.greatest(Attempt.running_at, since))
    excluded = Attempt.ending_is_reported if is_measured else false()
    query = select(
        func.count().filter(Attempt.cause.in_(causes), not_(excluded)), func.coalesce(func.sum(ran_s * num_gpus), 0)
    ).where(Attempt.running_at.is_not(None), or_(Attempt.ended_at > since, Attempt.ended_at.is_(None)), *of)
    num_failures, gpu_s = unit.session.execute(query).one()
    return Record(num_failures, max(float(gpu_s), 0.0) / 3600)


def fleet_rate(session: Session, policy: Policy) -> float:
    """Return failures per GPU-hour: the record, weighed against what the policy expects."""
    cluster = session.get_one(Cluster, 1)
    record = Record(cluster.num_failures, cluster.gpu_hours)
    return failures_per_gpu_hour(record, policy.training.checkpoint_interval)


def rule_for_attempt(unit: UnitOfWork, job_id: JobId, num_gpus: int, policy: Policy) -> dict[str, float | int | None]:
    """Return the rule by which a program chooses how often to save, on as many GPUs as its attempt has."""
    cluster = unit.session.get_one(Cluster, 1)
    record = Record(cluster.num_failures, cluster.gpu_hours)
    expected = policy.training.checkpoint_interval
    own = _counted(unit, expected.window_days, LOST_WORK, Attempt.job_id == job_id)
    return rule_for_program(record, expected, num_gpus, own)
