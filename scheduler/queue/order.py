"""The order of the queue: by tier, then by what a job has waited against what it is believed to take.

Shortest first makes the mean wait least and lets long jobs wait for ever; oldest first does neither. The ratio
(wait + run) ÷ run^x is between them: for x = 1 it is highest response ratio next (Brinch Hansen, 1971), for more short
jobs weigh more. What asks for more of each host weighs more too: a single GPU is soon found, and whole hosts are not
while whoever fits between others goes first. The rules of ``muster simulate`` use the same function, and
``make bench-scheduler`` shows what it does to the waits of two public traces.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from muster.domain.policy.document import Policy
from scheduler.model import WaitingJob

LEAST_RUN_S: Final = 60.0
"""Nothing is believed to take less: starting and cleaning take that long, and no ratio is without bounds."""

Seconds = TypeVar("Seconds", float, npt.NDArray[np.float64])


def slowness(expected_s: Seconds, gpus_per_node: Seconds, policy: Policy) -> Seconds:
    """What a wait is divided by. ``expected_s``: ``LEAST_RUN_S`` or more; of arrays, each of its own."""
    queue = policy.queue
    power: Any = expected_s**queue.ageing_exponent / gpus_per_node**queue.host_share_exponent
    return power  # type: ignore[no-any-return]  # of floats a float, of arrays an array


def urgency(wait_s: Seconds, expected_s: Seconds, divisor: Seconds) -> Seconds:
    """The larger, the earlier. ``divisor``: its ``slowness``."""
    ratio: Any = (wait_s + expected_s) / divisor
    return ratio  # type: ignore[no-any-return]  # as above


def passed_work_bound_gpu_s(policy: Policy, num_gpus: int) -> float:
    """So much work of jobs that came later may pass one in a fleet of so many GPUs."""
    return policy.queue.passed_work_bound_s * num_gpus


def is_passed_enough(job: WaitingJob, policy: Policy, num_gpus: int) -> bool:
    """Whether nobody of its tier that came later goes before it any more."""
    return 0 < passed_work_bound_gpu_s(policy, num_gpus) <= job.passed_gpu_s


def expected_s(job: WaitingJob, policy: Policy) -> float:
    """What the job is believed to take, in seconds."""
    known_s = policy.queue.expected_run_s if job.believed_s is None else job.believed_s
    return max(known_s, LEAST_RUN_S)


def believed_run_s(run_s: float, ran_s: float, policy: Policy) -> float:
    """What a job is believed to take in all that was believed to take ``run_s``, and has run for ``ran_s``.

    Who outlasts its belief has it raised by ``queue.overrun_fraction``, again and again, and so few times. (Tsafrir,
    Etsion and Feitelson, "Backfilling using system-generated predictions rather than user runtime estimates", IEEE TPDS
    2007, correct what has expired.)
    """
    while run_s < ran_s:
        run_s += max(run_s * policy.queue.overrun_fraction, LEAST_RUN_S)
    return run_s


def in_order(queue: Sequence[WaitingJob], policy: Policy, now_ms: int | None, num_gpus: int) -> list[WaitingJob]:
    """By tier; what has run before goes on first, since it holds work; then who was passed enough; then by urgency.

    ``now_ms``: None where nobody knows it; then it is the moment at which the last of them came. ``num_gpus``: all of
    the fleet.
    """
    if len(queue) < 2:
        return list(queue)
    latest_ms = max(job.queued_ms for job in queue) if now_ms is None else now_ms

    def place(job: WaitingJob) -> tuple[int, bool, float, int, str]:
        worth = math.inf
        if not is_passed_enough(job, policy, num_gpus):
            wait_s, run_s = max(latest_ms - job.queued_ms, 0) / 1000, expected_s(job, policy)
            worth = urgency(wait_s, run_s, slowness(run_s, float(job.gpus_per_node), policy))
        return (-_priority(policy, job.tier), not job.keep, -worth, job.queued_ms, job.job_id)

    return sorted(queue, key=place)


def _priority(policy: Policy, tier: str) -> int:
    return policy.tiers[tier].priority if tier in policy.tiers else -1
