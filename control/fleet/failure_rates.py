"""The fleet's record of failures, counted periodically, and the part of it that an attempt gets."""

import functools
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, not_, or_, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from muster.db.base import UtcTimestamp
from muster.db.models import Allocation, AllocationGpu, Attempt, Cluster
from muster.domain.ids import JobId
from muster.domain.job.failure_rate import FAILURES, LOST_WORK, Record, failures_per_gpu_hour, rule_for_program
from muster.domain.policy.document import Policy
from muster.domain.principals import system_principal

COUNT: Final = declare_action("failure_rates.count")
_PRINCIPAL: Final = system_principal("failure-rates")


def count_once(units: UnitOfWorkFactory) -> Record:
    """Count the policy's window again and store it in the cluster's row. It moves nothing, so it leaves no event."""
    with units.begin(_PRINCIPAL, COUNT, quiet=True) as unit:
        window_days = active_policy(unit.session).training.checkpoint_interval.window_days
        record = _counted(unit, window_days, _failures_of_the_fleet())
        row = unit.session.get_one(Cluster, 1, with_for_update={"key_share": True})
        row.num_failures, row.gpu_hours = record.num_failures, record.gpu_hours
    return record


def _counted(unit: UnitOfWork, window_days: int, query: Select[int, Any], **of: str) -> Record:
    """Return failures and GPU-hours of attempts that ran, in as much of the window as they did."""
    parameters = {"now": unit.now, "since": unit.now - timedelta(days=window_days), **of}
    num_failures, gpu_s = unit.session.execute(query, parameters).one()
    return Record(num_failures, max(float(gpu_s), 0.0) / 3600)


@functools.cache
def _failures_of_the_fleet() -> Select[int, Any]:
    """Return the query without failures that only a program reported of its GPUs.

    With them one tenant could have all others save too often.
    """
    return _failures_and_gpu_s(and_(Attempt.cause.in_(FAILURES), not_(Attempt.ending_is_reported)))


@functools.cache
def _lost_work_of_a_job() -> Select[int, Any]:
    """Return the query, built once: each claim asks it."""
    return _failures_and_gpu_s(Attempt.cause.in_(LOST_WORK), Attempt.job_id == bindparam("job_id"))


def _failures_and_gpu_s(is_failure: ColumnElement[bool], *of: ColumnElement[bool]) -> Select[int, Any]:
    now, since = bindparam("now", type_=UtcTimestamp()), bindparam("since", type_=UtcTimestamp())
    num_gpus = (  # counted for each attempt of the window: grouped, it would read all of the past
        select(func.count(AllocationGpu.gpu_uuid))
        .join(Allocation, AllocationGpu.allocation_id == Allocation.id)
        .where(Allocation.attempt_id == Attempt.id)
        .correlate(Attempt)
        .scalar_subquery()
    )
    until = func.coalesce(Attempt.ended_at, now)
    ran_s = func.extract("epoch", until - func.greatest(Attempt.running_at, since))
    return select(func.count().filter(is_failure), func.coalesce(func.sum(ran_s * num_gpus), 0)).where(
        Attempt.running_at.is_not(None), or_(Attempt.ended_at > since, Attempt.ended_at.is_(None)), *of
    )


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
    own = _counted(unit, expected.window_days, _lost_work_of_a_job(), job_id=job_id)
    return rule_for_program(record, expected, num_gpus, own)
