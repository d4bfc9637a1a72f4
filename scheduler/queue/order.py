"""The order of the queue: by tier, then by the ratio of a job's wait and its expected run time.

Shortest first gives the least mean wait, but long jobs may wait without end; oldest first does neither. The ratio (wait
+ run) ÷ run^x is between them: for x = 1 it is highest response ratio next (Brinch Hansen, 1971), for more short jobs
weigh more. A job with more GPUs a host weighs more too: a single GPU is soon found, but whole hosts are not while small
jobs that fit between others go first. The rules of ``muster simulate`` use the same function, and ``make
bench-scheduler`` shows its effect on the waits of two public traces.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from muster.domain.policy.document import Policy
from scheduler.model import WaitingJob

LEAST_RUN_S: Final = 60.0
"""The least expected run time: starting and cleaning take that long, and it bounds the ratio."""

Seconds = TypeVar("Seconds", float, npt.NDArray[np.float64])


def slowness(expected_s: Seconds, gpus_per_node: Seconds, policy: Policy) -> Seconds:
    """Return the divisor of a wait. ``expected_s``: at least ``LEAST_RUN_S``; for arrays, elementwise."""
    queue = policy.queue
    power: Any = expected_s**queue.ageing_exponent / gpus_per_node**queue.host_share_exponent
    return power  # type: ignore[no-any-return]  # of floats a float, of arrays an array


def urgency(wait_s: Seconds, expected_s: Seconds, divisor: Seconds) -> Seconds:
    """Return the urgency: a larger one goes first. ``divisor``: the job's ``slowness``."""
    ratio: Any = (wait_s + expected_s) / divisor
    return ratio  # type: ignore[no-any-return]  # as above


def passed_work_bound_gpu_s(policy: Policy, num_gpus: int) -> float:
    """Return how much work of later jobs may overtake one job in a fleet of so many GPUs."""
    return policy.queue.overtaken_work_bound_s * num_gpus


def is_passed_enough(job: WaitingJob, policy: Policy, num_gpus: int) -> bool:
    """Return whether so much work overtook the job that no later job of its tier goes before it any more."""
    return 0 < passed_work_bound_gpu_s(policy, num_gpus) <= job.overtaken_gpu_s


def expected_s(job: WaitingJob, policy: Policy) -> float:
    """Return the expected run time of the job in seconds."""
    known_s = policy.queue.expected_run_s if job.expected_run_s is None else job.expected_run_s
    return max(known_s, LEAST_RUN_S)


def expected_run_s(run_s: float, ran_s: float, policy: Policy) -> float:
    """Return the expected total run time of a job that was expected to take ``run_s`` and has run for ``ran_s``.

    A job that outlasts the expectation has it raised by ``queue.overrun_fraction``, repeatedly, so that raises are few.
    (Tsafrir, Etsion and Feitelson, "Backfilling using system-generated predictions rather than user runtime estimates",
    IEEE TPDS 2007, correct an expired prediction.)
    """
    while run_s < ran_s:
        run_s += max(run_s * policy.queue.overrun_fraction, LEAST_RUN_S)
    return run_s


def in_order(queue: Sequence[WaitingJob], policy: Policy, now_ms: int, num_gpus: int) -> list[WaitingJob]:
    """Return the queue by tier; within it jobs that ran before first, since they have saved work; then by urgency.

    A job that enough work overtook is the most urgent. ``num_gpus``: of the fleet.
    """
    if len(queue) < 2:
        return list(queue)

    def place(job: WaitingJob) -> tuple[int, bool, float, int, str]:
        worth = math.inf
        if not is_passed_enough(job, policy, num_gpus):
            wait_s, run_s = max(now_ms - job.queued_ms, 0) / 1000, expected_s(job, policy)
            worth = urgency(wait_s, run_s, slowness(run_s, float(job.gpus_per_node), policy))
        return (-_priority(policy, job.tier), not job.keep, -worth, job.queued_ms, job.job_id)

    return sorted(queue, key=place)


def _priority(policy: Policy, tier: str) -> int:
    return policy.tiers[tier].priority if tier in policy.tiers else -1
