"""Planned work on nodes: a job that would still run when a node closes is not placed there. Pure."""

from dataclasses import replace

from muster.domain.policy.document import Policy
from scheduler.fleet.topology import FleetState
from scheduler.model import RunningAttempt, WaitingJob
from scheduler.queue.order import expected_s
from scheduler.solve.request import Request


def maintenance_start_of(state: FleetState, job: WaitingJob, policy: Policy, now_ms: int) -> int | None:
    """Return the last closing that the job would meet if it started now.

    A job without a wall time counts with its predicted run time, else with the policy's expected one.
    """
    return state.last_closing_ms(now_ms + expected_s(job, policy) * 1000)


def starting(state: FleetState, request: Request, at_ms: int, run_s: float | None) -> Request:
    """Return the request for a start at that time: by its end other hosts have closed than by the end of a start now.

    ``run_s``: the expected run time of its job; None leaves the request unchanged.
    """
    if run_s is None or not state.closings_ms:
        return request
    closing_ms = state.last_closing_ms(at_ms + run_s * 1000)
    return request if closing_ms == request.maintenance_start_ms else replace(request, maintenance_start_ms=closing_ms)


def maintenance_start_of_attempt(state: FleetState, attempt: RunningAttempt, policy: Policy, now_ms: int) -> int | None:
    """Return the last closing that a running attempt would meet if it had another size from now on."""
    believed_ms = now_ms + int(policy.queue.expected_run_s * 1000)
    return state.last_closing_ms(believed_ms if attempt.ends_ms is None else attempt.ends_ms)
