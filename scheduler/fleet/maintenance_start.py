"""Planned work on nodes: who would still run as a node closes does not go there. Pure."""

from dataclasses import replace

from muster.domain.policy.document import Policy
from scheduler.fleet.topology import FleetState
from scheduler.model import RunningAttempt, WaitingJob
from scheduler.queue.order import expected_s
from scheduler.solve.request import Request


def closing_of(state: FleetState, job: WaitingJob, policy: Policy, now_ms: int) -> int | None:
    """The last closing that the job would meet if it started now; who says no wall time is believed to take a day."""
    return state.last_closing_ms(now_ms + expected_s(job, policy) * 1000)


def starting(state: FleetState, request: Request, at_ms: int, run_s: float | None) -> Request:
    """The request as it is if it starts then: by its end other hosts have closed than if it started now.

    ``run_s``: what its job is believed to take; None: nobody asks.
    """
    if run_s is None or not state.closings_ms:
        return request
    closing_ms = state.last_closing_ms(at_ms + run_s * 1000)
    return request if closing_ms == request.closing_ms else replace(request, closing_ms=closing_ms)


def closing_of_attempt(state: FleetState, attempt: RunningAttempt, policy: Policy, now_ms: int) -> int | None:
    """As ``closing_of``, of one that runs and would have another size from now on."""
    believed_ms = now_ms + int(policy.queue.expected_run_s * 1000)
    return state.last_closing_ms(believed_ms if attempt.ends_ms is None else attempt.ends_ms)
