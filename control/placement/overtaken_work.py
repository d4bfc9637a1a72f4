"""Overtaken work: the GPU time that later jobs of the same tier used while a job was pending."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Final

from sqlalchemy import Text, cast, func, or_, select
from sqlalchemy.orm import Session

from muster.db.models import Allocation, Attempt, Job
from muster.db.queries.tenants import NUM_GPUS
from muster.domain.policy.document import Policy
from muster.domain.times import to_ms
from scheduler.model import WaitingJob

_HOUR_MS: Final = 3_600_000
"""Jobs submitted within the same hour do not count against each other."""


def with_overtaken_work(
    session: Session, queue: Sequence[WaitingJob], now: datetime, policy: Policy
) -> list[WaitingJob]:
    """Return each job with its ``overtaken_gpu_s``, as far as that may decide anything.

    The fleet does no more than all its GPUs can, so nothing is read about a job that has waited less than the bound.
    """
    bound_ms = policy.queue.overtaken_work_bound_s * 1000
    latest_ms = to_ms(now) - bound_ms
    oldest_ms = min((job.queued_ms for job in queue), default=None)
    if oldest_ms is None or oldest_ms > latest_ms:
        return list(queue)
    work = _work_by_hour(session, now, now - timedelta(milliseconds=to_ms(now) - oldest_ms))
    return [
        job if job.queued_ms > latest_ms else replace(job, overtaken_gpu_s=_later_than(work.get(job.tier, []), job))
        for job in queue
    ]


def _work_by_hour(session: Session, now: datetime, since: datetime) -> dict[str, list[tuple[int, float]]]:
    """Return by tier and hour of submission the GPU-seconds of jobs of that hour and all later ones, by hour."""
    ran_s = func.extract("epoch", func.coalesce(Attempt.ended_at, now) - Attempt.placed_at)
    hour = func.date_trunc("hour", Job.created_at, "UTC")
    query = (
        select(cast(Allocation.tier, Text), hour, func.sum(NUM_GPUS * ran_s))
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Job.created_at > since, or_(Attempt.ended_at.is_(None), Attempt.ended_at > since))
        .group_by(Allocation.tier, hour)
        .order_by(hour)
    )
    of_tier: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for tier, came, gpu_s in session.execute(query):
        of_tier[tier].append((to_ms(came), float(gpu_s)))
    return {tier: _summed_from_the_end(work) for tier, work in of_tier.items()}


def _summed_from_the_end(work: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    sums = list(accumulate(gpu_s for _, gpu_s in reversed(work)))[::-1]
    return [(came_ms, gpu_s) for (came_ms, _), gpu_s in zip(work, sums, strict=True)]


def _later_than(work: Sequence[tuple[int, float]], job: WaitingJob) -> float:
    """Return the work of jobs submitted in hours after the job's own hour."""
    first = bisect_right(work, job.queued_ms // _HOUR_MS * _HOUR_MS, key=lambda one: one[0])
    return work[first][1] if first < len(work) else 0.0
