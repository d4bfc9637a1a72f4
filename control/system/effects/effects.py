"""Effects: what a tried change does to jobs and capacity, by the keepers' functions and the scheduler's own planner.

The change and its follow-ons are done in a unit that is rolled back. Two plans are compared, of the state before and of
the state after, in which the jobs that have to leave have left:

    drain node 1    before   job a runs on node 1             job b waits
                    after    job a continues on node 2          job b waits
    effect          a leaves by 12:10, and continues on node 2; b is not named, since nothing changes for it
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.core.visibility import may_see
from control.health import evacuation
from control.system.effects.changes import MOVES, Named, named_in, sentences_of
from control.system.effects.follow_ons import Stop
from control.system.effects.observed import (
    After,
    Before,
    before_in,
    concerns_placement,
    departures_of,
    facts_of,
    node_names_of,
    observe_after,
    observe_before,
)
from control.system.effects.types import Effect, JobEffect, JobFacts, Onward, TierCapacity
from control.tenants.planning import planning
from muster.db.errors import ContentionError
from muster.db.models import Job
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.job.plan_texts import Tense
from muster.domain.principals import Principal
from muster.domain.states import JobEffectKind, JobState, PlanOutcome, StopReason
from muster.domain.times import to_ms, to_time
from scheduler.explain.departures import after_departures
from scheduler.fleet.topology import FleetState
from scheduler.model import Parts, Plan, Question, Reclaim, RunningAttempt, StandingReclaim
from scheduler.planner import plan_on

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tried:
    """All that was read in the unit of a tried change. ``after``: None where it does not concern placement."""

    now: datetime
    named: Named
    after: After | None


def leaving_before(unit: UnitOfWork) -> frozenset[AttemptId]:
    """Return the attempts that have to leave before the unit changes anything: no effect of what it does."""
    return frozenset(evacuation.attempts_to_leave(unit.session, unit.now))


def observe(unit: UnitOfWork, leaving: Collection[AttemptId]) -> Tried:
    """Read the effects of the unit's change. The unit must be rolled back: keepers' work is done in it too.

    ``leaving``: from ``leaving_before``, read before the change.
    """
    events = unit.events
    unit.session.flush()
    after = observe_after(unit, events, leaving) if concerns_placement(unit, events) else None
    moves = [event for event in unit.events_since(len(events)) if event["kind"] in MOVES]
    return Tried(unit.now, named_in(unit.session, [*events, *moves]), after)


def try_change(
    units: UnitOfWorkFactory, principal: Principal, action: str, work: Callable[[UnitOfWork], T]
) -> tuple[T, list[dict[str, Any]], Effect]:
    """Do ``work`` in a unit that is rolled back. Return its result, its consequences and its effect.

    The states before and after are of one snapshot, so what others change meanwhile is no effect. Where ``work`` needs
    rows that others change at that moment, it waits for them in a second try, and both states are read one by one.

    Raises:
        TenantLimitError: plans and dry runs of the principal's tenant took their share of the CPU.
        MusterError: as ``work`` raises it.
    """
    with planning(units, principal):
        try:
            return _tried(units, principal, action, work, is_one_snapshot=True)
        except ContentionError:
            return _tried(units, principal, action, work, is_one_snapshot=False)


def _tried(
    units: UnitOfWorkFactory,
    principal: Principal,
    action: str,
    work: Callable[[UnitOfWork], T],
    *,
    is_one_snapshot: bool,
) -> tuple[T, list[dict[str, Any]], Effect]:
    found: list[Before] = []
    with units.begin(principal, action, dry_run=True, is_one_snapshot=is_one_snapshot) as unit:
        leaving = leaving_before(unit)
        done, consequences = work(unit), unit.consequences
        tried = observe(unit, leaving)
        if is_one_snapshot and tried.after is not None:
            unit.read_before_change(lambda session: found.append(before_in(session, tried.now)))
    return done, consequences, effect_of(units, principal, tried, found[0] if found else None)


def effect_of(units: UnitOfWorkFactory, principal: Principal, tried: Tried, before: Before | None = None) -> Effect:
    """Return the effect as ``principal`` may read it; a tenant reads its own jobs, and nothing of the fleet's size.

    ``before``: the state before the change; the state now if it was not read.
    """
    if tried.after is None:
        return Effect(tried.now, changes=sentences_of(tried.named, set()))
    before = before or observe_before(units, tried.now)
    compared = _Compared(units, before, tried.after)
    jobs = tuple(each for each in compared.jobs() if may_see(principal, each.job.tenant_id))
    tiers = compared.tiers() if principal.sees_all_tenants else ()
    return Effect(tried.now, jobs, tiers, sentences_of(tried.named, {each.job.job_id for each in jobs}))


class _Compared:
    def __init__(self, units: UnitOfWorkFactory, before: Before, after: After) -> None:
        self._units = units
        self._before = before
        self._after = after
        # The state before may be read after the rollback: attempts may have ended since, and others begun.
        both = (*before.question.workload.running, *after.question.workload.running)
        self._running = {each.attempt_id: each for each in both}
        self._stops = {stop.job_id: stop for stop in after.stops}
        self._was = _planned(before.question)
        self._cycle = after_departures(after.question, after.departures)
        self._is = _planned(self._cycle)
        self._reclaims = self._new_reclaims()
        self._facts = dict(after.jobs)
        self._names: dict[NodeId, str] = {}
        self._after_reclaims = self._replanned()
        self._read_names()

    def tiers(self) -> tuple[TierCapacity, ...]:
        before, after = self._before.capacity, self._after.capacity
        return tuple(
            TierCapacity(
                tier,
                before[tier].admitted if tier in before else 0,
                after[tier].admitted if tier in after else 0,
                after[tier].idle if tier in after else 0,
            )
            for tier in dict.fromkeys((*after, *before))
        )

    def jobs(self) -> list[JobEffect]:
        """Return the effects: jobs that leave or end, then jobs that are reclaimed, then changes of the queue."""
        found = [self._leaving(stop) for stop in self._stops.values()]
        found += [self._ended(facts) for facts in self._after.jobs.values() if self._has_ended_waiting(facts)]
        found += [self._reclaimed(item) for item in self._reclaims]
        named = {each.job.job_id for each in found}
        found += [each for each in self._moved() if each.job.job_id not in named]
        return found

    def _leaving(self, stop: Stop) -> JobEffect:
        facts, running = self._facts[stop.job_id], self._running.get(stop.attempt_id)
        return JobEffect(
            kind=JobEffectKind.ENDS if facts.ends else JobEffectKind.LEAVES,
            job=facts,
            num_gpus=0 if running is None else len(running.gpus),
            why=stop.reason,
            requested_at=stop.requested_at,
            deadline_at=stop.deadline_at,
            saved_at=_saved_at(running),
            lost_gpu_s=_lost_gpu_s(running, self._after.now),
            onward=None if facts.ends else self._onward(stop.job_id, self._is, self._cycle),
        )

    def _has_ended_waiting(self, facts: JobFacts) -> bool:
        return facts.ends and facts.job_id not in self._stops

    def _ended(self, facts: JobFacts) -> JobEffect:
        return JobEffect(kind=JobEffectKind.ENDS, job=facts, num_gpus=0)

    def _reclaimed(self, item: Reclaim) -> JobEffect:
        running = self._running[item.victim]
        plan, cycle = self._after_reclaims
        return JobEffect(
            kind=JobEffectKind.LEAVES,
            job=self._facts[running.job_id],
            num_gpus=len(item.gpus),
            why=StopReason.RECLAIM,
            deadline_at=self._after.now + timedelta(seconds=item.notice_s),
            saved_at=_saved_at(running),
            lost_gpu_s=_lost_gpu_s(running, self._after.now),
            onward=self._kept(item) if item.keeps else self._onward(running.job_id, plan, cycle),
        )

    def _moved(self) -> list[JobEffect]:
        """Return the waiting jobs that the next cycle would treat otherwise than without the change."""
        started = {item.job_id for item in self._was.placements}
        starts = {item.job_id for item in self._is.placements}
        known = self._known_before()
        beneficiaries = {item.beneficiary for item in self._reclaims}
        submitted = {
            facts.job_id
            for facts in self._after.jobs.values()
            if facts.state is JobState.QUEUED and facts.job_id not in known
        }
        found = []
        for job in self._cycle.queue:
            if job.job_id not in self._facts or job.job_id in self._stops:
                continue
            if job.job_id not in known and job.job_id not in self._after.jobs:
                continue  # it left the queue between both readings, and not because of the change
            begins = job.job_id in starts - started or job.job_id in beneficiaries
            stops = job.job_id in started - starts
            if begins or stops or job.job_id in submitted:
                kind = JobEffectKind.STARTS if job.job_id in starts | beneficiaries else JobEffectKind.WAITS
                onward = self._onward(job.job_id, self._is, self._cycle)
                found.append(JobEffect(kind, self._facts[job.job_id], num_gpus=job.fewest_gpus, onward=onward))
        return found

    def _known_before(self) -> set[JobId]:
        return {job.job_id for job in self._before.question.queue}

    def _onward(self, job_id: JobId, plan: Plan, cycle: Question) -> Onward:
        for placed in plan.placements:
            if placed.job_id == job_id:
                return self._on(PlanOutcome.STARTS, placed.parts)
        for reclaim in plan.reclaims:
            if reclaim.beneficiary == job_id:
                parts = _parts(reclaim.hold, cycle)
                notice_s = max(item.notice_s for item in plan.reclaims if item.beneficiary == job_id)
                return self._on(PlanOutcome.RECLAIMS, parts, self._after.now + timedelta(seconds=notice_s))
        why = next((one.verdict.in_tense(Tense.CONDITIONAL) for one in plan.waiting if one.job_id == job_id), None)
        for hold in plan.holds:
            if hold.job_id == job_id:
                found = self._on(PlanOutcome.HOLD, _parts(hold.gpus, cycle), to_time(hold.until_ms))
                return replace(found, why=why)
        return Onward(PlanOutcome.WAITS, why=why)

    def _on(self, outcome: PlanOutcome, parts: Parts, starts_at: datetime | None = None) -> Onward:
        hosts = tuple(self._names.get(node_id, node_id) for node_id, _ in parts)
        return Onward(outcome, hosts, sum(len(part) for _, part in parts), starts_at)

    def _kept(self, item: Reclaim) -> Onward:
        return self._on(PlanOutcome.STARTS, _parts(item.keeps, self._cycle))

    def _new_reclaims(self) -> list[Reclaim]:
        known = {item.victim for item in self._was.reclaims}
        return [item for item in self._is.reclaims if item.victim not in known]

    def _replanned(self) -> tuple[Plan, Question]:
        """Return the plan that begins when the new victims have left too."""
        if not self._reclaims:
            return self._is, self._cycle
        now_ms = to_ms(self._after.now)
        standing = tuple(
            StandingReclaim(item.victim, item.beneficiary, now_ms, item.hold, item.keeps) for item in self._reclaims
        )
        workload = replace(self._cycle.workload, reclaims=(*self._cycle.workload.reclaims, *standing))
        cycle = replace(self._cycle, workload=workload)
        leaving = {self._running[item.victim].job_id: (item.victim, False) for item in self._reclaims if not item.keeps}
        with self._units.read() as session:
            departures = departures_of(session, self._after.now, leaving, cycle)
        cycle = after_departures(cycle, departures)
        return _planned(cycle), cycle

    def _read_names(self) -> None:
        """Read the names of nodes that jobs continue on, and the facts of jobs that the unit itself did not touch."""
        plans = (self._was, self._is, self._after_reclaims[0])
        placed = [item for plan in plans for item in plan.placements]
        held = {uuid for plan in plans for item in plan.holds for uuid in item.gpus}
        held.update(uuid for plan in plans for item in plan.reclaims for uuid in (*item.hold, *item.keeps))
        node_ids = {node_id for item in placed for node_id, _ in item.parts}
        node_ids.update(gpu.node_id for gpu in self._cycle.gpus if gpu.uuid in held)
        job_ids = {item.job_id for item in placed} | {item.beneficiary for item in self._reclaims}
        job_ids.update(self._running[item.victim].job_id for item in self._reclaims)
        with self._units.read() as session:
            self._names = node_names_of(session, node_ids)
            rows = session.scalars(select(Job).where(Job.id.in_(job_ids.difference(self._facts)))).all()
            self._facts.update(facts_of(session, rows))


def _planned(cycle: Question) -> Plan:
    return plan_on(FleetState(cycle.gpus, cycle.policy), cycle.queue, cycle.policy, cycle.workload)


def _parts(uuids: Sequence[GpuUuid], cycle: Question) -> Parts:
    wanted = set(uuids)
    parts: dict[NodeId, list[GpuUuid]] = {}
    for gpu in cycle.gpus:
        if gpu.uuid in wanted:
            parts.setdefault(gpu.node_id, []).append(gpu.uuid)
    return tuple((node_id, tuple(own)) for node_id, own in parts.items())


def _saved_at(running: RunningAttempt | None) -> datetime | None:
    if running is None or running.saved_ms is None:
        return None
    return to_time(running.saved_ms)


def _lost_gpu_s(running: RunningAttempt | None, now: datetime) -> float:
    """Return the GPU-seconds since the newest durable checkpoint, or since the start."""
    if running is None:
        return 0.0
    since_ms = max(running.started_ms, running.saved_ms or 0)
    return max(to_ms(now) - since_ms, 0) / 1000 * len(running.gpus)
