"""Planned work on nodes: who would still run as a node closes does not go there. Pure."""

from muster.domain.policy import Policy
from scheduler.model import RunningAttempt, WaitingJob
from scheduler.order import expected_s
from scheduler.topology import FleetState


def closing_of(state: FleetState, job: WaitingJob, policy: Policy, now_ms: int) -> int | None:
    """The last closing that the job would meet if it started now; who says no wall time is believed to take a day."""
    return state.last_closing_ms(now_ms + expected_s(job, policy) * 1000)


def closing_of_attempt(state: FleetState, attempt: RunningAttempt, policy: Policy, now_ms: int) -> int | None:
    """As ``closing_of``, of one that runs and would have another size from now on."""
    believed_ms = now_ms + int(policy.queue.expected_run_s * 1000)
    return state.last_closing_ms(believed_ms if attempt.ends_ms is None else attempt.ends_ms)
