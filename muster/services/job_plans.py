"""A plan of a job that nobody has submitted: where it would start, who would give way, or why it would wait.

The planner answers, on the snapshot that its next cycle would have; so a job that is submitted before anything changes
is placed as its plan says. Nothing is written.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

import numpy as np
from sqlalchemy import select

from muster.db.models import Node
from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.job_spec import JobSpec
from muster.domain.principals import Permission
from muster.domain.states import PlanOutcome
from muster.identity import new_id
from muster.services import jobs
from muster.services.lives import to_ms
from muster.services.placement import waiting_job
from muster.services.policies import active_policy
from muster.services.scheduling import Question, question
from muster.services.unit_of_work import UnitOfWork, declare_action
from scheduler.elastic import nodes_within
from scheduler.model import GpuView, Parts, Plan, Reclaim, WaitingJob, Workload
from scheduler.order import LEAST_RUN_S, in_order
from scheduler.planner import plan_on
from scheduler.solver import most_nodes, place, request_of
from scheduler.topology import FleetState, Ints

PLAN: Final = declare_action("job.plan")
TYPING_S: Final = 60.0
"""An advised wall time still holds so long after the plan."""


@dataclass(frozen=True, slots=True)
class PlannedHost:
    node_id: NodeId
    node_name: str
    gpus: tuple[GpuUuid, ...]


@dataclass(frozen=True, slots=True)
class Victim:
    """Who would be asked to give way. Whose it is only operators read."""

    job_id: JobId
    tenant_id: TenantId
    tier: str
    num_gpus: int
    notice_s: float
    cost_gpu_s: float


@dataclass(frozen=True, slots=True)
class Change:
    """``field`` of the job, set to ``value``, and it would start at once."""

    field: Literal["wall_time_s", "tier", "shape.nodes"]
    value: int | float | str


@dataclass(frozen=True, slots=True)
class JobPlan:
    """``starts_at``: None where nobody knows. ``hosts``: in the order of ranks; of a job that waits none."""

    outcome: PlanOutcome
    why: str | None
    starts_at: datetime | None
    num_ahead: int
    hosts: tuple[PlannedHost, ...]
    victims: tuple[Victim, ...]
    changes: tuple[Change, ...]


def plan_job(unit: UnitOfWork, spec: JobSpec, *, tenant_id: TenantId | None = None) -> JobPlan:
    """What would become of the job if it were submitted now.

    Raises:
        ValidationFailedError: as ``jobs.submit`` does.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    owner = jobs.owner_of(unit, tenant_id)
    jobs.require_possible(unit, spec)
    policy = active_policy(unit.session)
    grace_s = policy.dispatch.stop_grace_s if spec.stop_grace_s is None else spec.stop_grace_s
    job = waiting_job(spec, JobId(new_id("job")), owner, to_ms(unit.now), policy)
    asked = question(unit.session, unit.now, beside=job)
    if asked is None:
        message = "a job that waits in thought is a queue of one: a bug of ours"
        raise AssertionError(message)
    state = FleetState(asked.gpus, asked.policy)
    decided = plan_on(state, asked.queue, asked.policy, asked.workload)
    order = [one.job_id for one in in_order(asked.queue, asked.policy, asked.workload.now_ms, len(asked.gpus))]
    found = _answer(unit, job, decided, asked.gpus, asked.workload)
    found = replace(found, num_ahead=order.index(job.job_id))
    if found.outcome is PlanOutcome.STARTS:
        return found
    advice = _Advice(asked, state, job, decided, grace_s, _holdings(asked, decided))
    return replace(found, changes=tuple(advice.changes()))


def _answer(unit: UnitOfWork, job: WaitingJob, decided: Plan, gpus: Sequence[GpuView], workload: Workload) -> JobPlan:
    placed = next((item for item in decided.placements if item.job_id == job.job_id), None)
    if placed is not None:
        return JobPlan(PlanOutcome.STARTS, None, unit.now, 0, _hosts(unit, placed.parts), (), ())
    why = next(item.why for item in decided.waiting if item.job_id == job.job_id)
    reclaims = [item for item in decided.reclaims if item.beneficiary == job.job_id]
    if reclaims:
        notice_s = max(item.notice_s for item in reclaims)
        hosts = _hosts(unit, _parts(reclaims[0].held, gpus))
        victims = _victims(reclaims, workload)
        return JobPlan(PlanOutcome.RECLAIMS, why, unit.now + timedelta(seconds=notice_s), 0, hosts, victims, ())
    held = next((item for item in decided.holds if item.job_id == job.job_id), None)
    if held is None:
        return JobPlan(PlanOutcome.WAITS, why, None, 0, (), (), ())
    starts_at = unit.now + timedelta(milliseconds=held.until_ms - workload.now_ms)
    return JobPlan(PlanOutcome.HELD, why, starts_at, 0, _hosts(unit, _parts(held.gpus, gpus)), (), ())


def _parts(uuids: Iterable[GpuUuid], gpus: Sequence[GpuView]) -> Parts:
    """``uuids`` by node, in their order."""
    node_of = {gpu.uuid: gpu.node_id for gpu in gpus}
    parts: dict[NodeId, list[GpuUuid]] = {}
    for uuid in uuids:
        parts.setdefault(node_of[uuid], []).append(uuid)
    return tuple((node_id, tuple(own)) for node_id, own in parts.items())


def _hosts(unit: UnitOfWork, parts: Parts) -> tuple[PlannedHost, ...]:
    rows = unit.session.execute(select(Node.id, Node.name).where(Node.id.in_([node_id for node_id, _ in parts])))
    names = {node_id: name for node_id, name in rows}  # noqa: C416  # rows are no pairs to the type checker
    return tuple(PlannedHost(node_id, names[node_id], uuids) for node_id, uuids in parts)


def _victims(reclaims: Sequence[Reclaim], workload: Workload) -> tuple[Victim, ...]:
    running = {attempt.attempt_id: attempt for attempt in workload.running}

    def victim(item: Reclaim) -> Victim:
        attempt = running[item.victim]
        cost_gpu_s = round(item.cost_gpu_s, 1)
        return Victim(attempt.job_id, attempt.tenant_id, attempt.tier, len(item.gpus), item.notice_s, cost_gpu_s)

    return tuple(victim(item) for item in sorted(reclaims, key=lambda item: item.victim))


@dataclass(frozen=True, slots=True)
class _Advice:
    """What would let the job start at once. ``state``: as the plan left it."""

    asked: Question
    state: FleetState
    job: WaitingJob
    decided: Plan
    grace_s: float
    holdings: Counter[tuple[TenantId, str]]

    def changes(self) -> list[Change]:
        """Each by itself: a shorter wall time, another tier, fewer hosts."""
        if self.job.tier not in self.asked.policy.tiers:
            return []  # the policy has changed since the job was found possible
        self._let_go([*_held_for(self.job.job_id, self.decided)])
        return [*self._wall_times(), *self._tiers(), *self._sizes()]

    def _let_go(self, uuids: Sequence[GpuUuid]) -> Ints:
        """Of what is held those GPUs that are idle, free in the state from now on."""
        placed = {uuid for item in self.decided.placements for _, part in item.parts for uuid in part}
        busy = placed.union(gpu.uuid for gpu in self.asked.gpus if gpu.facts.is_held)
        idle = np.unique(self.state.layout.gpu_indices(uuid for uuid in uuids if uuid not in busy))
        idle = idle[~self.state.is_free[idle]]
        self.state.give(idle)
        return idle

    def _may_start(self, job: WaitingJob) -> bool:
        if nodes_within(job, self.asked.workload, self.holdings) < job.fewest_nodes:
            return False
        is_reclaimable = self.asked.policy.tier(job.tier).notice_s is not None
        return place(self.state, request_of(job, is_reclaimable=is_reclaimable).at_least()) is not None

    def _wall_times(self) -> Iterator[Change]:
        """The longest with which it runs where a place is held for another; its grace comes after it."""
        for held in sorted(self.decided.holds, key=lambda held: -held.until_ms):
            if held.job_id == self.job.job_id:
                continue
            idle = self._let_go(held.gpus)
            fits = self._may_start(self.job)
            self.state.take(idle)
            wall_time_s = (held.until_ms - self.asked.workload.now_ms) / 1000 - self.grace_s - TYPING_S
            if fits and wall_time_s >= LEAST_RUN_S:
                yield Change("wall_time_s", float(int(wall_time_s)))
                return

    def _tiers(self) -> Iterator[Change]:
        """The lowest priority first, since it costs least."""
        tiers = self.asked.policy.tiers
        for name in sorted(tiers, key=lambda name: (tiers[name].priority, name)):
            if name != self.job.tier and self._may_start(replace(self.job, tier=name)):
                yield Change("tier", name)

    def _sizes(self) -> Iterator[Change]:
        """As many hosts as may start at once, where the job is of one size."""
        if self.job.min_nodes is not None:
            return
        within = nodes_within(self.job, self.asked.workload, self.holdings)
        nodes = min(self.job.nodes - 1, within, most_nodes(self.state, request_of(self.job)))
        if nodes > 0 and self._may_start(replace(self.job, nodes=nodes)):
            yield Change("shape.nodes", nodes)


def _held_for(job_id: JobId, decided: Plan) -> Iterator[GpuUuid]:
    for reclaim in decided.reclaims:
        if reclaim.beneficiary == job_id:
            yield from reclaim.held
    for held in decided.holds:
        if held.job_id == job_id:
            yield from held.gpus


def _holdings(asked: Question, decided: Plan) -> Counter[tuple[TenantId, str]]:
    """GPUs by tenant and tier: of what runs, and of what this plan places."""
    holdings = Counter[tuple[TenantId, str]]()
    for attempt in asked.workload.running:
        holdings[attempt.tenant_id, attempt.tier] += len(attempt.gpus)
    waiting = {one.job_id: one for one in asked.queue}
    for placed in decided.placements:
        one = waiting[placed.job_id]
        holdings[one.tenant_id, one.tier] += sum(len(uuids) for _, uuids in placed.parts)
    return holdings
