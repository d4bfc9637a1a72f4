"""Sizes of elastic gangs: the hosts within a quota, placements beyond the requested size, and growth.

Growing costs a restart. So an attempt grows only after the policy's dwell, by no less than its minimum gain, and while
no pending job could use the GPUs. No attempt is reclaimed for it. Pure.
"""

import math
from collections.abc import Iterable
from typing import Final

from muster.domain.policy.document import Policy
from scheduler.fleet.maintenance_start import maintenance_start_of_attempt
from scheduler.fleet.topology import FleetState
from scheduler.model import ElasticGang, Growth, RunningAttempt, WaitingJob, Workload
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.solve.recovery import replan
from scheduler.solve.solver import Chosen, Request, fitting_cells, most_nodes, parts_of, place

MAX_GROWTHS: Final = 16
"""Most attempts that grow in a cycle; the next cycle continues."""


def nodes_within(job: WaitingJob, holdings: Holdings) -> int:
    """Return the most hosts that the job takes now, within quotas (I6) and others' firm guarantees."""
    return nodes_of(job, holdings.limit_now(job.tenant_id, job.tier))


def nodes_of(job: WaitingJob, limit: Limit | None) -> int:
    """Return how many of the hosts that it takes the limit leaves."""
    return job.most_nodes if limit is None else min(job.most_nodes, max(limit.left, 0) // job.gpus_per_node)


def enlarge(state: FleetState, request: Request, chosen: Chosen, most: int) -> Chosen | None:
    """Return a place with more hosts than ``chosen``, ``most`` at most, on idle GPUs; the state is unchanged."""
    state.give(chosen.gpus)
    num_nodes = min(most_nodes(state, request.sized(most)), most)
    larger = request.sized(num_nodes)
    parts = parts_of(state, request.tier, chosen)
    found = None if num_nodes <= len(chosen.cells) else replan(state, larger, parts) or place(state, larger)
    state.take(chosen.gpus)
    return found


def grow(state: FleetState, policy: Policy, workload: Workload, holdings: Holdings) -> list[Growth]:
    """Return the attempts that grow, the highest tier and the longest run first. Their new GPUs are taken."""
    growths: list[Growth] = []
    is_full: dict[Request, bool] = {}
    for attempt, gang in _due(workload, policy):
        closing_ms = maintenance_start_of_attempt(state, attempt, policy, workload.now_ms)
        wanted = _request(attempt, gang, closing_ms)
        one = wanted.sized(1)
        if one not in is_full:
            is_full[one] = not len(fitting_cells(state.for_tier(one.tier), one, state.tier(one.tier).counts))
        if is_full[one]:
            continue
        chosen = _grown(state, policy, wanted, attempt, gang, _most(holdings, attempt, gang))
        if chosen is None:
            continue
        fresh = chosen.gpus[state.is_free[chosen.gpus]]
        state.take(fresh)
        holdings.add(attempt.tenant_id, attempt.tier, len(chosen.gpus) - len(attempt.gpus))
        parts = parts_of(state, attempt.tier, chosen)
        growths.append(Growth(attempt.attempt_id, attempt.job_id, len(gang.parts), parts))
        is_full.clear()
        if len(growths) == MAX_GROWTHS:
            break
    return growths


def _due(workload: Workload, policy: Policy) -> Iterable[tuple[RunningAttempt, ElasticGang]]:
    """Return the attempts that have run for the dwell and are not stopping."""
    since_ms = workload.now_ms - policy.elastic.grow_after_s * 1000
    ripe = [
        (attempt, attempt.elastic)
        for attempt in workload.running
        if attempt.elastic is not None
        and len(attempt.elastic.parts) < attempt.elastic.max_nodes
        and attempt.started_ms <= since_ms
        and not attempt.is_stopping
        and attempt.tier in policy.tiers
    ]
    return sorted(ripe, key=lambda one: (-policy.tier(one[0].tier).priority, one[0].started_ms, one[0].attempt_id))


def _request(attempt: RunningAttempt, gang: ElasticGang, maintenance_start_ms: int | None) -> Request:
    return Request(
        tier=attempt.tier,
        nodes=gang.max_nodes,
        gpus_per_node=gang.gpus_per_node,
        required=gang.required_level,
        preferred=gang.preferred_level,
        avoid_nodes=gang.avoid_nodes,
        min_nodes=gang.min_nodes,
        rule=gang.rule,
        maintenance_start_ms=maintenance_start_ms,
    )


def _most(holdings: Holdings, attempt: RunningAttempt, gang: ElasticGang) -> int:
    limit = holdings.limit_now(attempt.tenant_id, attempt.tier)
    if limit is None:
        return gang.max_nodes
    return min(gang.max_nodes, max(limit.left + len(attempt.gpus), 0) // gang.gpus_per_node)


def _grown(
    state: FleetState, policy: Policy, wanted: Request, attempt: RunningAttempt, gang: ElasticGang, most: int
) -> Chosen | None:
    """Return its next place, with its own GPUs as free; None if it gains too little."""
    has = len(gang.parts)
    least = has + max(1, math.ceil(has * policy.elastic.min_gain_fraction))
    if most < least:
        return None
    own = state.layout.gpu_indices(attempt.gpus)
    own = own[~state.is_free[own]]
    state.give(own)
    request = wanted.sized(most)
    num_nodes = min(most_nodes(state, request), most)
    larger = request.sized(num_nodes)
    chosen = None if num_nodes < least else replan(state, larger, gang.parts) or place(state, larger)
    state.take(own)
    return chosen
